"""Check: count good, rejected and deleted records in the pass that merges them, and enforce the contract's tolerance.

The counts are observed while the MERGE into the branch runs, so that a batch is decoded once, and checked before main
moves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from sluice.batch import Batch
from sluice.contract.contract import Contract
from sluice.errors import BlockedError
from sluice.formats.internal_columns import DELETE, ERROR, IGNORE, OP, STAGED_COLUMNS, UPSERT
from sluice.iceberg import table_names

log = logging.getLogger(__name__)

SEQ = STAGED_COLUMNS["batch_seq"]
"""The column of decoded records that holds their batch's number."""


@dataclass(frozen=True)
class Counts:
    """Records of batches for one table: all, rejected, deletes, ignored."""

    records: int
    rejected: int
    deleted: int = 0
    ignored: int = 0


def _count_columns() -> list[Column]:
    bad = F.col(ERROR).isNotNull()
    conditions = (F.lit(True), bad, (F.col(OP) == DELETE) & ~bad, (F.col(OP) == IGNORE) & ~bad)
    return [F.count_if(c).alias(name) for name, c in zip(Counts.__match_args__, conditions, strict=True)]


def observe_counts(decoded: DataFrame, more: Sequence[Column] = ()) -> tuple[DataFrame, Observation]:
    """Return the frame with the counts, and further aggregates, observed as it is written."""
    observation = Observation()
    return decoded.observe(observation, *_count_columns(), *more), observation


def read_observation(observation: Observation, expected: int) -> Mapping[str, Any] | None:
    """The observed aggregates; None if there are none, or tasks ran twice.

    Args:
        expected: how many records were staged. If none, nothing may be observed, and waiting for it would not end.
    """
    if not expected:
        return None
    try:
        row = observation.get
    except Py4JJavaError:  # the observed relation was empty, and was dropped from the plan: its row has no schema
        return None
    return row if row and row["records"] == expected else None


def counts_from(row: Mapping[str, Any] | None, decoded: DataFrame, expected: int) -> Counts:
    """The observed counts; without an observation the records are counted in a pass of their own."""
    if expected == 0:
        return Counts(0, 0)
    return count_records(decoded) if row is None else _to_counts(row)


def count_records(decoded: DataFrame) -> Counts:
    """Count the records in a pass of their own."""
    return _to_counts(decoded.agg(*_count_columns()).collect()[0].asDict())


def _to_counts(row: Mapping[str, int]) -> Counts:
    return Counts(**{name: int(row[name]) for name in Counts.__match_args__})


def counts_by_batch(
    decoded: DataFrame, batches: Sequence[Batch], total: Counts, staged: Mapping[int, int]
) -> dict[int, Counts]:
    """The counts by batch number; of several batches without deletes.

    The records are decoded once more only if several batches hold rejected ones.

    Args:
        staged: records by batch number.
    """
    if len(batches) == 1:
        return {batches[0].seq: total}
    rejected: dict[int, int] = {}
    if total.rejected:
        rows = filter_decoded(decoded, F.col(ERROR).isNotNull()).groupBy(SEQ).count().collect()
        rejected = {row[SEQ]: row["count"] for row in rows}
    return {b.seq: Counts(staged[b.seq], rejected.get(b.seq, 0)) for b in batches}


def check_tolerance(
    contract: Contract,
    batches: Sequence[Batch],
    counts: Mapping[int, Counts],
    count_excused: Callable[[], Mapping[int, int]] = dict,
    find_tolerated: Callable[[], Collection[int]] = frozenset,
) -> None:
    """Refuse a batch with more rejected records than the contract tolerates.

    Args:
        counts: by batch number.
        count_excused: returns, by batch number, how many records were rejected because of a change that awaits review
            or was rejected in review. These are left out. Called only if a batch would be refused.
        find_tolerated: returns the numbers of batches that an operator decided to publish. Called likewise.

    Raises:
        BlockedError: with the counts; the batch stays in staging.
    """
    errors = contract.errors
    ratio, number = (0.0, 0) if errors.tolerance == "none" else (errors.max_ratio, errors.max_count)

    def is_over(batch: Batch, excused: Mapping[int, int]) -> bool:
        found, left_out = counts[batch.seq], excused.get(batch.seq, 0)
        return found.rejected - left_out > max(ratio * (found.records - left_out), number)

    excused: Mapping[int, int] = {}
    if errors.tolerance != "none" and any(is_over(batch, excused) for batch in batches):
        excused = count_excused()
    over = [batch for batch in batches if is_over(batch, excused)]
    tolerated = find_tolerated() if over else ()
    for batch in over:
        if batch.seq in tolerated:
            log.warning("%s: batch %s is published by an operator's decision", contract.table, batch)
        else:
            share = [f"{100 * ratio:.4g}% of a batch"] if ratio else []
            least = [f"{number:,} {'record' if number == 1 else 'records'}"] if number else []
            limit = f"at most {', or '.join([*share, *least])}," if share or least else "none"
            found = counts[batch.seq]
            raise BlockedError(
                f"{found.rejected:,} of {found.records:,} records are quarantined; {limit} may be.",
                table=contract.table,
                topic=batch.topic,
                batch=batch.seq,
                quarantine=".".join(table_names.quarantine(contract)),
            )


def in_batches(batches: Sequence[Batch]) -> Column:
    """The condition that a row of staging or quarantine belongs to one of these batches."""
    return F.col("batch_seq").isin([b.seq for b in batches])


def filter_decoded(decoded: DataFrame, condition: Column) -> DataFrame:
    """Filter decoded records by a condition on what decoding found.

    Spark pushes a plain filter below decoding, and copies the decoding into it for each column that the condition
    names: finding a batch's rejected records would cost up to four times as much as publishing it (SPARK-47672).
    It pushes no filter below an observation.
    """
    return decoded.observe(f"sluice_{uuid4().hex}", F.count(F.lit(1))).where(condition)


def is_good() -> Column:
    """The condition that the typed table takes a decoded record; deletes are among them."""
    return F.col(ERROR).isNull() & F.col(OP).isin(UPSERT, DELETE)
