"""What Great Expectations is asked and what it answers: parameters, conditions by row, results in counts.

Imported here alone, and only where a contract has expectations: it takes seconds. Without a data context: the engine is
given the session and the frame, so that nothing is looked up, kept or sent anywhere.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from threading import Thread
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T

from sluice.contract import Contract, Expectation
from sluice.contract_checks import KAFKA_TYPES
from sluice.contract_expectations import typed

if TYPE_CHECKING:
    from great_expectations.core.expectation_validation_result import ExpectationValidationResult
    from great_expectations.validator.validator import Validator

SHOWN = 20
_LEAST = -(10**15)


def warm(contracts: Iterable[Contract]) -> None:
    """Begin to import Great Expectations where it will be needed, while Spark reads the first batch."""
    if any(c.expectations for c in contracts):
        Thread(target=_great_expectations, daemon=True).start()


def _great_expectations() -> None:
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations.expectations.core  # noqa: F401 - registers what a configuration names


def conditions(contract: Contract, frame: DataFrame) -> list[tuple[Expectation, Column]]:
    """For each expectation of severity `quarantine_rows` the condition that a row fails it."""
    chosen = [e for e in contract.expectations if e.severity == "quarantine_rows"]
    if not chosen:
        return []
    _great_expectations()
    from great_expectations.expectations.registry import get_expectation_impl, get_metric_kwargs
    from great_expectations.validator.metric_configuration import MetricConfiguration

    # Over a frame without rows: what is asked for are expressions, and nothing may be read to get them.
    names = {name for each in chosen for name in each.columns}
    schema = T.StructType([T.StructField(f.name, f.dataType) for f in frame.schema.fields if f.name in names])
    validator = _validator(frame.sparkSession.createDataFrame([], schema))
    found = []
    for each in chosen:
        model: Any = get_expectation_impl(each.type)
        metric = f"{model.map_metric}.condition"
        asked = get_metric_kwargs(metric, configuration=_configuration(0, each, parameters(contract, each)))
        domain, values = asked["metric_domain_kwargs"], asked["metric_value_kwargs"]
        condition, _, _ = validator.get_metric(MetricConfiguration(metric, domain, values))
        found.append((each, condition))
    return found


def ask(
    contract: Contract, asked: Iterable[tuple[Expectation, dict[str, Any]]], rows: DataFrame
) -> list[dict[str, Any]]:
    """Hold expectations, each with its `parameters`, against rows; what each came to, in fields of `quality.Result`."""
    given = [(contract.expectations.index(each), each, of) for each, of in asked]
    show = contract.expectations_show_values
    counts = {"result_format": "BASIC", "partial_unexpected_count": SHOWN if show else 0}
    told = _validator(rows).graph_validate(
        [_configuration(place, each, of) for place, each, of in given],
        {"result_format": counts, "catch_exceptions": True},
    )
    # One that could not be evaluated comes first, whatever its place was.
    by_place = {(t.expectation_config.meta or {}).get("place"): t for t in told if t.expectation_config}
    return [_told(by_place[place], each, show) for place, each, _ in given]


def parameters(
    contract: Contract, each: Expectation, about: dict[str, Any] | None = None, past: Sequence[float] = ()
) -> dict[str, Any]:
    """What Great Expectations is given: values as the column's type has them, and bounds that depend on the moment.

    Args:
        about: the result, which learns the bounds of a drift.
        past: what batches before observed.
    """
    types = {**{c.name: c.type for c in contract.columns}, **KAFKA_TYPES}
    given = each.given
    if each.columns and each.kind.of in ("flat", "ordered"):
        kind = types[each.columns[0]]
        for name in ("min_value", "max_value", "value_set"):
            value = given.get(name)
            if isinstance(value, list):
                given[name] = [_value(typed(v, kind), each, str(kind)) for v in value]
            elif isinstance(value, str):
                given[name] = _value(typed(value, kind), each, str(kind))
    if each.max_age:
        given["min_value"] = _value(datetime.now(UTC) - each.max_age, each, str(types[each.columns[0]]))
    if each.drift and about is not None:
        low, high = _drift(each, past)
        if low is not None and high is not None:
            about |= {"low": low, "high": high}
        counts = each.type.endswith("count_to_be_between")
        given["min_value"] = _LEAST if low is None else math.floor(low) if counts else low
        if high is not None:
            given["max_value"] = math.ceil(high) if counts else high
    return given


def _drift(each: Expectation, past: Sequence[float]) -> tuple[float | None, float | None]:
    if each.drift is None or len(past) < min(each.drift.at_least, each.drift.batches):
        return None, None
    mean = math.fsum(past) / len(past)
    spread = abs(mean) * each.drift.tolerance
    return mean - spread, mean + spread


def _value(value: Any, each: Expectation, kind: str) -> Any:
    """A moment as Great Expectations compares it: in Spark with its zone, in Python as PySpark collects it, without."""
    if not isinstance(value, datetime) or each.kind.by_row:
        return value
    return (value.astimezone() if kind == "timestamptz" else value).replace(tzinfo=None)


def _configuration(place: int, each: Expectation, given: Mapping[str, Any]) -> Any:
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    return ExpectationConfiguration(type=each.type, kwargs=dict(given), meta={"place": place})


def _validator(frame: DataFrame) -> Validator:
    _great_expectations()
    from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
    from great_expectations.validator.validator import Validator

    class Quiet(Validator):
        """Without a data context there is no setting for it: no progress bars in a task's log."""

        def _determine_progress_bars(self) -> bool:
            return False

    # The session is given: by itself the engine looks for one, and there are several.
    engine = SparkDFExecutionEngine(spark=frame.sparkSession, persist=False)
    engine.load_batch_data("batch", frame)
    return Quiet(execution_engine=engine)


def _told(told: ExpectationValidationResult, each: Expectation, show: bool) -> dict[str, Any]:
    """The result's counts; of its values only what the contract shows."""
    raised = _raised(told.exception_info)
    if raised is not None:
        return {"success": False, "error": raised}
    result = told.result
    observed = result.get("observed_value")
    found: dict[str, Any] = {"success": bool(told.success)}
    if "element_count" in result:
        found |= {"unexpected": result.get("unexpected_count") or 0, "missing": result.get("missing_count")}
    if each.kind.told and observed is not None and math.isfinite(observed):
        found["observed"] = float(observed)
    values = result.get("partial_unexpected_list") or observed
    if show and values is not None:
        found["values"] = json.dumps(values, default=str)
    return found


def _raised(info: Mapping[str, Any] | None) -> str | None:
    """Why it could not be evaluated: the class of the error alone, as its message may hold a value."""
    each = [info] if info and "raised_exception" in info else list((info or {}).values())
    messages = [str(e.get("exception_message")) for e in each if isinstance(e, Mapping) and e.get("raised_exception")]
    if not messages:
        return None
    named = re.search(r"\[([A-Z][A-Z0-9_.]+)\]", messages[0])
    return named[1] if named else "an error of Great Expectations"
