"""Expect: hold a contract's expectations against a batch before main moves.

`marked` sets the rows apart that fail one of severity `quarantine_rows`, in the same pass that decodes them. `judge`
holds the others against the rows that are about to be published, and keeps what all came to in `sluice.quality`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice import expect_gx, quality
from sluice.check import SEQ
from sluice.commit import Context
from sluice.contract import Contract, Expectation
from sluice.decode import DETAIL, ERROR, FIELD, OP, UPSERT
from sluice.errors import ExpectationsFailedError
from sluice.model import Batch
from sluice.quality import Result

log = logging.getLogger(__name__)

FAILED = "expectation"
"""The quarantine's `error_class` of rows that fail an expectation."""


def marked(decoded: DataFrame, contract: Contract) -> DataFrame:
    """The decoded records; those that fail an expectation of severity `quarantine_rows` are errors now."""
    conditions = expect_gx.conditions(contract, decoded)
    if not conditions:
        return decoded
    judged = F.col(ERROR).isNull() & (F.col(OP) == UPSERT)
    failing = [F.when(judged & condition, F.lit(each.label)) for each, condition in conditions]
    fields = [F.when(judged & condition, F.lit(",".join(each.columns))) for each, condition in conditions]
    names = F.concat_ws("; ", *failing)
    failed = F.coalesce(*failing).isNotNull()
    changed = {
        ERROR: F.when(failed, F.lit(FAILED)).otherwise(F.col(ERROR)),
        DETAIL: F.when(failed, names).otherwise(F.col(DETAIL)),
        FIELD: F.when(failed, F.coalesce(*fields)).otherwise(F.col(FIELD)),
    }
    return decoded.select(*[changed[c].alias(c) if c in changed else F.col(c) for c in decoded.columns])


@contextmanager
def kept(contract: Contract, decoded: DataFrame, names: Sequence[str]) -> Iterator[DataFrame]:
    """The typed part of decoded records, kept on disk where expectations look at it, to be decoded once.

    Args:
        names: the columns that go on, besides what each record does and is.
    """
    if not contract.expectations:
        yield decoded
        return
    rows = decoded.select(*names, OP, ERROR, SEQ).persist(StorageLevel.DISK_ONLY)
    try:
        yield rows
    finally:
        rows.unpersist()


@dataclass
class _Past:
    """The statistics that batches before had; those of the same commit join as they are found."""

    results: list[Result]

    def of(self, each: Expectation, seq: int) -> list[float]:
        """What it observed in the last batches before this one, newest first."""
        column = ",".join(each.columns)
        mine = [r for r in self.results if (r.expectation, r.column) == (each.type, column) and r.batch_seq < seq]
        newest = sorted(mine, key=lambda r: -r.batch_seq)
        return [r.observed for r in newest[: each.drift.batches] if r.observed is not None] if each.drift else []


def judge(context: Context, contract: Contract, batches: Sequence[Batch], rows: DataFrame) -> list[Result]:
    """Hold the expectations against each batch, and keep the results in `sluice.quality`.

    Args:
        rows: the batches' decoded and marked records, with their batch's number.

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
    past = quality.observed_before(context.catalog, contract.table, topic, first, back) if back else []
    results = look(contract, mine, rows, past)
    quality.keep(context.catalog, results, run_id=context.run_id)
    for result in results:
        if result.success is False:
            log.warning("%s from %s batch %s: %s", contract.table, topic, result.batch_seq, result.told)
    _verdict(contract, mine, results)
    return results


def look(contract: Contract, batches: Sequence[Batch], rows: DataFrame, past: Sequence[Result] = ()) -> list[Result]:
    """The results of each batch, in order; nothing is kept.

    Args:
        rows: the batches' decoded and marked records, with their batch's number.
        past: what batches before observed.
    """
    conditions = expect_gx.conditions(contract, rows)
    counted = _counted(rows, conditions)
    known, results = _Past(list(past)), []
    for batch in batches:
        good = rows.where(F.col(ERROR).isNull() & (F.col(OP) == UPSERT) & (F.col(SEQ) == batch.seq))
        found = _judged(contract, batch, good, counted.get(batch.seq, {}), [e for e, _ in conditions], known)
        known.results += [r for r in found if r.observed is not None]
        results += found
    return results


def _counted(rows: DataFrame, conditions: Sequence[tuple[Expectation, Column]]) -> Mapping[int, Mapping[str, int]]:
    """Per batch: rows to publish, rows that could be decoded, and how many of these fail each of the conditions."""
    decoded = (F.col(ERROR).isNull() | (F.col(ERROR) == FAILED)) & (F.col(OP) == UPSERT)
    measures = [
        F.count_if(decoded & F.col(ERROR).isNull()).alias("good"),
        F.count_if(decoded).alias("decoded"),
        *[F.count_if(decoded & condition).alias(f"failed{i}") for i, (_, condition) in enumerate(conditions)],
    ]
    return {row[SEQ]: row.asDict() for row in rows.groupBy(SEQ).agg(*measures).collect()}


def _judged(
    contract: Contract,
    batch: Batch,
    good: DataFrame,
    counted: Mapping[str, int],
    set_apart: Sequence[Expectation],
    past: _Past,
) -> list[Result]:
    """The results of one batch."""
    began = time.monotonic()
    found: list[dict[str, Any]] = []
    for i, each in enumerate(set_apart):
        failed = counted.get(f"failed{i}", 0)
        records = counted.get("decoded", 0)
        found.append(_about(each) | {"success": failed == 0, "records": records, "unexpected": failed})
    records = counted.get("good", 0)
    asked: list[tuple[dict[str, Any], Expectation, dict[str, Any]]] = []
    for each in (e for e in contract.expectations if e.severity != "quarantine_rows"):
        about = _about(each) | {"success": None, "records": records}
        found.append(about)
        # A slice is no batch: how many records it has, and how old they are, is what somebody asked for.
        if (records or not each.columns) and not (batch.is_slice and (each.max_age or each.drift)):
            asked.append((about, each, expect_gx.parameters(contract, each, about, past.of(each, batch.seq))))
    if asked:
        told = expect_gx.ask(contract, [(each, given) for _, each, given in asked], good.drop(OP, ERROR, SEQ))
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


def _about(each: Expectation) -> dict[str, Any]:
    return {"expectation": each.type, "column": ",".join(each.columns), "severity": each.severity}


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
