"""Validates a slice of a backfill on its branch, before main moves to it.

In: the branch, the records that were read, main. Out: row counts and problems.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sluice.backfill.ranges import COORDINATES
from sluice.batch import Batch
from sluice.contract.contract import Contract
from sluice.formats.internal_columns import DELETE, OP
from sluice.iceberg import snapshots, table_names, tables
from sluice.iceberg.sql_literals import quote_identifier
from sluice.ingest import merge, merge_history
from sluice.ingest.branch_write import BranchWrite
from sluice.ingest.check import Counts

MAX_SHOWN = 5
KEY = list(COORDINATES)


@dataclass(frozen=True)
class ReplayedRecords:
    """The records that a slice was merged from.

    Attributes:
        good: the records that the typed table takes, deletes among them, in the session that writes.
        complete: whether each offset of the range must have been a record.
    """

    contract: Contract
    piece: Batch
    good: DataFrame
    counts: Counts
    complete: bool


@dataclass(frozen=True)
class BranchComparison:
    """What a slice changed, and what is wrong with it.

    Attributes:
        before: rows of the range in main.
        after: rows of the range on the branch.
        added: rows that the commit wrote.
        problems: in sentences; empty where main may move to the branch.
    """

    before: int
    after: int
    added: int
    problems: tuple[str, ...] = ()


def compare_branch(write: BranchWrite, records: ReplayedRecords) -> BranchComparison:
    """Compare the branch with the records that were read, and with the rows of main in the same range."""
    contract, piece, good = records.contract, records.piece, records.good
    session, catalog_name = good.sparkSession, write.context.catalog_name
    main = session.table(table_names.spark_name(catalog_name, (*write.identifier, f"snapshot_id_{write.head}")))
    branch = session.table(write.spark_branch)
    in_range = F.expr(merge.in_ranges(piece))
    before = main.where(in_range).count()
    after, distinct = branch.where(in_range).agg(F.count("*"), F.count_distinct(*KEY)).collect()[0]
    counts = snapshots.read_row_counts(snapshots.summary(write.written_snapshot()))
    problems = []
    if records.complete and records.counts.records != piece.span:
        problems.append(f"{records.counts.records:,} records were read where the range spans {piece.span:,}")
    if after != distinct:
        problems.append(f"{after - distinct:,} rows of the range are duplicates")
    if contract.upsert:
        problems += _find_wrong_keys(write, records)
    else:
        problems += _find_missing_rows(branch.where(in_range), good)
    other_changes = any(n for name, n in counts.items() if name != "added-records")
    outside = other_changes or after != before + counts["added-records"]
    if contract.valid_to:
        problems += _find_wrong_ends(write, records)
    elif not contract.upsert and outside:
        problems.append(f"rows outside the range changed: {before:,} rows before, {after:,} after, {counts}")
    return BranchComparison(before, after, counts["added-records"], tuple(problems))


def _find_missing_rows(rows: DataFrame, good: DataFrame) -> list[str]:
    """Each good record must be a row."""
    missing = good.select(*KEY).join(rows.select(*KEY), KEY, "left_anti")
    return _describe_rows("good records are missing", missing)


def _find_wrong_ends(write: BranchWrite, records: ReplayedRecords) -> list[str]:
    """Each version of a key in the range must end where the next one begins."""
    contract, good = records.contract, records.good
    bounds = merge.find_key_bounds(good, contract, records.piece.span)
    versions = merge_history.versions_of_keys(good.sparkSession, write.spark_branch, contract, good, bounds)
    rows = merge_history.add_end_times(versions, contract)
    wrong = rows.where(~F.col(merge_history.UNTIL).eqNullSafe(F.col(quote_identifier(contract.valid_to or ""))))
    return _describe_rows("versions do not end where the next one begins", wrong)


def _find_wrong_keys(write: BranchWrite, records: ReplayedRecords) -> list[str]:
    """Each key must be in the table once, at its newest record's version or later, unless a later delete removed it."""
    contract, good = records.contract, records.good
    names = list(dict.fromkeys([*contract.identifier, *merge.order_columns(contract)]))
    newest = merge.keep_latest(good, contract)
    rows = good.sparkSession.table(write.spark_branch).alias("b")
    for bound in merge.find_key_bounds(good, contract, records.piece.span):
        rows = rows.where(F.expr(bound.condition("b")))
    target = rows.select(*[F.col(f"b.{quote_identifier(c)}").alias(f"_t_{c}") for c in names]).alias("t")
    same = " AND ".join(f"s.{quote_identifier(c)} = t.{quote_identifier('_t_' + c)}" for c in contract.identifier)
    older = merge.is_later(contract, ("s", ""), ("t", "_t_"))
    of_keys = target.join(newest.alias("s"), F.expr(same), "left_semi")
    doubled = of_keys.groupBy(*[f"_t_{c}" for c in contract.identifier]).count().where("count > 1").alias("t")
    duplicates = newest.alias("s").join(doubled, F.expr(same), "left_semi")
    expected = newest.where(F.col(OP) != DELETE)
    deletes = table_names.deletes(contract)
    if tables.load_deletes(write.context.catalog, contract):
        deleted = good.sparkSession.table(table_names.spark_name(write.context.catalog_name, deletes))
        expected = merge.drop_deleted(expected, contract, deleted)
    missing = expected.alias("s").join(target, F.expr(f"{same} AND NOT {older}"), "left_anti")
    not_deleted = newest.where(F.col(OP) == DELETE).alias("s").join(target, F.expr(f"{same} AND {older}"), "left_semi")
    return [
        *_describe_rows("keys occur more than once", duplicates),
        *_describe_rows("keys are missing, or have an older version than the record", missing),
        *_describe_rows("deleted keys still have an older version", not_deleted),
    ]


def _describe_rows(what: str, rows: DataFrame) -> list[str]:
    """How many rows, and the offsets of the first ones; never their values."""
    number = rows.count()
    if not number:
        return []
    first = [tuple(r) for r in rows.select(*KEY).orderBy(*KEY).limit(MAX_SHOWN).collect()]
    return [f"{number:,} {what}; (partition, offset) {', '.join(map(str, first))}{', …' if number > MAX_SHOWN else ''}"]
