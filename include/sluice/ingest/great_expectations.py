"""Ask Great Expectations: resolved parameters in; row conditions, and results as counts, out.

It is imported only here and in `compat`, and only if a contract has expectations, because importing it takes seconds.
No data context is used: the engine gets the session and the frame, so nothing is looked up, stored or sent anywhere.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Thread
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.contract.columns import KAFKA_TYPES
from sluice.contract.contract import Contract
from sluice.contract.expectations import Expectation, to_column_value
from sluice.errors import ContractError
from sluice.formats.expressions import MAX_REGEX_TEXT, regex_recurses
from sluice.ingest import compat

if TYPE_CHECKING:
    from great_expectations.core.expectation_validation_result import ExpectationValidationResult
    from great_expectations.validator.metric_configuration import MetricConfiguration
    from great_expectations.validator.validator import Validator

MAX_VALUES_SHOWN = 20
_LEAST = -(10**15)


def import_in_background(contracts: Iterable[Contract]) -> None:
    """Import Great Expectations in a thread, if a contract needs it, while Spark reads the first batch."""
    if any(c.expectations for c in contracts):
        Thread(target=_import_gx, daemon=True).start()


def _import_gx() -> None:
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    # Its log messages may contain a record's values; the results say what matters. Its import alone logs 200 lines.
    logging.getLogger("great_expectations").setLevel(logging.CRITICAL)
    import great_expectations.expectations.core  # noqa: F401 - registers what a configuration names


def java_accepts(session: SparkSession, regex: str) -> bool:
    """Whether Java accepts a regular expression; its syntax differs from Python's. The query starts no job."""
    try:
        session.sql("SELECT '' RLIKE :regex", {"regex": regex}).collect()
    except PySparkException:
        return False
    return True


def failure_conditions(contract: Contract, frame: DataFrame) -> list[tuple[Expectation, Column]]:
    """For each expectation of severity `quarantine_rows` the condition that a row fails it.

    Raises:
        ContractError: Java does not accept an expectation's regular expression.
    """
    chosen = [e for e in contract.expectations if e.severity == "quarantine_rows"]
    if not chosen:
        return []
    _import_gx()
    from great_expectations.expectations.registry import get_expectation_impl, get_metric_kwargs
    from great_expectations.validator.metric_configuration import MetricConfiguration

    over = make_validator(empty_frame(frame, chosen))
    found = []
    for each in chosen:
        if (regex := each.given.get("regex")) is not None and not java_accepts(frame.sparkSession, regex):
            raise ContractError(
                f"The expectation {each.label} can't be evaluated: Java does not accept its regex.",
                table=contract.table,
                next_step="Use the syntax of java.util.regex.Pattern (docs.oracle.com).",
            )
        model: Any = get_expectation_impl(each.type)
        metric = f"{model.map_metric}.condition"
        asked = get_metric_kwargs(metric, configuration=_configuration(0, each, resolve_parameters(contract, each)))
        domain, values = asked["metric_domain_kwargs"], asked["metric_value_kwargs"]
        condition, _, _ = over.get_metric(MetricConfiguration(metric, domain, values))
        found.append((each, condition))
    return found


def failure_reason(each: Expectation) -> Column:
    """The error detail of a row that fails the expectation."""
    label, too_long = F.lit(each.label), is_too_long(each)
    if too_long is None:
        return label
    why = f": the text has more than {MAX_REGEX_TEXT:,} characters, too many for a regex that repeats a group"
    return F.when(too_long, F.lit(each.label + why)).otherwise(label)


def is_too_long(each: Expectation) -> Column | None:
    """The condition that a text is too long for the regex, and so unexpected; None if the regex has no such limit."""
    return _too_long(each.columns[0]) if regex_recurses(str(each.given.get("regex", ""))) else None


def _too_long(column: str) -> Column:
    return F.length(f"`{column}`") > MAX_REGEX_TEXT


@dataclass(frozen=True)
class KnownMetrics:
    """Metrics that were computed before.

    Attributes:
        values: by Great Expectations' metric id.
        expectations: those that need no other metric.
        empty: a frame of the expectations' columns, without rows.
    """

    values: Mapping[Any, Any]
    expectations: Sequence[Expectation]
    empty: DataFrame


def validate(
    contract: Contract, asked: Sequence[tuple[Expectation, dict[str, Any]]], rows: DataFrame, known: KnownMetrics
) -> list[dict[str, Any]]:
    """Evaluate expectations, each with its `resolve_parameters`, on rows.

    Returns:
        For each expectation fields of a row of `sluice.quality`.
    """
    show = contract.expectations_show_values
    given = [(contract.expectations.index(each), each, values) for each, values in asked]
    by_position: dict[int, Any] = {}
    if mine := [g for g in given if g[1] in known.expectations]:
        by_position |= validate_by_position(make_validator(known.empty, known.values), mine, 0)
    if mine := [g for g in given if g[1] not in known.expectations]:
        by_position |= validate_by_position(make_validator(rows), mine, MAX_VALUES_SHOWN if show else 0)
    return [_to_result(by_position[position], each, show) for position, each, _ in given]


