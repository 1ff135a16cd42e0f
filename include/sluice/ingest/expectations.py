"""Evaluate a contract's expectations for a batch before main moves.

`mark_failing_rows` marks rows that fail an expectation of severity `quarantine_rows` while they are decoded. An
`Evaluation` tests the others on the rows to be published; `evaluate_and_store` writes all results to `sluice.quality`.
Plain aggregates are enough for some, which are computed while the batch is published.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.batch import Batch
from sluice.contract.change_events import DELETED_SOURCE
from sluice.contract.contract import Contract
from sluice.contract.expectations import Expectation
from sluice.contract.types import Primitive
from sluice.errors import ExpectationsFailedError
from sluice.formats.internal_columns import DETAIL, ERROR, FIELD, OP, UPSERT
from sluice.ingest import great_expectations
from sluice.ingest.check import SEQ
from sluice.ingest.context import Context
from sluice.ledger import quality_table
from sluice.ledger.quality_table import ExpectationResult

log = logging.getLogger(__name__)

FAILED = "expectation"
"""The quarantine's `error_class` of rows that fail an expectation."""
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


def _is_row(contract: Contract) -> Column:
    """The condition that a record is a row that expectations apply to; a soft delete may have only its key."""
    ends = [c for c in contract.columns if c.source == DELETED_SOURCE] if contract.deletes == "soft" else []
    rows = F.col(OP) == UPSERT
    for each in ends:  # true, or the time of the delete
        not_deleted = ~F.col(each.name) if each.type == Primitive("boolean") else F.lit(False)
        rows = rows & (F.col(each.name).isNull() | not_deleted)
    return rows


def mark_failing_rows(decoded: DataFrame, contract: Contract) -> DataFrame:
    """Mark decoded records that fail an expectation of severity `quarantine_rows` as errors."""
    conditions = great_expectations.failure_conditions(contract, decoded)
    if not conditions:
        return decoded
    applies = F.col(ERROR).isNull() & _is_row(contract)
    reasons = [F.when(applies & condition, great_expectations.failure_reason(each)) for each, condition in conditions]
    fields = [F.when(applies & condition, F.lit(",".join(each.columns))) for each, condition in conditions]
    failed = F.coalesce(*reasons).isNotNull()
    changed = {
        ERROR: F.when(failed, F.lit(FAILED)).otherwise(F.col(ERROR)),
        DETAIL: F.when(failed, F.concat_ws("; ", *reasons)).otherwise(F.col(DETAIL)),
        FIELD: F.when(failed, F.coalesce(*fields)).otherwise(F.col(FIELD)),
    }
    return decoded.select(*[changed[c].alias(c) if c in changed else F.col(c) for c in decoded.columns])


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


