"""The kinds of value that stand in a contract: names, durations, times, topics, and how each is checked.

`sluice.contract` puts them together. Everything here raises ValueError with a sentence for the person who wrote the
YAML; `sluice.contract.folder` adds file, line and field.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, NoReturn

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from sluice.contract.types import IcebergType, MapOf, Primitive, parse_type, parts

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
"""Names of tables, namespaces and columns: what every engine takes without quotes."""
TABLE_LENGTH = 200
"""Of a table's whole name: Airflow's ids of tasks and runs, which hold it, have 250 characters at most."""

KAFKA_COLUMNS = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp")
"""The record's coordinates, which every typed table carries besides the contract's columns."""

MAX_PARTITION, MAX_OFFSET = 2**31 - 1, 2**63 - 1
"""What Kafka's protocol has room for."""

ICEBERG_COLUMNS = frozenset(
    {
        "_change_ordinal",
        "_change_type",
        "_commit_snapshot_id",
        "_deleted",
        "_file",
        "_last_updated_sequence_number",
        "_partition",
        "_pos",
        "_row_id",
        "_spec_id",
    }
)
"""Iceberg's metadata columns: a column of such a name breaks MERGE."""

OWN_NAMESPACES = frozenset({"sluice", "sluice_deletes", "sluice_quarantine", "sluice_staging"})
"""Namespaces that hold the ledger and what belongs to a table without being it."""

KEY_SOURCE = "$key"
"""A column with this `source` holds the record's key."""

TEMPLATE = "{topic}"
"""Where it stands in a table's name, the contract is a template: one table for each topic."""

VALUE_SOURCE = "$value"
"""A column with this `source` holds the record's value, where that is no object with fields."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_ENVELOPE = re.compile(r"\$(?!key\b)[a-z_]+(\.[A-Za-z_][A-Za-z0-9_]*)*")
_GROUP = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")
_DURATION = re.compile(r"([1-9][0-9]{0,6}) ?([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Strict(BaseModel):
    """Base of all models of a contract: frozen, and unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True)


class Flaws:
    """Gathers what is wrong with several fields of one model, to be raised as one pydantic error."""

    def __init__(self) -> None:
        self._found: list[InitErrorDetails] = []

    def add(self, *location: str | int, message: str) -> None:
        """Note `message` for the field at `location`, such as `("columns", 2, "name")`."""
        # The message goes in as an argument: it may hold braces, which pydantic would take for its own.
        error = PydanticCustomError("contract", "{message}", {"message": message})
        self._found.append(InitErrorDetails(type=error, loc=location, input=None))

    def raise_any(self, title: str) -> None:
        """Raise what was found, if anything."""
        if self._found:
            raise ValidationError.from_exception_data(title, self._found)


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def shown(value: object) -> str:
    """Return `value` for a message: its repr, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _sequence(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def one_or_more(value: object) -> object:
    """A tuple of a list's values, or of one text."""
    return (value,) if isinstance(value, str) else _sequence(value)


def _identifier(value: str) -> str:
    if not IDENTIFIER.fullmatch(value):
        _refuse(f"{shown(value)} is not a name: letters, digits and _, not starting with a digit")
    return value


def _table(value: str) -> str:
    *outer, last = value.split(".")
    names = [*outer, last.replace(TEMPLATE, "t", 1)]
    if not outer or not all(IDENTIFIER.fullmatch(name) for name in names):
        _refuse(
            f"{shown(value)} is not namespace.table (letters, digits and _; deeper namespaces have more dots)"
            + (f"; {TEMPLATE} may stand once, in the last part" if "{" in value else "")
        )
    if len(value) > TABLE_LENGTH:
        _refuse(f"{shown(value)} has {len(value)} characters: a table's whole name has {TABLE_LENGTH} at most")
    if names[0].lower() in OWN_NAMESPACES:
        _refuse(f"namespace {names[0]!r} is Sluice's own")
    return value


def _column_name(value: str) -> str:
    lower = _identifier(value).lower()
    if lower.startswith("_kafka_"):
        _refuse(f"{value!r} is reserved: names starting with _kafka_ hold the record's coordinates")
    if lower.startswith("_sluice_"):
        _refuse(f"{value!r} is reserved: names starting with _sluice_ are in use while a batch is read")
    if lower in ICEBERG_COLUMNS:
        _refuse(f"{value!r} is reserved: it is one of Iceberg's own metadata columns")
    return value


def _topic(value: str) -> str:
    if not _TOPIC.fullmatch(value) or value in {".", ".."}:
        _refuse(f"{shown(value)} is not a legal Kafka topic: 1 to 249 letters, digits, '.', '_' and '-'")
    return value


def _group(value: str) -> str:
    if not _GROUP.fullmatch(value) or value in ("defaults", "maintenance", "alerts"):
        form = "a letter, then letters, digits, _ and -, not 'defaults', 'maintenance' or 'alerts'"
        _refuse(f"{shown(value)} is not a group name: {form}")
    return value


