"""Expect: hold a contract's expectations against a batch before main moves.

`marked` sets the rows apart that fail one of severity `quarantine_rows`, in the same pass that decodes them. `judge`
holds the others against the rows that are about to be published, and keeps what all came to in `sluice.quality`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.batch import Batch
from sluice.contract.change_events import DELETED_SOURCE
from sluice.contract.contract import Contract
from sluice.contract.expectations import Expectation
from sluice.contract.types import Primitive
from sluice.errors import ExpectationsFailedError
from sluice.formats.internal_columns import DETAIL, ERROR, FIELD, OP, UPSERT
from sluice.ingest import expectation_aggregates, great_expectations
from sluice.ingest.decoded_rows import SEQ
from sluice.ingest.landing import Context
from sluice.ledger import quality_table
from sluice.ledger.quality_table import Result

log = logging.getLogger(__name__)

FAILED = "expectation"
"""The quarantine's `error_class` of rows that fail an expectation."""


def _is_row(contract: Contract) -> Column:
    """Whether a decoded record is a row; a soft delete is a version that tells of an end, and has what it can tell."""
    ends = [c for c in contract.columns if c.source == DELETED_SOURCE] if contract.deletes == "soft" else []
    rows = F.col(OP) == UPSERT
    for each in ends:  # true, or the moment
        lives = ~F.col(each.name) if each.type == Primitive("boolean") else F.lit(False)
        rows = rows & (F.col(each.name).isNull() | lives)
    return rows


def marked(decoded: DataFrame, contract: Contract) -> DataFrame:
    """The decoded records; those that fail an expectation of severity `quarantine_rows` are errors now."""
    conditions = great_expectations.conditions(contract, decoded)
    if not conditions:
        return decoded
    judged = F.col(ERROR).isNull() & _is_row(contract)
    failing = [F.when(judged & condition, great_expectations.reason(each)) for each, condition in conditions]
    fields = [F.when(judged & condition, F.lit(",".join(each.columns))) for each, condition in conditions]
    names = F.concat_ws("; ", *failing)
    failed = F.coalesce(*failing).isNotNull()
    changed = {
        ERROR: F.when(failed, F.lit(FAILED)).otherwise(F.col(ERROR)),
        DETAIL: F.when(failed, names).otherwise(F.col(DETAIL)),
        FIELD: F.when(failed, F.coalesce(*fields)).otherwise(F.col(FIELD)),
    }
    return decoded.select(*[changed[c].alias(c) if c in changed else F.col(c) for c in decoded.columns])


class Watch:
    """What a contract's expectations need to know of the rows, in aggregates: counts, sums, the least and the greatest.

    They ride on the pass that publishes the rows, or have one of their own for several batches at once.
    """

    def __init__(self, contract: Contract, rows: DataFrame) -> None:
        """Of rows that were decoded and marked; nothing where the contract has no expectations."""
        self.set_apart: list[Expectation] = []
        self.measures = expectation_aggregates.Measures()
        self.columns: list[Column] = []
        if not contract.expectations:
            return
        self.empty = great_expectations.without_rows(rows, contract.expectations)
        conditions = great_expectations.conditions(contract, rows)
        self.set_apart = [each for each, _ in conditions]
        changes = _is_row(contract)
        judged = changes & F.col(ERROR).isNull()
        decoded = changes & (F.col(ERROR).isNull() | (F.col(ERROR) == FAILED))
        self.measures = expectation_aggregates.measures(contract, self.empty, judged)
        counted = {"good": F.count_if(judged), "decoded": F.count_if(decoded)}
        counted |= {f"failed{i}": F.count_if(decoded & condition) for i, (_, condition) in enumerate(conditions)}
        for each in contract.expectations:
            if (too_long := great_expectations.unjudged(each)) is not None:
                of = decoded if each in self.set_apart else judged
                counted[f"too_long{contract.expectations.index(each)}"] = F.count_if(of & too_long)
        counted |= {f"measure{i}": column for i, column in enumerate(self.measures.columns.values())}
        self.columns = [column.alias(f"_sluice_{name}") for name, column in counted.items()]

    def known(self, row: Mapping[str, Any]) -> dict[Any, Any]:
        """What the measures came to, by the metric of Great Expectations that they are."""
        return {metric: row[f"_sluice_measure{i}"] for i, metric in enumerate(self.measures.columns)}


@dataclass
class _Past:
    """The statistics that batches before had; those of the same commit join as they are found."""

    results: list[Result]

    def of(self, each: Expectation, seq: int) -> list[float]:
        """What it observed in the last batches before this one, newest first."""
        column = ",".join(each.columns)
        mine = [r for r in self.results if (r.expectation, r.column) == (each.type, column) and r.batch_seq < seq]
        # Another expectation of the type, with other bounds, has observed the same.
        newest = sorted({r.batch_seq: r for r in mine}.values(), key=lambda r: -r.batch_seq)
        return [r.observed for r in newest[: each.drift.batches] if r.observed is not None] if each.drift else []


