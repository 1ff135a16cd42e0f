"""Types of a contract's values (names, durations, timestamps, topics, …), each with its check.

The checks raise ValueError with a message for the contract's author; `contract.folder` adds file, line and field.
"""

from __future__ import annotations

import os
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

from sluice.contract.types import IcebergType, MapOf, Primitive, parse_type, walk_types

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
"""Names of tables, namespaces and columns: those that every engine accepts without quotes."""
TABLE_LENGTH = 200
"""Longest full name of a table: Airflow's task and run ids contain it, and are limited to 250 characters."""

KAFKA_COLUMNS = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp")
"""The record's coordinates in Kafka: columns of every typed table besides the contract's."""

MAX_PARTITION, MAX_OFFSET = 2**31 - 1, 2**63 - 1
"""Limits of Kafka's protocol."""

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

PREFIX_VARIABLE = "SLUICE_NAMESPACE_PREFIX"
"""Environment variable with the prefix of all namespaces, so that two Sluices can share a catalog."""

NAMESPACE_PREFIX = os.environ.get(PREFIX_VARIABLE, "")
"""The prefix of Sluice's own namespaces, and of the first namespace of each typed table."""

OWN_NAMESPACES = frozenset(
    f"{prefix}{name}"
    for prefix in ("", NAMESPACE_PREFIX)
    for name in ("sluice", "sluice_deletes", "sluice_quarantine", "sluice_staging")
)
"""Namespaces of Sluice's own tables: the ledger, and each table's deletes, quarantine and staging tables."""

KEY_SOURCE = "$key"
HEADERS_SOURCE = "$headers"
"""A column with this `source` holds the record's key."""

TEMPLATE = "{topic}"
"""A contract whose table name contains it is a template: one table for each topic."""

VALUE_SOURCE = "$value"
"""A column with this `source` holds the whole value of a record, where that has no fields."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NAME = re.compile(r"`((?:[^`]|``)+)`|([^.`][^.]*)")
_ENVELOPE = re.compile(r"\$(?!key\b)[a-z_]+(\.[A-Za-z_][A-Za-z0-9_]*)*")
_GROUP = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")
_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,39}")
_DURATION = re.compile(r"([1-9][0-9]{0,6}) ?([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class StrictModel(BaseModel):
    """Base of all models of a contract: frozen, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True)


class FieldErrors:
    """Collects the errors of several fields of one model, and raises them as one pydantic error."""

    def __init__(self) -> None:
        self._found: list[InitErrorDetails] = []

    def add(self, *location: str | int, message: str) -> None:
        """Add `message` for the field at `location`, such as `("columns", 2, "name")`."""
        # Passed as an argument: pydantic would interpret braces in the message.
        error = PydanticCustomError("contract", "{message}", {"message": message})
        self._found.append(InitErrorDetails(type=error, loc=location, input=None))

    def raise_any(self, title: str) -> None:
        """Raise the collected errors, if any.

        Raises:
            ValidationError: with all of them.
        """
        if self._found:
            raise ValidationError.from_exception_data(title, self._found)