def _source(value: str) -> str:
    known = value in (KEY_SOURCE, VALUE_SOURCE) or value.startswith(f"{KEY_SOURCE}.")
    if value.startswith("$") and not known and not _ENVELOPE.fullmatch(value):
        _refuse(
            f"{shown(value)} is no source: those with a $ are '{KEY_SOURCE}', '{KEY_SOURCE}.field', '{VALUE_SOURCE}', "
            "and with cdc: '$op', '$deleted', '$source.lsn' and alike"
        )
    if not all(part and part.isprintable() and part == part.strip() for part in value.split(".")):
        _refuse(f"{shown(value)} is no source: a field name, or names joined by dots for nested fields")
    return value


def _type(value: object) -> IcebergType:
    if not isinstance(value, str):
        _refuse(f"a type is text such as 'long', not {shown(value)}")
    kind = parse_type(value)
    if any(part == Primitive("time") for part in parts(kind)):
        _refuse(
            "Spark cannot open an Iceberg table that has a time column ('Spark does not support time fields'): "
            "use string, or long with the microseconds of the day"
        )
    if any(isinstance(part, MapOf) and part.key != Primitive("string") for part in parts(kind)):
        _refuse("the keys of a JSON object are text: use map<string, …>")
    return kind


LONGEST = timedelta(days=36_500)
"""So that a moment so long ago is one that every calendar has."""


def parse_duration(value: object) -> timedelta:
    """Parse `90s`, `15m`, `2h`, `1d` or `1w`.

    Raises:
        ValueError: If it is none of these, or zero.
    """
    if isinstance(value, timedelta) and value > timedelta(0):
        return value
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if not found:
        _refuse(f"{shown(value)} is no duration: a whole number and s, m, h, d or w, such as 90s, 15m, 2h, 1d")
    unit, number = timedelta(**{_UNITS[found[2]]: 1}), int(found[1])
    if number > LONGEST // unit:
        _refuse(f"{shown(value)} is longer than {LONGEST.days}d")
    return number * unit


def parse_instant(value: object) -> datetime:
    """Parse an ISO 8601 timestamp with a time zone into UTC.

    Raises:
        ValueError: If it is no timestamp or names no zone: a guessed zone would move the start by hours.
    """
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        _refuse(f"{shown(value)} is not an ISO timestamp such as 2024-01-31T00:00:00Z")
    if moment.tzinfo is None:
        _refuse(f"{shown(value)} names no time zone: write it like 2024-01-31T00:00:00Z")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        _refuse(f"{shown(value)} lies before the year 1 or behind 9999 in UTC")


def _start(value: object) -> Literal["earliest", "latest"] | datetime | dict[int, int]:
    if value == "earliest":
        return "earliest"
    if value == "latest":
        return "latest"
    if isinstance(value, dict):
        numbers = [*value.keys(), *value.values()]
        if not value or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
            _refuse("offsets are {partition: offset}, whole numbers from 0")
        if max(value.keys()) > MAX_PARTITION or max(value.values()) > MAX_OFFSET:
            _refuse(f"Kafka knows partitions up to {MAX_PARTITION} and offsets up to {MAX_OFFSET}")
        return dict(value)
    try:
        return parse_instant(value)
    except ValueError as error:
        _refuse(f"{error} (start is earliest, latest, a timestamp, or {{partition: offset}})")


def _seconds(value: timedelta) -> str:
    return f"{int(value.total_seconds())}s"


def _plain_start(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def _properties(value: object) -> object:
    if not isinstance(value, dict):
        return value
    # YAML reads `true` and `3` as a boolean and a number; Iceberg's properties are all text.
    return {k: str(v).lower() if isinstance(v, (bool, int, float)) else v for k, v in value.items()}


TableName = Annotated[str, AfterValidator(_table)]
ColumnName = Annotated[str, AfterValidator(_column_name)]
Identifier = Annotated[str, AfterValidator(_identifier)]
Topic = Annotated[str, AfterValidator(_topic)]
GroupName = Annotated[str, AfterValidator(_group)]
Source = Annotated[str, AfterValidator(_source)]
Type = Annotated[IcebergType, PlainValidator(_type), PlainSerializer(str, return_type=str)]
Duration = Annotated[timedelta, PlainValidator(parse_duration), PlainSerializer(_seconds, return_type=str)]
Instant = Annotated[datetime, PlainValidator(parse_instant), PlainSerializer(datetime.isoformat, return_type=str)]
Start = Annotated[
    Literal["earliest", "latest"] | datetime | dict[int, int], PlainValidator(_start), PlainSerializer(_plain_start)
]
Properties = Annotated[dict[str, str], BeforeValidator(_properties)]
Whole = Annotated[int, Field(strict=True, ge=1)]
Flag = Annotated[bool, Field(strict=True)]
ListField = BeforeValidator(_sequence)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the known word most like `word`, or nothing."""
    lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(word.lower(), lower, n=1)
    return f" (did you mean {lower[near[0]]!r}?)" if near else ""
