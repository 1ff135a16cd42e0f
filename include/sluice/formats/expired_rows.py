"""Keeps records from becoming rows past the contract's retention. In: decoded records. Out: their operations."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sluice.contract.contract import Contract
from sluice.formats.internal_columns import DELETE, IGNORE, OP, UPSERT


def without_expired(frame: DataFrame, contract: Contract) -> DataFrame:
    """Change the operation of records that would become such rows.

    An expired version of a key deletes the key's row: the row of an older version must not stay.
    """
    if contract.retention is None:
        return frame
    op, instead = F.col(OP), DELETE if contract.keyed else IGNORE
    is_expired = F.col(contract.retention.column) < F.lit(contract.retention_cutoff(_now()))
    return frame.withColumn(OP, F.when((op == UPSERT) & is_expired, instead).otherwise(op))


@cache
def _now() -> datetime:
    """The same for all steps of an application, which may decode a batch several times."""
    return datetime.now(UTC)
