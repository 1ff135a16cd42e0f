"""Check: good rows apart from bad, counted in the same pass that publishes them; quarantine; the verdict.

The counts are observed while the MERGE into the branch runs, so that a batch is decoded once. The verdict falls before
main moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from sluice.batch import Batch
from sluice.contract.contract import Contract
from sluice.errors import BlockedError
from sluice.formats.internal_columns import DELETE, ERROR, IGNORE, OP
from sluice.iceberg import table_names
from sluice.ingest import decoded_rows
from sluice.ingest.decoded_rows import SEQ


@dataclass(frozen=True)
class Counts:
    """What batches held for one table: records, those rejected, those that delete, those passed over."""

    records: int
    rejected: int
    deleted: int = 0
    ignored: int = 0


def _measures() -> list[Column]:
    bad = F.col(ERROR).isNotNull()
    conditions = (F.lit(True), bad, (F.col(OP) == DELETE) & ~bad, (F.col(OP) == IGNORE) & ~bad)
    return [F.count_if(c).alias(name) for name, c in zip(Counts.__match_args__, conditions, strict=True)]


def observed(decoded: DataFrame, more: Sequence[Column] = ()) -> tuple[DataFrame, Observation]:
    """The frame, with counts taken as it passes.

    Args:
        more: further aggregates.
    """
    observation = Observation()
    return decoded.observe(observation, *_measures(), *more), observation


def seen(observation: Observation, expected: int) -> Mapping[str, Any] | None:
    """What was observed; None where the plan left nothing to observe, or tasks ran twice.

    Args:
        expected: how many records were staged. Of none there may be no observation, and waiting for it has no end.
    """
    try:
        row = observation.get if expected else None
    except Exception:  # noqa: BLE001 - an empty relation was folded away together with the observation
        return None
    return row if row and row["records"] == expected else None


def counts(row: Mapping[str, Any] | None, decoded: DataFrame, expected: int) -> Counts:
    """The counts that were `seen`; else they are counted anew."""
    if expected == 0:
        return Counts(0, 0)
    return counted(decoded) if row is None else _counts(row)


def counted(decoded: DataFrame) -> Counts:
    """The counts, in a pass of their own."""
    return _counts(decoded.agg(*_measures()).collect()[0].asDict())


def _counts(row: Mapping[str, int]) -> Counts:
    return Counts(**{name: int(row[name]) for name in Counts.__match_args__})


def by_batch(
    decoded: DataFrame, batches: Sequence[Batch], total: Counts, staged: Mapping[int, int]
) -> dict[int, Counts]:
    """What each of several batches held, without the deletes; the records are decoded once more only to find bad ones.

    Args:
        staged: records by batch number.
    """
    if len(batches) == 1:
        return {batches[0].seq: total}
    bad: dict[int, int] = {}
    if total.rejected:
        rows = decoded_rows.sifted(decoded, F.col(ERROR).isNotNull()).groupBy(SEQ).count().collect()
        bad = {row[SEQ]: row["count"] for row in rows}
    return {b.seq: Counts(staged[b.seq], bad.get(b.seq, 0)) for b in batches}


def verdict(
    contract: Contract,
    batches: Sequence[Batch],
    found: Mapping[int, Counts],
    excused: Callable[[], Mapping[int, int]] = dict,
) -> None:
    """Refuse a batch with more bad records than the contract tolerates.

    Args:
        excused: how many of the bad ones, by batch number, wait for a person's answer, or have got it; asked where a
            batch would be refused.

    Raises:
        BlockedError: with the counts; the batch stays in staging.
    """
    errors = contract.errors
    share, count = (0.0, 0) if errors.tolerance == "none" else (errors.max_ratio, errors.max_count)

    def too_many(number: int, others: Mapping[int, int]) -> bool:
        known = others.get(number, 0)
        return found[number].rejected - known > max(share * (found[number].records - known), count)

    others: Mapping[int, int] = {}
    if errors.tolerance != "none" and any(too_many(batch.seq, others) for batch in batches):
        others = excused()
    for batch in batches:
        here = found[batch.seq]
        if too_many(batch.seq, others):
            tolerated = f"{share:.2%}{f' or {count}' if count else ''}"
            raise BlockedError(
                f"{here.rejected} of {here.records} records don't fit the contract, which tolerates {tolerated}.",
                table=contract.table,
                topic=batch.topic,
                batch=batch.seq,
                quarantine=".".join(table_names.quarantine(contract)),
            )
