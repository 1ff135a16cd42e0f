"""What one slice of a backfill reads: its records in staging, or those of them that were set apart."""

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
from sluice.formats.internal_columns import ERROR
from sluice.iceberg import range_scan, table_names, tables
from sluice.ingest import decoded_rows, expectations, merge, staged_records
from sluice.ingest import quarantine as ingest_quarantine
from sluice.ingest.landing import Context
from sluice.ledger.slices import Origin

RAW = ["batch_seq", *KAFKA_COLUMNS[1:], "key", "value", "headers"]


@dataclass(frozen=True)
class Source:
    """What a slice reads.

    Attributes:
        landed: the slice is in the table: only what it set apart is still to come.
        seen: the quarantine's snapshot that is read; None while there is none. What is set apart later, by another
            attempt, is not in what lands here, and must not be taken out of there.
    """

    context: Context
    contract: Contract
    piece: Batch
    origin: Origin
    landed: bool = False
    seen: int | None = None

    @classmethod
    def of(cls, context: Context, contract: Contract, piece: Batch, origin: Origin) -> Self:
        """The source, with the quarantine as it is now."""
        found = tables.load(context.catalog, table_names.quarantine(contract))
        return cls(context, contract, piece, origin, seen=found.metadata.current_snapshot_id if found else None)

    @property
    def set_apart(self) -> bool:
        """Whether it reads records that were rejected: most of them are going to be again."""
        return self.landed or self.origin == Origin.QUARANTINE

    @property
    def quarantine(self) -> str:
        """The quarantine as Spark names it."""
        return table_names.spark_name(self.context.catalog_name, table_names.quarantine(self.contract))

    def decoded(self, session: SparkSession) -> DataFrame:
        """The slice's records, each once."""
        inside = F.expr(merge.within(self.piece))
        if self.origin == Origin.QUARANTINE:
            # Of what was set apart without its raw record nothing can be read: it would pass for another record.
            raw = self._rejected(session).where(inside).where(ingest_quarantine.has_raw())
        else:
            name = table_names.spark_name(self.context.catalog_name, table_names.staging(self.piece.topic))
            staging = tables.load(self.context.catalog, table_names.staging(self.piece.topic))
            raw = session.read.options(**staged_records.how(staging)).table(name)
            if self.origin == Origin.KAFKA:
                raw = raw.where(F.col("batch_seq") == self.piece.seq)
            else:
                raw = raw.withColumn("_kafka_topic", F.lit(self.piece.topic)).where(inside)
            if self.landed:
                raw = raw.join(self._rejected(session).where(inside), validate.PLACE, "left_semi")
        raw = raw.select(*RAW)
        if self.origin != Origin.KAFKA:  # live and backfilled, a record may lie there twice
            raw = raw.dropDuplicates(validate.PLACE)
        return expectations.marked(decode(raw, self.contract, self.piece.topic), self.contract)

    def _rejected(self, session: SparkSession) -> DataFrame:
        then = () if self.seen is None else (f"snapshot_id_{self.seen}",)
        name = table_names.spark_name(self.context.catalog_name, (*table_names.quarantine(self.contract), *then))
        return session.read.options(**staged_records.by_record(None)).table(name)

    def passed(self) -> DataFrame:
        """The records that are good now."""
        return decoded_rows.sifted(self.decoded(self.context.spark), F.col(ERROR).isNull())

    def any_quarantined(self) -> bool:
        """Whether the quarantine may hold records of the slice."""
        found = tables.load(self.context.catalog, table_names.quarantine(self.contract))
        return found is not None and bool(range_scan.files(found, self.piece))

    def passes(self) -> bool:
        """Whether something in the quarantine is good now."""
        return self.any_quarantined() and not self.passed().isEmpty()

    def release(self) -> None:
        """Take the records that are good now out of the quarantine; run again, it finds none."""
        if self.any_quarantined():
            merge.release(self.passed().select(*KAFKA_COLUMNS[:3]), self.quarantine, self.piece)
