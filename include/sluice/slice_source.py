"""What one slice of a backfill reads: its records in staging, or those of them that were set apart."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice import check, expect, merge, slices, staged_records, tables, validate
from sluice.commit import Context
from sluice.contract import KAFKA_COLUMNS, Contract
from sluice.decode import ERROR, decode
from sluice.model import Batch
from sluice.slices import Origin

RAW = ["batch_seq", *KAFKA_COLUMNS[1:], "key", "value", "headers"]


@dataclass(frozen=True)
class Source:
    """What a slice reads.

    Attributes:
        landed: the slice is in the table: only what it set apart is still to come.
    """

    context: Context
    contract: Contract
    piece: Batch
    origin: Origin
    landed: bool = False

    @property
    def set_apart(self) -> bool:
        """Whether it reads records that were rejected: most of them are going to be again."""
        return self.landed or self.origin == Origin.QUARANTINE

    @property
    def quarantine(self) -> str:
        """The quarantine as Spark names it."""
        return tables.spark_name(self.context.catalog_name, tables.quarantine(self.contract))

    def decoded(self, session: SparkSession) -> DataFrame:
        """The slice's records, each once."""
        inside = F.expr(merge.within(self.piece))
        if self.origin == Origin.QUARANTINE:
            raw = session.table(self.quarantine).where(inside)
        else:
            name = tables.spark_name(self.context.catalog_name, tables.staging(self.piece.topic))
            raw = session.read.options(**staged_records.split_by()).table(name)
            if self.origin == Origin.KAFKA:
                raw = raw.where(F.col("batch_seq") == self.piece.seq)
            else:
                raw = raw.withColumn("_kafka_topic", F.lit(self.piece.topic)).where(inside)
            if self.landed:
                raw = raw.join(session.table(self.quarantine).where(inside), validate.PLACE, "left_semi")
        raw = raw.select(*RAW)
        if self.origin != Origin.KAFKA:  # live and backfilled, a record may lie there twice
            raw = raw.dropDuplicates(validate.PLACE)
        return expect.marked(decode(raw, self.contract, self.piece.topic), self.contract)

    def passed(self) -> DataFrame:
        """The records that are good now."""
        return check.sifted(self.decoded(self.context.spark), F.col(ERROR).isNull())

    def any_quarantined(self) -> bool:
        """Whether the quarantine may hold records of the slice."""
        found = tables.load(self.context.catalog, tables.quarantine(self.contract))
        return found is not None and slices.any_within(found, self.piece)

    def passes(self) -> bool:
        """Whether something in the quarantine is good now."""
        return self.any_quarantined() and not self.passed().isEmpty()

    def release(self) -> None:
        """Take the records that are good now out of the quarantine; run again, it finds none."""
        if self.any_quarantined():
            merge.release(self.passed().select(*KAFKA_COLUMNS[:3]), self.quarantine, self.piece)