def judge(
    context: Context,
    contract: Contract,
    batches: Sequence[Batch],
    rows: DataFrame,
    watch: Watch | None = None,
    seen: Mapping[str, Any] | None = None,
) -> list[Result]:
    """Hold the expectations against each batch, and keep the results in `sluice.quality`.

    Args:
        rows: the batches' decoded and marked records, with their batch's number.
        watch: what is to be known of them.
        seen: what it came to, where it was observed; of several batches it is not told apart, and they are counted.

    Returns:
        The results, batch by batch; none of batches without offsets.

    Raises:
        ExpectationsFailedError: one of severity `block` failed; it names the first batch of which that is true.
    """
    mine = [b for b in batches if b.span]
    if not contract.expectations or not mine:
        return []
    topic, first = mine[-1].topic, mine[0].seq
    # Batches without records were not judged: look somewhat further back than is asked for.
    back = 2 * max((e.drift.batches for e in contract.expectations if e.drift), default=0)
    past = quality_table.observed_before(context.catalog, contract.table, topic, first, back) if back else []
    results = look(contract, mine, rows, past, watch, seen if len(batches) == 1 else None)
    quality_table.keep(context.catalog, results, run_id=context.run_id)
    for result in results:
        if result.success is False:
            log.warning("%s from %s batch %s: %s", contract.table, topic, result.batch_seq, result.told)
    _verdict(contract, mine, results)
    return results


def look(
    contract: Contract,
    batches: Sequence[Batch],
    rows: DataFrame,
    past: Sequence[Result] = (),
    watch: Watch | None = None,
    seen: Mapping[str, Any] | None = None,
) -> list[Result]:
    """The results of each batch, in order; nothing is kept.

    Args:
        rows: the batches' decoded and marked records, with their batch's number.
        past: what batches before observed.
        watch: what is to be known of them.
        seen: what it came to, of one batch; else the rows are counted.
    """
    watch = watch or Watch(contract, rows)
    rest = [e for e in contract.expectations if e not in watch.measures.of and e not in watch.set_apart]
    looked_at = contract.expectations if seen is None else rest
    names = {name for each in looked_at for name in each.columns}
    told = [
        expectation_aggregates.within_python(F.col(n), rows.schema[n].dataType).alias(n)
        for n in rows.columns
        if n in names
    ]
    rows = rows.select(*told, OP, ERROR, SEQ)
    if rest:
        # More than one query will read them. On disk: the heap is small, batches are not.
        rows = rows.persist(StorageLevel.DISK_ONLY)
    try:
        if seen is None:
            counted = {row[SEQ]: row.asDict() for row in rows.groupBy(SEQ).agg(*watch.columns).collect()}
        else:
            counted = {batches[0].seq: dict(seen)}
        known, results = _Past(list(past)), []
        for batch in batches:
            good = rows.where(F.col(ERROR).isNull() & _is_row(contract) & (F.col(SEQ) == batch.seq))
            found = _judged(contract, batch, good, counted.get(batch.seq, {}), watch, known)
            known.results += [r for r in found if r.observed is not None]
            results += found
        return results
    finally:
        if rest:
            rows.unpersist()


def _judged(
    contract: Contract,
    batch: Batch,
    good: DataFrame,
    counted: Mapping[str, Any],
    watch: Watch,
    past: _Past,
) -> list[Result]:
    """The results of one batch."""
    began = time.monotonic()
    found: list[dict[str, Any]] = []
    for i, each in enumerate(watch.set_apart):
        failed = counted.get(f"_sluice_failed{i}", 0)
        records = counted.get("_sluice_decoded", 0)
        about = _about(contract, each, counted)
        found.append(about | {"success": failed == 0, "records": records, "unexpected": failed})
    records = counted.get("_sluice_good", 0)
    asked: list[tuple[dict[str, Any], Expectation, dict[str, Any]]] = []
    for each in (e for e in contract.expectations if e.severity != "quarantine_rows"):
        about = _about(contract, each, counted) | {"success": None, "records": records}
        found.append(about)
        # A slice is no batch: how many records it has, and how old they are, is what somebody asked for.
        of_batches = each.max_age or each.drift or each.kind.of == "whole"
        if (records or not each.columns) and not (batch.is_slice and of_batches):
            asked.append((about, each, great_expectations.parameters(contract, each, about, past.of(each, batch.seq))))
    if asked:
        # Of a batch without rows nothing was counted: then there are none.
        known = watch.known(counted) if counted else dict.fromkeys(watch.measures.columns, 0)
        held = [(each, given) for _, each, given in asked]
        told = great_expectations.ask(contract, held, good.drop(OP, ERROR, SEQ), known, watch.measures.of, watch.empty)
        for (about, each, _), found_of in zip(asked, told, strict=True):
            about.update(found_of)
            if each.drift and "low" not in about:
                about["success"] = None
    seconds = time.monotonic() - began
    about_batch: dict[str, Any] = {
        "table": contract.table,
        "topic": batch.topic,
        "batch_seq": batch.seq,
        "seconds": seconds,
    }
    return [Result(**each, **about_batch) for each in found]


def _about(contract: Contract, each: Expectation, counted: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **dict(zip(quality_table.EXPECTATION, each.name, strict=True)),
        "too_long": counted.get(f"_sluice_too_long{contract.expectations.index(each)}"),
    }


def _verdict(contract: Contract, batches: Sequence[Batch], results: Sequence[Result]) -> None:
    for batch in batches:
        failed = [r for r in results if r.batch_seq == batch.seq and r.severity == "block" and r.success is False]
        if failed:
            raise ExpectationsFailedError(
                f"Expectations of severity block failed: {'; '.join(r.told for r in failed)}.",
                table=contract.table,
                topic=batch.topic,
                batch=batch.seq,
            )