def find_prefix_problem() -> str:
    """Return what is wrong with the prefix of namespaces; empty if nothing is."""
    # Hive and Glue store names in lower case. With `sluice_`, namespace `staging` would be that of the staging tables.
    if not NAMESPACE_PREFIX or (_PREFIX.fullmatch(NAMESPACE_PREFIX) and not NAMESPACE_PREFIX.startswith("sluice")):
        return ""
    form = "a lower-case letter, then at most 39 lower-case letters, digits and _; and not begin with 'sluice'"
    return f"{PREFIX_VARIABLE}={quote(NAMESPACE_PREFIX)} is not a prefix of namespaces: it must be {form}"


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def quote(value: object) -> str:
    """Return the repr of `value`, cut to 60 characters, for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _sequence(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def as_tuple(value: object) -> object:
    """Return a list, or a single text, as a tuple; anything else as it is."""
    return (value,) if isinstance(value, str) else _sequence(value)


def _identifier(value: str) -> str:
    if not IDENTIFIER.fullmatch(value):
        _refuse(f"{quote(value)} is not a name: letters, digits and _, not starting with a digit")
    return value


def _table(value: str) -> str:
    *outer, last = value.split(".")
    names = [*outer, last.replace(TEMPLATE, "t", 1)]
    if not outer or not all(IDENTIFIER.fullmatch(name) for name in names):
        _refuse(
            f"{quote(value)} is not namespace.table (letters, digits and _; nested namespaces have more dots)"
            + (f"; {TEMPLATE} may occur once, in the last part" if "{" in value else "")
        )
    if len(value) > TABLE_LENGTH:
        _refuse(f"{quote(value)} has {len(value)} characters: a table's full name is limited to {TABLE_LENGTH}")
    if names[0].lower() in OWN_NAMESPACES:
        _refuse(f"namespace {names[0]!r} is reserved for Sluice's own tables")
    return value


def _column_name(value: str) -> str:
    lower = _identifier(value).lower()
    if lower.startswith("_kafka_"):
        _refuse(f"{value!r} is reserved: names starting with _kafka_ hold the record's coordinates")
    if lower.startswith("_sluice_"):
        _refuse(f"{value!r} is reserved: names starting with _sluice_ are used internally while a batch is read")
    if lower in ICEBERG_COLUMNS:
        _refuse(f"{value!r} is reserved: it is one of Iceberg's own metadata columns")
    return value


def _topic(value: str) -> str:
    if not _TOPIC.fullmatch(value) or value in {".", ".."}:
        _refuse(f"{quote(value)} is not a legal Kafka topic: 1 to 249 letters, digits, '.', '_' and '-'")
    return value


def _group(value: str) -> str:
    if not _GROUP.fullmatch(value) or value in ("defaults", "maintenance", "alerts"):
        form = "a letter, then letters, digits, _ and -, not 'defaults', 'maintenance' or 'alerts'"
        _refuse(f"{quote(value)} is not a group name: {form}")
    return value


def split_path(path: str) -> tuple[str, ...]:
    """Return the names in a path, outermost first: joined by dots, and in backticks where a name has a dot itself.

    Raises:
        ValueError: It is not such a path.
    """
    names, at = list[str](), 0
    while found := _NAME.match(path, at):
        names.append(found[1].replace("``", "`") if found[1] else found[2])
        at = found.end() + 1
        if found.end() == len(path):
            return tuple(names)
        if path[found.end()] != ".":
            break
    _refuse(f"{quote(path)} is not a path: use a field name, or names joined by dots for nested fields")


def root_name(path: str) -> str:
    """Return the first name in the path of an error, which may continue into lists and maps (`a[].b`)."""
    found = _NAME.match(path)
    if not found:
        return ""
    return found[1].replace("``", "`") if found[1] else found[2].rstrip("[]{}")


def quote_name(name: str) -> str:
    """Return a field's name as it is written in a path."""
    needs_quotes = "." in name or (name[:1] in {"`", "$"} and name not in (KEY_SOURCE, VALUE_SOURCE))
    return "`" + name.replace("`", "``") + "`" if needs_quotes else name


def join_names(names: Iterable[str]) -> str:
    """Return the path of nested fields, outermost first."""
    return ".".join(map(quote_name, names))


def _source(value: str) -> str:
    known = value in (KEY_SOURCE, VALUE_SOURCE) or value.startswith((f"{KEY_SOURCE}.", f"{HEADERS_SOURCE}."))
    if value.startswith("$") and not known and not _ENVELOPE.fullmatch(value):
        _refuse(
            f"{quote(value)} is not a source: with a $ there are '{KEY_SOURCE}', '{KEY_SOURCE}.field', "
            f"'{VALUE_SOURCE}', '{HEADERS_SOURCE}.name', and with cdc: '$op', '$deleted', '$source.lsn' and others"
        )
    try:
        names = split_path(value)
    except ValueError:
        names = ()
    if not names or not all(name.isprintable() and name == name.strip() for name in names):
        _refuse(
            f"{quote(value)} is not a source: use a field name, or names joined by dots for nested fields; "
            "a name that has a dot itself is written in backticks"
        )
    if names[0] == HEADERS_SOURCE and len(names) > 2:
        _refuse(f"{quote(value)} is not a source: a header's name that has a dot is written in backticks")
    if not value.startswith("$") and names[0] in (KEY_SOURCE, VALUE_SOURCE, HEADERS_SOURCE):
        _refuse(f"{quote(value)} is not a source: a field of that name can't be read")
    return ".".join((names[0], *map(quote_name, names[1:]))) if value.startswith("$") else join_names(names)


def _field_name(value: str) -> str:
    """A field of the value; with or without backticks, since it can't be a path."""
    names = split_path(value) if value.startswith("`") else (value,)
    if len(names) != 1:
        _refuse(f"{quote(value)} is not a field of the value: name the outermost field")
    return names[0]


def _type(value: object) -> IcebergType:
    if not isinstance(value, str):
        _refuse(f"a type is text such as 'long', not {quote(value)}")
    kind = parse_type(value)
    if any(part == Primitive("time") for part in walk_types(kind)):
        _refuse(
            "Spark cannot open an Iceberg table that has a time column ('Spark does not support time fields'): "
            "use string, or long with the microseconds of the day"
        )
    if any(isinstance(part, MapOf) and part.key != Primitive("string") for part in walk_types(kind)):
        _refuse("map keys must be string, as in JSON: use map<string, …>")
    return kind


