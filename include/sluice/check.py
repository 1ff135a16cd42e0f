"""Check: good rows apart from bad, counted in the same pass that publishes them; quarantine; the verdict.

The counts are observed while the MERGE into the branch runs, so that a batch is decoded once. The verdict falls before
main moves.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from sluice import tables
from sluice.commit import Context
from sluice.contract import KAFKA_COLUMNS, Contract
from sluice.decode import DELETE, DETAIL, ERROR, FIELD, OP, UPSERT, failed_field
from sluice.errors import BlockedError
from sluice.filters import And, equal
from sluice.model import Batch


@dataclass(frozen=True)
class Counts:
    """What one batch held for one table: records, those rejected, those that delete."""

    records: int
    rejected: int
    deleted: int


def _measures() -> list[Column]:
    good_delete = (F.col(OP) == DELETE) & F.col(ERROR).isNull()
    return [
        F.count(F.lit(1)).alias("records"),
        F.count(F.col(ERROR)).alias("rejected"),
        F.count(F.when(good_delete, F.lit(1))).alias("deleted"),
    ]


def good(decoded: DataFrame) -> DataFrame:
    """The rows that the typed table takes, deletes among them."""
    return decoded.where(F.col(ERROR).isNull() & F.col(OP).isin(UPSERT, DELETE))


def observed(decoded: DataFrame) -> tuple[DataFrame, Observation]:
    """The frame, with counts taken as it passes."""
    observation = Observation()
    return decoded.observe(observation, *_measures()), observation


def counts(observation: Observation, decoded: DataFrame, expected: int | None) -> Counts:
    """The observed counts; where the plan left nothing to observe, or tasks ran twice, they are counted anew.

    Args:
        expected: how many records were staged, where that is known.
    """
    if expected == 0:
        return Counts(0, 0, 0)
    try:
        row = observation.get
    except Exception:  # noqa: BLE001 - an empty relation was folded away together with the observation
        row = None
    if row is None or (expected is not None and row["records"] != expected):
        row = decoded.agg(*_measures()).collect()[0].asDict()
    return Counts(int(row["records"]), int(row["rejected"]), int(row["deleted"]))


def quarantine(context: Context, contract: Contract, batch: Batch, decoded: DataFrame, rejected: int) -> None:
    """Overwrite the batch's own rows of the quarantine: run twice, it leaves one copy; a repaired batch leaves none."""
    if rejected == 0:
        table = tables.load(context.catalog, tables.quarantine(contract))
        mine = And(equal("batch_seq", batch.seq), equal("_kafka_topic", batch.topic))
        if table is None or not any(True for _ in table.scan(row_filter=mine).plan_files()):
            return
    tables.ensure_quarantine(context.catalog, contract)
    rows = decoded.where(F.col(ERROR).isNotNull()).select(
        "batch_seq",
        *KAFKA_COLUMNS,
        "key",
        "value",
        "headers",
        F.col(ERROR).alias("error_class"),
        F.col(DETAIL).alias("error"),
        F.when(F.col(ERROR) == "malformed", failed_field(contract)).otherwise(F.col(FIELD)).alias("field"),
        F.current_timestamp().alias("quarantined_at"),
    )
    name = tables.spark_name(context.catalog_name, tables.quarantine(contract))
    rows.writeTo(name).overwrite((F.col("batch_seq") == batch.seq) & (F.col("_kafka_topic") == batch.topic))


def verdict(contract: Contract, batch: Batch, found: Counts) -> None:
    """Refuse a batch with more bad records than the contract tolerates.

    Raises:
        BlockedError: with the counts; the batch stays in staging.
    """
    if found.rejected == 0:
        return
    if contract.errors.tolerance == "none" or found.rejected > contract.errors.max_ratio * found.records:
        limit = 0.0 if contract.errors.tolerance == "none" else contract.errors.max_ratio
        raise BlockedError(
            f"{found.rejected} of {found.records} records don't fit the contract, which tolerates {limit:.2%}.",
            table=contract.table,
            topic=batch.topic,
            batch=batch.seq,
            quarantine=".".join(tables.quarantine(contract)),
        )
