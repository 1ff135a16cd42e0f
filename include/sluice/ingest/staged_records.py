"""Staged batches as publish reads them: their rows decoded, how many there are, and whether all are still there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.batch import Batch
from sluice.contract.contract import Contract
from sluice.errors import AuditError
from sluice.formats.decode import decode
from sluice.iceberg import cursor, snapshots, table_names, tables
from sluice.ingest import decoded_rows, expectations
from sluice.ingest.landing import Context
from sluice.ledger import backlog
from sluice.ledger.accepted_gaps import covers
from sluice.ledger.offsets_table import Ledger

# Decoding is what costs, not reading: by Iceberg's own sizes (128 MB, 4 MB to open a file) a batch of a million small
# records is one split, and all cores but one stand idle.
LEAST_SPLIT, MOST_SPLIT = 512 << 10, 4 << 20
TASKS_PER_CORE = 4

# Iceberg's vectorised reader gathers so many records, 5,000 by default, in one buffer, which ends at 2 GB. How large
# they are only their files tell, and bytes there are a fraction of those in memory.
AT_ONCE = 200
LARGE = 512
"""Of more bytes in the files on average, records are read one by one: that takes a third more time of small ones."""


def how(staging: Table | None, batches: Sequence[Batch] = (), cores: int = 1) -> dict[str, str]:
    """How to read these staged batches, or whatever staging has, as Iceberg's read options."""
    held, records = size(staging, batches), _told(staging, batches, "added-records")
    mean = held / records if held and records else None
    return {**split_by(held, cores), **by_record(mean or (snapshots.bytes_per_record(staging) if staging else None))}


def by_record(mean: float | None) -> dict[str, str]:
    """The same by what a record takes in its files on average; None where that is not known."""
    return {"batch-size": str(AT_ONCE), "vectorization-enabled": str(mean is not None and mean <= LARGE).lower()}


def split_by(size: int | None = None, cores: int = 1) -> dict[str, str]:
    """How to read staged records, as Iceberg's read options: where there are files enough, each core gets a few tasks.

    Args:
        size: bytes of the files to be read, None where that is not known.
    """
    share = MOST_SPLIT if size is None else size // (cores * TASKS_PER_CORE)
    split = min(max(share, LEAST_SPLIT), MOST_SPLIT)
    return {"split-size": str(split), "file-open-cost": str(split // 4)}


def size(staging: Table | None, batches: Sequence[Batch]) -> int | None:
    """The bytes of the batches' files as they were staged, unless a snapshot that told has expired."""
    return _told(staging, batches, "added-files-size")


def _told(staging: Table | None, batches: Sequence[Batch], name: str) -> int | None:
    """The sum of what the snapshots that staged the batches say; None where one has expired, or there is no batch."""
    told = cursor.staged_batches(staging, batches[0].seq - 1) if batches else {}
    mine = with_records(batches)
    if not batches or any(b.seq not in told for b in mine):
        return None
    return sum(int(snapshots.summary(told[b.seq][1]).get(name, 0)) for b in mine)


def decoded(
    context: Context,
    contract: Contract,
    batches: Sequence[Batch],
    splits: Mapping[str, str],
    session: SparkSession,
) -> DataFrame:
    """The batches' records by the contract, marked with what its expectations say of each.

    Args:
        splits: of `how`.
        session: in whose name they are read.
    """
    topic = batches[-1].topic
    staged = session.read.options(**splits).table(
        table_names.spark_name(context.catalog_name, table_names.staging(topic))
    )
    return expectations.marked(decode(staged.where(_read_of(batches)), contract, topic), contract)


def counted(
    context: Context, staging: Table | None, batches: Sequence[Batch], known: Mapping[int, int]
) -> dict[int, int]:
    """How many records of each batch were staged: what staging tells, or is known; else how many there are."""
    told = cursor.staged_batches(staging, batches[0].seq - 1)
    known = {**known, **{seq: int(snapshots.summary(s).get("added-records", "0")) for seq, (_, s) in told.items()}}
    if any(b.seq not in known for b in batches):
        known = {**_there(context, batches), **known}
    return {b.seq: known.get(b.seq, 0) if b.span else 0 for b in batches}


def _there(context: Context, batches: Sequence[Batch]) -> dict[int, int]:
    """How many records each batch has in staging, counted without reading them."""
    name = table_names.spark_name(context.catalog_name, table_names.staging(batches[-1].topic))
    rows = context.spark.table(name).where(_read_of(batches)).groupBy("batch_seq").count().collect()
    return {row["batch_seq"]: row["count"] for row in rows}


def recounted(
    context: Context, contract: Contract, batches: Sequence[Batch], staged: Mapping[int, int], read: int
) -> dict[int, int]:
    """How many records each batch has where others were read than were staged: fewer, if they were given up.

    Raises:
        StagingTrimmedError: somebody deleted records from staging that nobody has given up for this table.
        AuditError: there are more than were staged, or they became others while they were read.
    """
    there = _there(context, batches)
    left = {b.seq: there.get(b.seq, 0) if b.span else 0 for b in batches}
    words = Ledger(context.catalog).gaps([batches[-1].topic])
    lost = [b for b in batches if left[b.seq] < staged[b.seq] and not covers(words, b, contract.table)]
    if lost:
        raise backlog.no_longer_staged(contract.table, lost)
    if sum(left.values()) != read or any(left[b.seq] > staged[b.seq] for b in batches):
        raise AuditError(f"{read} records were read where {sum(staged.values())} were staged.", table=contract.table)
    return left


def with_records(batches: Sequence[Batch]) -> list[Batch]:
    """Those that have anything to read. One that was given up because it was trimmed may still lie there in part."""
    return [b for b in batches if b.span]


def _read_of(batches: Sequence[Batch]) -> Column:
    """Staging's rows of the batches."""
    mine = with_records(batches)
    return decoded_rows.of_batches(mine) if mine else F.lit(False)


def checked(context: Context, contract: Contract, batches: Sequence[Batch]) -> Table | None:
    """The topic's staging table.

    Raises:
        StagingTrimmedError: it no longer keeps the batches' records, or not all of them.
    """
    staging = tables.load(context.catalog, table_names.staging(batches[-1].topic))
    backlog.check_not_trimmed(staging, contract, batches)
    return staging
