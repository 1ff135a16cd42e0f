"""TODO docstring of sluice.ingest.decoded_rows."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.batch import Batch
from sluice.formats.internal_columns import DELETE, ERROR, OP, STAGED, UPSERT

SEQ = STAGED["batch_seq"]


def of_batches(batches: Sequence[Batch]) -> Column:
    """The condition that a record of the topic belongs to these batches."""
    return F.col("batch_seq").isin([b.seq for b in batches])


def sifted(decoded: DataFrame, condition: Column) -> DataFrame:
    """The decoded records that a condition takes, which is about what was found of them.

    Spark takes a plain filter below the reading, with a copy of that for each time it names the outcome: to find a
    batch's rejected records would cost up to four times as much as to publish it (Spark 4.2 is to know better:
    SPARK-47672). It takes none below an observation.
    """
    return decoded.observe(f"sluice_{uuid4().hex}", F.count(F.lit(1))).where(condition)


def is_good() -> Column:
    """Whether a decoded record is one that the typed table takes, deletes among them."""
    return F.col(ERROR).isNull() & F.col(OP).isin(UPSERT, DELETE)
