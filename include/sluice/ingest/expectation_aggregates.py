"""Find the expectations that plain aggregates are enough for; these are computed while a batch is published.

Great Expectations says which metrics an expectation needs, and derives the result from their values.
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
"""Great Expectations' metrics that are one aggregate each, which ignores nulls."""
_SIMPLE = frozenset(f"expect_column_{name}_to_be_between" for name in ("max", "min", "mean", "stdev", "sum"))
_SIMPLE |= {"expect_column_proportion_of_non_null_values_to_be_between"}


@dataclass
class Aggregates:
    """Plain aggregates for expectations.

    Attributes:
        columns: the aggregates, by the metric that Great Expectations will ask for.
        expectations: those that need nothing else.
    """

    columns: dict[Any, Column] = field(default_factory=dict)
    expectations: list[Expectation] = field(default_factory=list)


def plan_aggregates(contract: Contract, empty: DataFrame, applies: Column) -> Aggregates:
    """Find the expectations that plain aggregates are enough for, and the aggregates.

    Left out are those of severity `quarantine_rows`, and what needs a shuffle, shows values, or might raise: it would
    raise in the MERGE.

    Args:
        empty: a frame of the expectations' columns, without rows.
        applies: the condition that expectations apply to a row.
    """
    types = {f.name: f.dataType for f in empty.schema.fields}
    found = Aggregates(expectations=[e for e in contract.expectations if _simple(contract, e, types, empty)])
    if not found.expectations:
        return found
    given = [
        (i, each, great_expectations.resolve_parameters(contract, each, {}))
        for i, each in enumerate(found.expectations)
    ]
    probe = great_expectations.make_validator(empty, {})
    great_expectations.validate_by_position(probe, given, 0)
    engine: Any = probe.execution_engine
    for metric in engine.asked:
        name, column = metric.metric_name, metric.metric_domain_kwargs.get("column")
        if name in _AGGREGATES:
            values = clamp_to_python(F.col(f"`{column}`"), types[str(column)])
            measure = _AGGREGATES[name](F.when(applies, values))
        elif name == "table.row_count":
            measure = F.count_if(applies)
        else:
            where = metric.id._replace(metric_name=name.removesuffix("unexpected_count") + "condition")
            measure = F.count_if(applies & engine.conditions[where])
        found.columns[metric.id] = measure
    return found


def clamp_to_python(values: Column, kind: T.DataType) -> Column:
    """Limit dates and timestamps to the years 1 to 9999 that Python can represent; others would raise in PySpark."""
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
        return each.kind.column_kind == "whole"
    regex = each.given.get("regex")
    return not regex or great_expectations.java_accepts(empty.sparkSession, regex)