MAX_DURATION = timedelta(days=36_500)
"""Longest duration: every calendar has a date so long ago."""


def parse_duration(value: object) -> timedelta:
    """Parse `90s`, `15m`, `2h`, `1d` or `1w`.

    Raises:
        ValueError: It is none of these, or zero.
    """
    if isinstance(value, timedelta) and value > timedelta(0):
        return value
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if not found:
        _refuse(f"{quote(value)} is not a duration: use a whole number and s, m, h, d or w, such as 90s, 15m, 2h, 1d")
    unit, number = timedelta(**{_UNITS[found[2]]: 1}), int(found[1])
    if number > MAX_DURATION // unit:
        _refuse(f"{quote(value)} is longer than {MAX_DURATION.days}d")
    return number * unit


def format_duration(length: timedelta) -> str:
    """Return a duration as `parse_duration` takes it, in the greatest unit that has a whole number of it."""
    seconds = int(length.total_seconds())
    lengths = {unit: timedelta(**{_UNITS[unit]: 1}) // timedelta(seconds=1) for unit in "dhms"}
    unit = next(each for each, size in lengths.items() if not seconds % size)
    return f"{seconds // lengths[unit]}{unit}"


def parse_timestamp(value: object) -> datetime:
    """Parse an ISO 8601 timestamp with a time zone into UTC.

    Raises:
        ValueError: It is not a timestamp, or has no time zone: a guessed one could be hours off.
    """
    try:
        parsed = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        _refuse(f"{quote(value)} is not an ISO timestamp such as 2024-01-31T00:00:00Z")
    if parsed.tzinfo is None:
        _refuse(f"{quote(value)} has no time zone: write it like 2024-01-31T00:00:00Z")
    try:
        return parsed.astimezone(UTC)
    except OverflowError:
        _refuse(f"{quote(value)} is before year 1 or after year 9999 in UTC")


def _start(value: object) -> Literal["earliest", "latest"] | datetime | dict[int, int]:
    if value == "earliest":
        return "earliest"
    if value == "latest":
        return "latest"
    if isinstance(value, dict):
        numbers = [*value.keys(), *value.values()]
        if not value or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
            _refuse("offsets are {partition: offset}: whole numbers from 0")
        if max(value.keys()) > MAX_PARTITION or max(value.values()) > MAX_OFFSET:
            _refuse(f"Kafka has partitions up to {MAX_PARTITION} and offsets up to {MAX_OFFSET}")
        return dict(value)
    try:
        return parse_timestamp(value)
    except ValueError as error:
        _refuse(f"{error} (start is earliest, latest, a timestamp, or {{partition: offset}})")


def _seconds(value: timedelta) -> str:
    seconds = int(value.total_seconds())
    return f"{seconds}s" if seconds < 10_000_000 else format_duration(value)  # a number has seven digits at most


def _plain_start(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def _properties(value: object) -> object:
    if not isinstance(value, dict):
        return value
    # YAML reads `true` and `3` as a boolean and a number; Iceberg's properties are text.
    return {k: str(v).lower() if isinstance(v, (bool, int, float)) else v for k, v in value.items()}


TableName = Annotated[str, AfterValidator(_table)]
ColumnName = Annotated[str, AfterValidator(_column_name)]
Identifier = Annotated[str, AfterValidator(_identifier)]
Topic = Annotated[str, AfterValidator(_topic)]
GroupName = Annotated[str, AfterValidator(_group)]
Source = Annotated[str, AfterValidator(_source)]
FieldName = Annotated[str, Field(min_length=1), AfterValidator(_field_name)]
ColumnType = Annotated[
    IcebergType, PlainValidator(_type, json_schema_input_type=str), PlainSerializer(str, return_type=str)
]
Duration = Annotated[
    timedelta,
    PlainValidator(parse_duration, json_schema_input_type=Annotated[str, Field(pattern=f"^{_DURATION.pattern}$")]),
    PlainSerializer(_seconds, return_type=str),
]
Timestamp = Annotated[
    datetime,
    PlainValidator(parse_timestamp, json_schema_input_type=str),
    PlainSerializer(datetime.isoformat, return_type=str),
]
StartPosition = Annotated[
    Literal["earliest", "latest"] | datetime | dict[int, int],
    PlainValidator(_start, json_schema_input_type=str | dict[int, int]),
    PlainSerializer(_plain_start),
]
Properties = Annotated[
    dict[str, str], BeforeValidator(_properties, json_schema_input_type=dict[str, str | bool | int | float])
]
PositiveInt = Annotated[int, Field(strict=True, ge=1)]
StrictBool = Annotated[bool, Field(strict=True)]
ListField = BeforeValidator(_sequence)
