"""What Great Expectations is asked and what it answers: parameters, conditions by row, results in counts.

Imported here alone, and only where a contract has expectations: it takes seconds. Without a data context: the engine is
given the session and the frame, so that nothing is looked up, kept or sent anywhere.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from threading import Thread
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.contract.columns import KAFKA_TYPES
from sluice.contract.contract import Contract
from sluice.contract.expectations import Expectation, typed
from sluice.errors import ContractError
from sluice.formats.expressions import LONGEST, recurses

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

    # What it says of a metric may hold a value of some record; what matters of it is in its results.
    logging.getLogger("great_expectations").setLevel(logging.CRITICAL)


def takes(session: SparkSession, regex: str) -> bool:
    """Whether Java takes a regular expression, which are not Python's. Of constants, so without a job."""
    try:
        session.sql("SELECT '' RLIKE :regex", {"regex": regex}).collect()
    except PySparkException:
        return False
    return True


def conditions(contract: Contract, frame: DataFrame) -> list[tuple[Expectation, Column]]:
    """For each expectation of severity `quarantine_rows` the condition that a row fails it."""
    chosen = [e for e in contract.expectations if e.severity == "quarantine_rows"]
    if not chosen:
        return []
    _great_expectations()
    from great_expectations.expectations.registry import get_expectation_impl, get_metric_kwargs
    from great_expectations.validator.metric_configuration import MetricConfiguration

    over = validator(without_rows(frame, chosen))
    found = []
    for each in chosen:
        if (regex := each.given.get("regex")) is not None and not takes(frame.sparkSession, regex):
            raise ContractError(
                f"The expectation {each.label} can't be evaluated: Java does not take its regex.",
                table=contract.table,
                way_out="Write it as Java does: docs.oracle.com, java.util.regex.Pattern.",
            )
        model: Any = get_expectation_impl(each.type)
        metric = f"{model.map_metric}.condition"
        asked = get_metric_kwargs(metric, configuration=_configuration(0, each, parameters(contract, each)))
        domain, values = asked["metric_domain_kwargs"], asked["metric_value_kwargs"]
        condition, _, _ = over.get_metric(MetricConfiguration(metric, domain, values))
        found.append((each, condition))
    return found


def reason(each: Expectation) -> Column:
    """What is told of a row that fails it."""
    label, too_long = F.lit(each.label), unjudged(each)
    if too_long is None:
        return label
    why = f": the text has more than {LONGEST:,} characters, too many for a regex that repeats a group"
    return F.when(too_long, F.lit(each.label + why)).otherwise(label)


def unjudged(each: Expectation) -> Column | None:
    """Whether a row's text is too long to be judged, and so is unexpected; None where no text is."""
    return _too_long(each.columns[0]) if recurses(str(each.given.get("regex", ""))) else None


def _too_long(column: str) -> Column:
    return F.length(f"`{column}`") > LONGEST


def ask(
    contract: Contract,
    asked: Sequence[tuple[Expectation, dict[str, Any]]],
    rows: DataFrame,
    known: Mapping[Any, Any],
    by_known: Sequence[Expectation],
    empty: DataFrame,
) -> list[dict[str, Any]]:
    """Hold expectations, each with its `parameters`, against rows; what each came to, in fields of `quality.Result`.

    Args:
        known: values, by Great Expectations' metric.
        by_known: the expectations that need no more than that, and do not look at the rows any more.
        empty: a frame of the columns that these name, `without_rows`.
    """
    show = contract.expectations_show_values
    given = [(contract.expectations.index(each), each, of) for each, of in asked]
    by_place: dict[int, Any] = {}
    if mine := [g for g in given if g[1] in by_known]:
        by_place |= validated(validator(empty, known), mine, 0)
    if mine := [g for g in given if g[1] not in by_known]:
        by_place |= validated(validator(rows), mine, SHOWN if show else 0)
    return [_told(by_place[place], each, show) for place, each, _ in given]


def validated(over: Validator, given: Sequence[tuple[int, Expectation, dict[str, Any]]], shown: int) -> dict[int, Any]:
    """The results by place: one that could not be evaluated comes first, whatever its place was."""
    told: list[Any] = over.graph_validate(
        [_configuration(place, each, of) for place, each, of in given],
        {"result_format": {"result_format": "BASIC", "partial_unexpected_count": shown}, "catch_exceptions": True},
    )
    return {(t.expectation_config.meta or {})["place"]: t for t in told if t.expectation_config}


def without_rows(frame: DataFrame, looked_at: Iterable[Expectation]) -> DataFrame:
    """An empty frame: where expressions are asked for, or all is known, nothing may be read."""
    names = {name for each in looked_at for name in each.columns}
    fields = [F.lit(None).cast(f.dataType).alias(f.name) for f in frame.schema.fields if f.name in names]
    # Great Expectations looks at the columns of a table, so it has at least one.
    return frame.sparkSession.range(0).select(*(fields or [F.col("id")]))


_BOUNDED = {f"expect_column_{what}_to_be_between" for what in ("values", "min", "max")}


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
            elif isinstance(value, str) or (value is not None and str(kind) == "float" and each.type in _BOUNDED):
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


def validator(frame: DataFrame, known: Mapping[Any, Any] | None = None) -> Validator:
    """A validator of a frame.

    Args:
        known: metrics that are known, by id: what is asked for besides is noted, and has no value.
    """
    _great_expectations()
    from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
    from great_expectations.util import convert_to_json_serializable
    from great_expectations.validator.validator import Validator

    class Quiet(Validator):
        """Without a data context there is no setting for it: no progress bars in a task's log."""

        def _determine_progress_bars(self) -> bool:
            return False

    class Bounded(SparkDFExecutionEngine):
        """Holds no text against a regex that is too long for it: that counts as unexpected."""

        def resolve_metrics(
            self, metrics_to_resolve: Iterable[Any], metrics: Any = None, runtime_configuration: Any = None
        ) -> Any:
            asked = list(metrics_to_resolve)
            found = super().resolve_metrics(asked, metrics, runtime_configuration)
            for each in asked:
                if recurses(each.metric_value_kwargs.get("regex") or "") and each.metric_name.endswith(".condition"):
                    long = _too_long(each.metric_domain_kwargs["column"])
                    condition, *rest = found[each.id]
                    found[each.id] = (F.when(long, True).otherwise(condition), *rest)
            return found

    class Known(Bounded):
        """Answers out of what is known, where Spark would be asked."""

        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self.asked: list[Any] = []
            self.conditions: dict[Any, Column] = {}

        def resolve_metrics(
            self, metrics_to_resolve: Iterable[Any], metrics: Any = None, runtime_configuration: Any = None
        ) -> Any:
            found = super().resolve_metrics(metrics_to_resolve, metrics, runtime_configuration)
            self.conditions |= {i: v[0] for i, v in found.items() if i.metric_name.endswith(".condition")}
            return found

        def resolve_metric_bundle(self, metric_fn_bundle: Iterable[Any]) -> Any:
            asked = [each.metric_configuration for each in metric_fn_bundle]
            self.asked += asked
            return {each.id: convert_to_json_serializable((known or {}).get(each.id)) for each in asked}

    # The session is given: by itself the engine looks for one, and there are several.
    kind = Bounded if known is None else Known
    engine = kind(spark=frame.sparkSession, persist=False)
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
    if observed is None and each.type.endswith("_to_be_between") and not each.kind.by_row:
        return {"success": None}  # of no value, or too few, there is no such statistic
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
