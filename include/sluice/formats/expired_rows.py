"""Keeps records from becoming rows past the contract's retention. In: decoded records. Out: their operations."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache

from pyspark.sql import Column
from pyspark.sql import functions as F

from sluice.contract.contract import Contract
from sluice.formats.internal_columns import DELETE, IGNORE, UPSERT


def without_expired(op: Column, contract: Contract) -> Column:
    """The operation of each record, after its columns are known.

    An expired version of a key deletes the key's row: the row of an older version must not stay.
    """
    if contract.retention is None:
        return op
    is_expired = F.col(contract.retention.column) < F.lit(contract.retention_cutoff(_now()))
    return F.when((op == UPSERT) & is_expired, DELETE if contract.keyed else IGNORE).otherwise(op)


@cache
def _now() -> datetime:
    """The same for all steps of an application, which may decode a batch several times."""
    return datetime.now(UTC)
