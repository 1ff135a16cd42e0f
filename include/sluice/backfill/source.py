"""Reads the records of one slice of a backfill from staging or from quarantine, decoded. Out: DataFrames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.backfill import validate
from sluice.batch import Batch
from sluice.contract.contract import Contract
from sluice.contract.values import KAFKA_COLUMNS
from sluice.formats.decode import decode
from sluice.formats.internal_columns import ERROR, TIMESTAMP_MS
from sluice.iceberg import range_scan, table_names, tables
from sluice.ingest import check, expectations, merge, staged_batches
from sluice.ingest import quarantine as ingest_quarantine
from sluice.ingest.context import Context
from sluice.ledger.slices import Origin

RAW_COLUMNS = ["batch_seq", *KAFKA_COLUMNS[1:], "key", "value", "headers", TIMESTAMP_MS]


@dataclass(frozen=True)
class SliceSource:
    """The records of a slice.

    Attributes:
        replayed: whether the slice is in the table already: then only its quarantined records are read again.
        quarantine_id: the quarantine's snapshot that is read; None where it has none. Records that another attempt
            quarantines later are not read here, so they must not be removed from there.
    """

    context: Context
    contract: Contract
    piece: Batch
    origin: Origin
    replayed: bool = False
    quarantine_id: int | None = None

    @classmethod
    def open(cls, context: Context, contract: Contract, piece: Batch, origin: Origin) -> Self:
        """Fix the quarantine's current snapshot as the one to read."""
        found = tables.load_quarantine(context.catalog, contract)
        snapshot_id = found.metadata.current_snapshot_id if found else None
        return cls(context, contract, piece, origin, quarantine_id=snapshot_id)

    @property
    def reads_quarantine(self) -> bool:
        """Whether it reads quarantined records: most of them are likely to be rejected again."""
        return self.replayed or self.origin == Origin.QUARANTINE

    @property
    def quarantine(self) -> str:
        """The quarantine as Spark names it."""
        return table_names.spark_name(self.context.catalog_name, table_names.quarantine(self.contract))

    def decoded(self, session: SparkSession, *, explain: bool = False) -> DataFrame:
        """The slice's records, each once; with `explain`, errors name the part of an expression that failed."""
        inside = F.expr(merge.in_ranges(self.piece))
        if self.origin == Origin.QUARANTINE:
            # A record that was quarantined without its raw value would be decoded as an empty one.
            raw = self._quarantined(session).where(inside).where(ingest_quarantine.has_raw())
        else:
            name = table_names.spark_name(self.context.catalog_name, table_names.staging(self.piece.topic))
            staging = tables.load_staging(self.context.catalog, self.piece.topic)
            raw = session.read.options(**staged_batches.read_options(staging)).table(name)
            if self.origin == Origin.KAFKA:
                raw = raw.where(F.col("batch_seq") == self.piece.seq)
            else:
                raw = raw.withColumn("_kafka_topic", F.lit(self.piece.topic)).where(inside)
            if self.replayed:
                raw = raw.join(self._quarantined(session).where(inside), validate.KEY, "left_semi")
        raw = raw.select(*(c for c in RAW_COLUMNS if c in raw.columns))
        if self.origin != Origin.KAFKA:  # a record may be there twice: from live ingest and from a backfill
            raw = raw.dropDuplicates(validate.KEY)
        decoded = decode(raw, self.contract, self.piece.topic, explain=explain)
        return expectations.mark_failing_rows(decoded, self.contract)

    def _quarantined(self, session: SparkSession) -> DataFrame:
        snapshot = () if self.quarantine_id is None else (f"snapshot_id_{self.quarantine_id}",)
        name = table_names.spark_name(self.context.catalog_name, (*table_names.quarantine(self.contract), *snapshot))
        return session.read.options(**staged_batches.batch_options(None)).table(name)

    def good_records(self) -> DataFrame:
        """The records that pass now."""
        return check.filter_decoded(self.decoded(self.context.spark), F.col(ERROR).isNull())

    def may_be_quarantined(self) -> bool:
        """Whether the quarantine may hold records of the slice."""
        found = tables.load_quarantine(self.context.catalog, self.contract)
        return found is not None and bool(range_scan.plan_slice_files(found, self.piece))

    def has_quarantined_records_that_pass(self) -> bool:
        """Whether quarantined records of the slice pass now."""
        return self.may_be_quarantined() and not self.good_records().isEmpty()

    def remove_passing_from_quarantine(self) -> None:
        """Remove the records that pass now from quarantine; a second call finds none."""
        if self.may_be_quarantined():
            merge.delete_quarantined(self.good_records().select(*KAFKA_COLUMNS[:3]), self.quarantine, self.piece)
