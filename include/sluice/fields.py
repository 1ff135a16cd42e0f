"""Where a format leaves what it read: the names that formats and decode share."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F


class Side(NamedTuple):
    """The key or the value of a record.

    Attributes:
        raw: The staged column with its bytes.
        fields: The struct of fields that a format adds; null where there are none.
        problem: Why the bytes could not be read, a struct of `detail` and `field` that a format adds; else null.
        whole: The source, and the field, of a key or value that is one thing and no object with fields.
    """

    raw: str
    fields: str
    problem: str
    whole: str


STAGED = {name: f"_sluice_{name}" for name in ("key", "value", "headers", "batch_seq")}
"""What decode calls the record as it was staged: the contract's own columns may have these names."""

FIELDS, CORRUPT = "_sluice_fields", "_sluice_corrupt"
VALUE = Side("value", FIELDS, "_sluice_problem", "$value")
KEY = Side("key", "_sluice_key_fields", "_sluice_key_problem", "$key")


def problem(detail: str | Column, field: str | None = None) -> Column:
    """Why a record could not be read; never with a value of it in it."""
    said = F.lit(detail) if isinstance(detail, str) else detail
    return F.struct(said.alias("detail"), F.lit(field).cast("string").alias("field"))


NO_PROBLEM = "struct<detail: string, field: string>"