class Evaluation:
    """A contract's expectations over decoded and marked rows.

    Attributes:
        columns: aggregates that most expectations need. They are observed while the rows are published, or computed in
            a pass of their own.
        quarantining: the expectations of severity `quarantine_rows`.
        aggregates: the others that need nothing but aggregates.
        empty: a frame of the expectations' columns, without rows.
    """

    def __init__(self, contract: Contract, rows: DataFrame) -> None:
        self.contract, self.rows = contract, rows
        self.columns: list[Column] = []
        self.quarantining: list[Expectation] = []
        self.aggregates = Aggregates()
        if not contract.expectations:
            return
        self.empty = great_expectations.empty_frame(rows, contract.expectations)
        conditions = great_expectations.failure_conditions(contract, rows)
        self.quarantining = [each for each, _ in conditions]
        good = _is_row(contract) & F.col(ERROR).isNull()
        decoded = _is_row(contract) & (F.col(ERROR).isNull() | (F.col(ERROR) == FAILED))
        self.aggregates = plan_aggregates(contract, self.empty, good)
        named = {"good": F.count_if(good), "decoded": F.count_if(decoded)}
        named |= {f"failed{i}": F.count_if(decoded & condition) for i, (_, condition) in enumerate(conditions)}
        for i, each in enumerate(contract.expectations):
            if (too_long := great_expectations.is_too_long(each)) is not None:
                named[f"too_long{i}"] = F.count_if((decoded if each in self.quarantining else good) & too_long)
        named |= {f"measure{i}": column for i, column in enumerate(self.aggregates.columns.values())}
        self.columns = [column.alias(f"_sluice_{name}") for name, column in named.items()]

    def evaluate(
        self,
        batches: Sequence[Batch],
        past: Sequence[ExpectationResult] = (),
        observed: Mapping[str, Any] | None = None,
    ) -> list[ExpectationResult]:
        """Evaluate each batch, in order; nothing is stored.

        Args:
            past: results of earlier batches, for drift.
            observed: the values of `columns`, of a single batch; without them the rows are counted.
        """
        expectations = self.contract.expectations
        rest = [e for e in expectations if e not in self.aggregates.expectations and e not in self.quarantining]
        names = {name for each in (expectations if observed is None else rest) for name in each.columns}
        types = {n: self.rows.schema[n].dataType for n in self.rows.columns if n in names}
        values = [clamp_to_python(F.col(n), kind).alias(n) for n, kind in types.items()]
        rows = self.rows.select(*values, OP, ERROR, SEQ)
        if rest:
            # Several queries will read them. They are stored on disk because the heap is small and batches are not.
            rows = rows.persist(StorageLevel.DISK_ONLY)
        try:
            if observed is None:
                counts = {row[SEQ]: row.asDict() for row in rows.groupBy(SEQ).agg(*self.columns).collect()}
            else:
                counts = {batches[0].seq: dict(observed)}
            history, results = list(past), []
            for batch in batches:
                good = rows.where(F.col(ERROR).isNull() & _is_row(self.contract) & (F.col(SEQ) == batch.seq))
                found = self._evaluate_batch(batch, good.drop(OP, ERROR, SEQ), counts.get(batch.seq, {}), history)
                history += [r for r in found if r.observed is not None]
                results += found
            return results
        finally:
            if rest:
                rows.unpersist()

    def _evaluate_batch(
        self, batch: Batch, good: DataFrame, counts: Mapping[str, Any], history: Sequence[ExpectationResult]
    ) -> list[ExpectationResult]:
        began = time.monotonic()
        found: list[dict[str, Any]] = []
        records = counts.get("_sluice_decoded", 0)
        for i, each in enumerate(self.quarantining):
            failed = counts.get(f"_sluice_failed{i}", 0)
            found.append(
                self._describe(each, counts) | {"success": failed == 0, "records": records, "unexpected": failed}
            )
        records = counts.get("_sluice_good", 0)
        asked: list[tuple[dict[str, Any], Expectation, dict[str, Any]]] = []
        for each in (e for e in self.contract.expectations if e.severity != "quarantine_rows"):
            result = self._describe(each, counts) | {"success": None, "records": records}
            found.append(result)
            # How many records a backfill slice has, and how old they are, was chosen by an operator.
            about_batch = each.max_age or each.drift or each.kind.column_kind == "whole"
            if (records or not each.columns) and not (batch.is_slice and about_batch):
                past = _past_values(history, each, batch.seq)
                given = great_expectations.resolve_parameters(self.contract, each, result, past)
                asked.append((result, each, given))
        if asked:
            measures = self.aggregates.columns
            # A batch without rows has no counts: all are 0.
            values = {m: counts[f"_sluice_measure{i}"] if counts else 0 for i, m in enumerate(measures)}
            known = great_expectations.KnownMetrics(values, self.aggregates.expectations, self.empty)
            answers = great_expectations.validate(self.contract, [(e, given) for _, e, given in asked], good, known)
            for (result, each, _), answer in zip(asked, answers, strict=True):
                result.update(answer)
                if each.drift and "low" not in result:
                    result["success"] = None
        place: dict[str, Any] = {"table": self.contract.table, "topic": batch.topic, "batch_seq": batch.seq}
        seconds = time.monotonic() - began
        return [ExpectationResult(**each, **place, seconds=seconds) for each in found]

    def _describe(self, each: Expectation, counts: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **dict(zip(quality_table.EXPECTATION_KEY, each.name, strict=True)),
            "too_long": counts.get(f"_sluice_too_long{self.contract.expectations.index(each)}"),
        }


def evaluate_and_store(
    context: Context,
    evaluation: Evaluation,
    batches: Sequence[Batch],
    observed: Mapping[str, Any] | None = None,
) -> list[ExpectationResult]:
    """Evaluate the expectations for each batch that has offsets, and store the results in `sluice.quality`.

    Args:
        observed: the values of the evaluation's columns, if they were observed; used for a single batch only.

    Raises:
        ExpectationsFailedError: one of severity `block` failed; it names the first batch concerned.
    """
    contract = evaluation.contract
    batches, single = [b for b in batches if b.span], len(batches) == 1
    if not contract.expectations or not batches:
        return []
    topic, first = batches[-1].topic, batches[0].seq
    # Batches without records have no statistics, so look further back than needed.
    back = 2 * max((e.drift.batches for e in contract.expectations if e.drift), default=0)
    past = quality_table.read_previous_statistics(context.catalog, contract.table, topic, first, back) if back else []
    results = evaluation.evaluate(batches, past, observed if single else None)
    quality_table.write_results(context.catalog, results, run_id=context.run_id)
    for result in results:
        if result.success is False:
            log.warning("%s from %s batch %s: %s", contract.table, topic, result.batch_seq, result.summary)
    for batch in batches:
        failed = [r for r in results if r.batch_seq == batch.seq and r.severity == "block" and r.success is False]
        if failed:
            raise ExpectationsFailedError(
                f"Expectations of severity block failed: {'; '.join(r.summary for r in failed)}.",
                table=contract.table,
                topic=batch.topic,
                batch=batch.seq,
            )
    return results


def _past_values(history: Sequence[ExpectationResult], each: Expectation, seq: int) -> list[float]:
    """What an expectation observed in the last batches before this one, newest first."""
    if each.drift is None:
        return []
    column = ",".join(each.columns)
    mine = [r for r in history if (r.expectation, r.column) == (each.type, column) and r.batch_seq < seq]
    # One of another name, with other bounds, observed the same value of a batch.
    newest = sorted({r.batch_seq: r for r in mine}.values(), key=lambda r: -r.batch_seq)
    return [r.observed for r in newest[: each.drift.batches] if r.observed is not None]
