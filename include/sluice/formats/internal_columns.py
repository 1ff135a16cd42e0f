"""Names of the temporary columns that readers and `decode` share, and the shape of a parse problem.

Used by the check and publish steps: decoded records carry an operation, an error class, a detail and a field.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F

from sluice.contract.values import quote_name

OP, ERROR, DETAIL, FIELD = "_sluice_op", "_sluice_error", "_sluice_detail", "_sluice_field"
UPSERT, DELETE, IGNORE = "u", "d", "i"

Expression = Callable[[Column], Column]


class RecordPart(NamedTuple):
    """The key or the value of a record, and the columns that a reader adds for it.

    Attributes:
        raw: The staged column with the bytes.
        fields: Struct of the fields read; null where nothing could be read.
        problem: Struct of `detail` and `field`: why the bytes could not be read; null if they could.
        root: Source (`$key`, `$value`) of a key or value that is one scalar, not an object with fields.
        types: Full names of the only record types to read; empty for all. `OTHER_TYPE` is true for other types.
    """

    raw: str
    fields: str
    problem: str
    root: str
    types: tuple[str, ...] = ()


TIMESTAMP_MS = "_kafka_timestamp_ms"
"""Staged column with Kafka's number where it is no time of the years 1 to 9999; there `_kafka_timestamp` is null."""

STAGED_COLUMNS = {name: f"_sluice_{name}" for name in ("key", "value", "headers", "batch_seq", TIMESTAMP_MS)}
"""Staged column to its name after decode, so that the contract's columns may use the original names."""

OTHER_TYPE = "_sluice_other"
"""Whether a record's type is not among `RecordPart.types`; only added if those are given."""

BEST_EFFORT = "sluice.spare"
"""Metadata key of a field whose parse problem is reported only if the record has no other problem."""

ENVELOPE = "sluice.envelope"
"""Metadata key of a field that records of any kind may have, such as an event's operation: it is not of the row."""

FLAT_NAME = "sluice.path"
"""Metadata key of a field that no column reads: its name is names of a source with the dots between them. Its value is
the path that the source means, from the same object on."""

FIELDS, CORRUPT = "_sluice_fields", "_sluice_corrupt"
VALUE = RecordPart("value", FIELDS, "_sluice_problem", "$value")
KEY = RecordPart("key", "_sluice_key_fields", "_sluice_key_problem", "$key")


def join_path(path: str, name: str) -> str:
    """The path of a field inside another, as a contract's `source` has it."""
    return f"{path}.{quote_name(name)}" if path else quote_name(name)


def problem(detail: str | Column, field: str | None = None) -> Column:
    """Why a record could not be read. The detail must not contain values of the record."""
    reason = F.lit(detail) if isinstance(detail, str) else detail
    return F.struct(reason.alias("detail"), F.lit(field).cast("string").alias("field"))


PROBLEM_TYPE = "struct<detail: string, field: string>"

END_MARKER = secrets.token_bytes(6)
"""Appended to what is parsed, because parsers ignore what follows a record. Random, so that no producer can send it."""
