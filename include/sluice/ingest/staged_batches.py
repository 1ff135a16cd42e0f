"""Staged batches as publish reads them: opened from staging, decoded by the contract, counted, and checked for loss.

In: consecutive batches of one topic and a contract. Out: a frame of decoded records, and how many each batch holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.batch import Batch, merge_batches
from sluice.contract.contract import Contract
from sluice.errors import AuditError
from sluice.formats.decode import decode
from sluice.iceberg import cursor, snapshots, table_names, tables
from sluice.ingest import check, expectations
from sluice.ingest.context import Context
from sluice.ledger import backlog
from sluice.ledger.accepted_gaps import is_skipped_by_table
from sluice.ledger.offsets_table import Ledger

# Decoding costs more than reading. With Iceberg's defaults (splits of 128 MB, 4 MB to open a file) a batch of a million
# small records is one split, and all cores but one are idle.
LEAST_SPLIT, MOST_SPLIT = 512 << 10, 4 << 20
TASKS_PER_CORE = 4

# Iceberg's vectorised reader collects this many records (5,000 by default) in one buffer, whose limit is 2 GB. Only
# the files' sizes show how large records are, and compressed bytes are a fraction of those in memory.
BATCH_SIZE = 200
LARGE_RECORD_BYTES = 512
"""Records above this average size in the files are read without vectorisation, which takes a third longer."""


@dataclass(frozen=True)
class StagedBatches:
    """Consecutive batches of one topic in its staging table, as one publish reads them.

    Attributes:
        contract: the active contract of the typed table, by which records are decoded.
        staging: the topic's staging table when the batches were opened; None if it does not exist.
        known_counts: records by batch number, as far as this run staged them.
    """

    context: Context
    contract: Contract
    batches: Sequence[Batch]
    staging: Table | None
    known_counts: Mapping[int, int]

    @classmethod
    def open(
        cls, context: Context, contract: Contract, batches: Sequence[Batch], known_counts: Mapping[int, int]
    ) -> Self:
        """Open the batches.

        Raises:
            StagingTrimmedError: staging no longer holds all of their records.
        """
        return cls(context, contract, batches, load_untrimmed(context, contract, batches), known_counts)

    @cached_property
    def whole(self) -> Batch:
        """The batches' ranges as one batch."""
        return merge_batches(self.batches)

    @cached_property
    def _options(self) -> dict[str, str]:
        return read_options(self.staging, self.batches, self.context.spark.sparkContext.defaultParallelism)

    def decode(self, session: SparkSession | None = None, *, explain: bool = False) -> DataFrame:
        """The decoded records; those that fail a row expectation are marked as errors.

        Args:
            session: the session to read in. By default the application's, for commits that must not carry the publish
                commit's properties.
            explain: whether errors name the part of an expression that failed, which takes longer.
        """
        topic = self.batches[-1].topic
        staged = (session or self.context.spark).read.options(**self._options).table(_spark_name(self.context, topic))
        decoded = decode(staged.where(_is_in(self.batches)), self.contract, topic, explain=explain)
        return expectations.mark_failing_rows(decoded, self.contract)

    def count(self) -> dict[int, int]:
        """How many records of each batch were staged: by staging's snapshots, else as known, else counted."""
        found = cursor.read_staged_batches(self.staging, self.batches[0].seq - 1)
        added = {seq: int(snapshots.summary(s).get("added-records", "0")) for seq, (_, s) in found.items()}
        known = {**self.known_counts, **added}
        if any(b.seq not in known for b in self.batches):
            known = {**self._count_rows(), **known}
        return {b.seq: known.get(b.seq, 0) if b.span else 0 for b in self.batches}

    def recount(self, staged: Mapping[int, int], read: int) -> dict[int, int]:
        """How many records each batch has now, if another number was read than was staged.

        Args:
            staged: records by batch number, from `count`.
            read: how many were read.

        Raises:
            StagingTrimmedError: records were deleted from staging, and no accepted gap covers them for this table.
            AuditError: there are more than were staged, or the number changed while they were read.
        """
        rows = self._count_rows()
        left = {b.seq: rows.get(b.seq, 0) if b.span else 0 for b in self.batches}
        gaps = Ledger(self.context.catalog).gaps([self.batches[-1].topic])
        table = self.contract.table
        lost = [b for b in self.batches if left[b.seq] < staged[b.seq] and not is_skipped_by_table(gaps, b, table)]
        if lost:
            raise backlog.staging_trimmed_error(table, lost)
        if sum(left.values()) != read or any(left[b.seq] > staged[b.seq] for b in self.batches):
            raise AuditError(f"{read} records were read, but {sum(staged.values())} were staged.", table=table)
        return left

    def check_still_there(self) -> None:
        """Check that no records were deleted while they were read.

        Raises:
            StagingTrimmedError: staging no longer holds all of them.
        """
        load_untrimmed(self.context, self.contract, self.batches)

    def _count_rows(self) -> dict[int, int]:
        """Rows by batch number in staging, counted from metadata alone."""
        rows = self.context.spark.table(_spark_name(self.context, self.batches[-1].topic)).where(_is_in(self.batches))
        return {row["batch_seq"]: row["count"] for row in rows.groupBy("batch_seq").count().collect()}


