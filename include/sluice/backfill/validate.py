"""Validate: look at what a slice of a backfill left on its branch, before anybody else can see it.

The branch is compared with the records that were read, and with what main held for the same range.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.batch import Batch
from sluice.contract.contract import Contract
from sluice.contract.values import KAFKA_COLUMNS
from sluice.formats.internal_columns import DELETE, OP
from sluice.iceberg import snapshots, table_names, tables
from sluice.iceberg.sql_literals import quoted
from sluice.ingest import merge, merge_history
from sluice.ingest.check import Counts
from sluice.ingest.landing import Attempt, Context

SHOWN = 5
PLACE = list(KAFKA_COLUMNS[1:3])


@dataclass(frozen=True)
class Compared:
    """What a slice changed, and what is wrong with it.

    Attributes:
        before: rows of the range in main.
        after: rows of the range on the branch.
        added: rows that the commit wrote.
        problems: in sentences; empty where the slice may land.
    """

    before: int
    after: int
    added: int
    problems: tuple[str, ...] = ()


def compare(
    context: Context,
    attempt: Attempt,
    contract: Contract,
    piece: Batch,
    good: DataFrame,
    counts: Counts,
    *,
    whole: bool,
) -> Compared:
    """Look at the branch.

    Args:
        good: the records that the typed table takes, deletes among them, in the session that writes.
        whole: each offset of the range must have been a record.
    """
    session = good.sparkSession
    head = (*attempt.identifier, f"snapshot_id_{attempt.head}")
    main = session.table(table_names.spark_name(context.catalog_name, head))
    branch = session.table(attempt.spark_branch)
    inside = F.expr(merge.within(piece))
    before = main.where(inside).count()
    after, places = branch.where(inside).agg(F.count("*"), F.count_distinct(*PLACE)).collect()[0]
    told = snapshots.told_by(snapshots.summary(attempt.result()))
    problems = []
    if whole and counts.records != piece.span:
        problems.append(f"{counts.records:,} records were read where the range spans {piece.span:,}")
    if after != places:
        problems.append(f"{after - places:,} rows of the range stand twice")
    if contract.upsert:
        deletes = tables.load(context.catalog, table_names.deletes(contract))
        problems += _folded(session, attempt, contract, piece, good, context if deletes else None)
    else:
        problems += _appended(branch.where(inside), good)
    beside = after != before + told["added-records"] or any(n for name, n in told.items() if name != "added-records")
    if contract.valid_to:
        problems += _ended(session, attempt, contract, piece, good)
    elif not contract.upsert and beside:
        # Whatever else the commit did, it did outside the range.
        problems.append(f"rows outside the range were touched: {before:,} rows before, {after:,} after, {told}")
    return Compared(before, after, told["added-records"], tuple(problems))


def _appended(rows: DataFrame, good: DataFrame) -> list[str]:
    """Each good record stands there."""
    lost = good.select(*PLACE).join(rows.select(*PLACE), PLACE, "left_anti")
    return _told("good records are not there", lost)


def _ended(session: SparkSession, attempt: Attempt, contract: Contract, piece: Batch, good: DataFrame) -> list[str]:
    """Each version of the range's keys ends where the next one begins."""
    bounds = merge.key_bounds(good, contract, piece.span)
    rows = merge_history.ended(merge_history.of_keys(session, attempt.spark_branch, contract, good, bounds), contract)
    wrong = rows.where(~F.col(merge_history.UNTIL).eqNullSafe(F.col(quoted(contract.valid_to or ""))))
    return _told("versions do not end where the next one begins", wrong)


def _folded(
    session: SparkSession, attempt: Attempt, contract: Contract, piece: Batch, good: DataFrame, known: Context | None
) -> list[str]:
    """Each key stands once, at the same or a later place, or is remembered as deleted later; deleted ones don't stand.

    Args:
        known: to find the memory of deletes by; None where there is none.
    """
    names = list(dict.fromkeys([*contract.identifier, *merge.order_columns(contract)]))
    newest = merge.latest(good, contract)
    standing = session.table(attempt.spark_branch).alias("b")
    for bound in merge.key_bounds(good, contract, piece.span):
        standing = standing.where(F.expr(bound.of("b")))
    there = standing.select(*[F.col(f"b.{quoted(c)}").alias(f"_t_{c}") for c in names]).alias("t")
    same = " AND ".join(f"s.{quoted(c)} = t.{quoted('_t_' + c)}" for c in contract.identifier)
    older = merge.later(contract, ("s", ""), ("t", "_t_"))
    mine = there.join(newest.alias("s"), F.expr(same), "left_semi")
    doubled = mine.groupBy(*[f"_t_{c}" for c in contract.identifier]).count().where("count > 1").alias("t")
    twice = newest.alias("s").join(doubled, F.expr(same), "left_semi")
    kept = newest.where(F.col(OP) != DELETE)
    if known:
        memory = session.table(table_names.spark_name(known.catalog_name, table_names.deletes(contract)))
        kept = merge.without_deleted(kept, contract, memory)
    lost = kept.alias("s").join(there, F.expr(f"{same} AND NOT {older}"), "left_anti")
    undead = newest.where(F.col(OP) == DELETE).alias("s").join(there, F.expr(f"{same} AND {older}"), "left_semi")
    return [
        *_told("keys stand more than once", twice),
        *_told("keys do not stand at their place or a later one", lost),
        *_told("keys that were deleted still stand at an older place", undead),
    ]


def _told(what: str, rows: DataFrame) -> list[str]:
    """How many, and where the first of them are; never their values."""
    number = rows.count()
    if not number:
        return []
    first = [tuple(r) for r in rows.select(*PLACE).orderBy(*PLACE).limit(SHOWN).collect()]
    return [f"{number:,} {what}; (partition, offset) {', '.join(map(str, first))}{', …' if number > SHOWN else ''}"]
