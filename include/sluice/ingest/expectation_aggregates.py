"""What expectations can be told by plain aggregates, which ride on the pass that publishes a batch.

Which metrics an expectation needs is Great Expectations' own answer, and so is what it makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract.contract import Contract
from sluice.contract.expectations import Expectation
from sluice.ingest import great_expectations

_AGGREGATES: Mapping[str, Callable[[Column], Column]] = MappingProxyType(
    {
        "column.max": F.max,
        "column.min": F.min,
        "column.mean": F.mean,
        "column.standard_deviation": F.stddev_samp,
        "column.sum": lambda values: F.sum(values.cast("double")),
        "column.non_null_count": F.count,
    }
)
"""Great Expectations' metrics that are one aggregate each, which passes over nulls."""
_SIMPLE = frozenset(f"expect_column_{name}_to_be_between" for name in ("max", "min", "mean", "stdev", "sum"))
_SIMPLE |= {"expect_column_proportion_of_non_null_values_to_be_between"}


@dataclass
class Measures:
    """What can be measured of expectations by plain aggregates, in whatever pass the rows make anyway.

    Attributes:
        columns: the aggregates, by the metric that Great Expectations will ask for.
        of: the expectations for which they are all that is needed.
    """

    columns: dict[Any, Column] = field(default_factory=dict)
    of: list[Expectation] = field(default_factory=list)


def measures(contract: Contract, empty: DataFrame, judged: Column) -> Measures:
    """The aggregates that tell most expectations what they need; none of those of severity `quarantine_rows`.

    Left out is what needs a shuffle, shows values, or might raise: it would raise in the MERGE.

    Args:
        empty: a frame of their columns, without rows.
        judged: the condition that a row is one that is to be looked at.
    """
    types = {f.name: f.dataType for f in empty.schema.fields}
    found = Measures(of=[e for e in contract.expectations if _simple(contract, e, types, empty)])
    if not found.of:
        return found
    given = [(i, each, great_expectations.parameters(contract, each, {})) for i, each in enumerate(found.of)]
    probe = great_expectations.validator(empty, {})
    great_expectations.validated(probe, given, 0)
    engine: Any = probe.execution_engine
    for metric in engine.asked:
        name, column = metric.metric_name, metric.metric_domain_kwargs.get("column")
        if name in _AGGREGATES:
            values = within_python(F.col(f"`{column}`"), types[str(column)])
            measure = _AGGREGATES[name](F.when(judged, values))
        elif name == "table.row_count":
            measure = F.count_if(judged)
        else:
            where = metric.id._replace(metric_name=name.removesuffix("unexpected_count") + "condition")
            measure = F.count_if(judged & engine.conditions[where])
        found.columns[metric.id] = measure
    return found


def within_python(values: Column, kind: T.DataType) -> Column:
    """Days and moments no further off than Python can tell: its years are 1 to 9999, and all of Spark's would raise."""
    if not isinstance(kind, (T.DateType, T.TimestampType, T.TimestampNTZType)):
        return values
    first, last = (F.lit(day).cast(kind) for day in ("0001-01-03", "9999-12-29"))  # in any time zone
    return F.when(values < first, first).when(values > last, last).otherwise(values)


def _simple(contract: Contract, each: Expectation, types: Mapping[str, T.DataType], empty: DataFrame) -> bool:
    if each.severity == "quarantine_rows":
        return False
    if each.type in _SIMPLE:
        counts = each.type.endswith(("max_to_be_between", "min_to_be_between", "values_to_be_between"))
        # The sum of decimals may overflow.
        return counts or not isinstance(types[each.columns[0]], T.DecimalType)
    if not each.kind.by_row or contract.expectations_show_values:
        return each.kind.of == "whole"
    regex = each.given.get("regex")
    return not regex or great_expectations.takes(empty.sparkSession, regex)