def load_untrimmed(context: Context, contract: Contract, batches: Sequence[Batch]) -> Table | None:
    """Load the topic's staging table.

    Raises:
        StagingTrimmedError: it no longer holds all of the batches' records.
    """
    staging = tables.load_staging(context.catalog, batches[-1].topic)
    backlog.check_not_trimmed(staging, contract, batches)
    return staging


def with_records(batches: Sequence[Batch]) -> list[Batch]:
    """The batches that have something to read. A trimmed batch that was skipped may still be in staging in part."""
    return [b for b in batches if b.span]


def read_options(staging: Table | None, batches: Sequence[Batch] = (), cores: int = 1) -> dict[str, str]:
    """Iceberg's read options for these batches, or for all of staging if none are given."""
    size, records = staged_bytes(staging, batches), _sum_of(staging, batches, "added-records")
    mean = size / records if size and records else None
    if mean is None and staging is not None:
        mean = snapshots.bytes_per_record(staging)
    return {**split_options(size, cores), **batch_options(mean)}


def batch_options(mean: float | None) -> dict[str, str]:
    """Iceberg's read options by the average bytes of a record in the files; None if that is not known."""
    vectorized = mean is not None and mean <= LARGE_RECORD_BYTES
    return {"batch-size": str(BATCH_SIZE), "vectorization-enabled": str(vectorized).lower()}


def split_options(size: int | None = None, cores: int = 1) -> dict[str, str]:
    """Iceberg's read options that give each core a few tasks, where there are enough files.

    Args:
        size: bytes of the files to read; None if that is not known.
    """
    share = MOST_SPLIT if size is None else size // (cores * TASKS_PER_CORE)
    split = min(max(share, LEAST_SPLIT), MOST_SPLIT)
    return {"split-size": str(split), "file-open-cost": str(split // 4)}


def staged_bytes(staging: Table | None, batches: Sequence[Batch]) -> int | None:
    """The bytes of the batches' files when they were staged; None if one of the snapshots has expired."""
    return _sum_of(staging, batches, "added-files-size")


def _sum_of(staging: Table | None, batches: Sequence[Batch], metric: str) -> int | None:
    """The sum of a metric of the snapshots that staged the batches; None if one has expired, or without batches."""
    staged = cursor.read_staged_batches(staging, batches[0].seq - 1) if batches else {}
    mine = with_records(batches)
    if not batches or any(b.seq not in staged for b in mine):
        return None
    return sum(int(snapshots.summary(staged[b.seq][1]).get(metric, 0)) for b in mine)


def _spark_name(context: Context, topic: str) -> str:
    return table_names.spark_name(context.catalog_name, table_names.staging(topic))


def _is_in(batches: Sequence[Batch]) -> Column:
    """The condition that a row of staging belongs to one of the batches."""
    mine = with_records(batches)
    return check.in_batches(mine) if mine else F.lit(False)