def validate_by_position(
    over: Validator, given: Sequence[tuple[int, Expectation, dict[str, Any]]], shown: int
) -> dict[int, Any]:
    """Validate expectations together.

    Args:
        given: position, expectation and parameters.
        shown: at most how many unexpected values a result lists.

    Returns:
        Results by position: Great Expectations returns those that raised first.
    """
    results: list[Any] = over.graph_validate(
        [_configuration(position, each, values) for position, each, values in given],
        {"result_format": {"result_format": "BASIC", "partial_unexpected_count": shown}, "catch_exceptions": True},
    )
    return {(r.expectation_config.meta or {})["position"]: r for r in results if r.expectation_config}


def empty_frame(frame: DataFrame, expectations: Iterable[Expectation]) -> DataFrame:
    """A frame of the expectations' columns without rows, to ask for conditions without reading anything."""
    names = {name for each in expectations for name in each.columns}
    fields = [F.lit(None).cast(f.dataType).alias(f.name) for f in frame.schema.fields if f.name in names]
    # Great Expectations needs a table with at least one column.
    return frame.sparkSession.range(0).select(*(fields or [F.col("id")]))


_BOUNDED = {f"expect_column_{what}_to_be_between" for what in ("values", "min", "max")}


def resolve_parameters(
    contract: Contract, each: Expectation, result: dict[str, Any] | None = None, past: Sequence[float] = ()
) -> dict[str, Any]:
    """An expectation's parameters with values of the column's type, and with bounds for maximum age and drift.

    Args:
        result: the expectation's result, which receives the bounds of a drift.
        past: what earlier batches observed.
    """
    types = {**{c.name: c.type for c in contract.columns}, **KAFKA_TYPES}
    given = each.given
    if each.columns and each.kind.column_kind in ("flat", "ordered"):
        kind = types[each.columns[0]]
        for name in ("min_value", "max_value", "value_set"):
            value = given.get(name)
            if isinstance(value, list):
                given[name] = [_value(to_column_value(v, kind), each, str(kind)) for v in value]
            elif isinstance(value, str) or (value is not None and str(kind) == "float" and each.type in _BOUNDED):
                given[name] = _value(to_column_value(value, kind), each, str(kind))
    if each.max_age:
        given["min_value"] = _value(datetime.now(UTC) - each.max_age, each, str(types[each.columns[0]]))
    if each.drift and result is not None:
        low, high = _drift(each, past)
        if low is not None and high is not None:
            result |= {"low": low, "high": high}
        counts = each.type.endswith("count_to_be_between")
        given["min_value"] = _LEAST if low is None else math.floor(low) if counts else low
        if high is not None:
            given["max_value"] = math.ceil(high) if counts else high
    return given


def _drift(each: Expectation, past: Sequence[float]) -> tuple[float | None, float | None]:
    if each.drift is None or len(past) < min(each.drift.at_least, each.drift.batches):
        return None, None
    # A producer may send the greatest double: neither the sum nor a bound may overflow.
    mean = statistics.mean(past)
    spread = min(abs(mean) * each.drift.tolerance, sys.float_info.max - abs(mean))
    return mean - spread, mean + spread


def _value(value: Any, each: Expectation, kind: str) -> Any:
    """A time as Great Expectations compares it: by row, in Spark, with its zone; in Python, as collected, without."""
    if not isinstance(value, datetime) or each.kind.by_row:
        return value
    return (value.astimezone() if kind == "timestamptz" else value).replace(tzinfo=None)


def _configuration(position: int, each: Expectation, given: Mapping[str, Any]) -> Any:
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    return ExpectationConfiguration(type=each.type, kwargs=dict(given), meta={"position": position})


def make_validator(frame: DataFrame, known: Mapping[Any, Any] | None = None) -> Validator:
    """A validator of a frame.

    Args:
        known: values by metric id; then Spark is not asked, and other metrics are only recorded, without a value.
    """
    _import_gx()
    return compat.make_validator(frame, known, _text_limit)


def _text_limit(metric: MetricConfiguration) -> Column | None:
    """The condition that a text is too long for the metric's regex; None for other metrics."""
    if regex_recurses(metric.metric_value_kwargs.get("regex") or "") and metric.metric_name.endswith(".condition"):
        return _too_long(metric.metric_domain_kwargs["column"])
    return None


def _to_result(validation: ExpectationValidationResult, each: Expectation, show: bool) -> dict[str, Any]:
    """The result's counts, and its values if the contract shows them."""
    error = _error_name(validation.exception_info)
    if error is not None:
        return {"success": False, "error": error}
    result = validation.result
    observed = result.get("observed_value")
    if observed is None and each.type.endswith("_to_be_between") and not each.kind.by_row:
        return {"success": None}  # too few values for the statistic
    found: dict[str, Any] = {"success": bool(validation.success)}
    if "element_count" in result:
        found |= {"unexpected": result.get("unexpected_count") or 0, "missing": result.get("missing_count")}
    if each.kind.is_statistic and observed is not None and math.isfinite(observed):
        found["observed"] = float(observed)
    values = result.get("partial_unexpected_list") or observed
    if show and values is not None:
        found["values"] = json.dumps(values, default=str)
    return found


def _error_name(info: Mapping[str, Any] | None) -> str | None:
    """The error class of an evaluation that failed; None if it did not. The message may hold a record's values."""
    each = [info] if info and "raised_exception" in info else list((info or {}).values())
    messages = [str(e.get("exception_message")) for e in each if isinstance(e, Mapping) and e.get("raised_exception")]
    if not messages:
        return None
    error_class = re.search(r"\[([A-Z][A-Z0-9_.]+)\]", messages[0])
    return error_class[1] if error_class else "an error of Great Expectations"
