"""Columns of a contract, the inputs of its expressions, and `auto`: columns from the schema registry."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from sluice.contract.types import Fixed, IcebergType, Primitive, is_primitive
from sluice.contract.values import (
    HEADERS_SOURCE,
    KAFKA_COLUMNS,
    KEY_SOURCE,
    VALUE_SOURCE,
    ColumnName,
    ColumnType,
    FieldName,
    Identifier,
    ListField,
    Source,
    StrictBool,
    StrictModel,
    split_path,
)

KAFKA_TYPES: dict[str, IcebergType] = dict(
    zip(KAFKA_COLUMNS, map(Primitive, ("string", "int", "long", "timestamptz")), strict=True)
)
"""Types of the Kafka coordinates in a typed table."""

Format = Literal["json", "json_connect", "json_schema", "avro", "protobuf", "string", "bytes", "int", "long"]
"""`json_connect` is JSON with its schema in each record; `json_schema`, `avro` and `protobuf` are in Confluent's wire
format and need a schema registry; the last four have no fields."""

TEXT_AND_BYTES = ("string", "bytes")
JSON_FORMATS = ("json", "json_connect", "json_schema")
REGISTRY_FORMATS = ("avro", "protobuf", "json_schema")
INTEGER_FORMATS = {"int": ("int", "long"), "long": ("long",)}
UNIT_FORMATS = ("avro", "json_schema", "json_connect")
"""Formats whose schemas may name the unit of a number."""
OBJECT_FORMATS = ("protobuf",)
"""Formats that always have fields; Avro and JSON may have some, the others never do."""

VALID_TO_SOURCE = "$valid_to"
"""Source of the column that holds when a version ended (when the next one begins); null for the current one."""

KAFKA_TIMESTAMP = KAFKA_COLUMNS[3]


class Input(StrictModel):
    """A field that is read for expressions and `where` without being a column of the table.

    Attributes:
        name: Letters, digits and `_`, no leading digit, up to 128 characters; unique among columns and inputs, ignoring
            case.
        type: The type, as Iceberg writes it: `long`, `decimal(10, 2)`, `list<string>`.
        source: Field of the value, `a.b` for a nested one; `$key`, or `$key.a`, for the record's key; `$value` for the
            whole value; `$headers.a` for the last header of that name, or all of them as `list<string>` or
            `list<binary>`; `$op`, `$deleted` and `$source.lsn` of a change event. Default: the name.
        unit: The unit of a whole number that counts time. Records whose schema names another unit are converted; a
            value that is no whole number of the unit, or does not fit, is quarantined. Default: each record's own unit.
            `columns: auto` sets it.
    """

    name: ColumnName
    type: ColumnType
    source: Annotated[Source, Field(validate_default=False)] = ""
    unit: Literal["millis", "micros", "nanos"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _source_is_name(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("source") is None and isinstance(data.get("name"), str):
            return data if data.get("expression") else {**data, "source": data["name"]}
        if isinstance(data, dict) and data.get("expression") and data.get("source") == "":
            return {k: v for k, v in data.items() if k != "source"}  # as model_dump writes it
        return data

    @property
    def described_type(self) -> str:
        """The type as messages have it, with the unit: `long of micros`."""
        return f"{self.type} of {self.unit}" if self.unit else str(self.type)

    @property
    def from_key(self) -> bool:
        """Whether the source is the record's key, or a field of it."""
        return self.source == KEY_SOURCE or self.source.startswith(f"{KEY_SOURCE}.")

    @property
    def key_path(self) -> tuple[str, ...]:
        """Path of the source in the key, outermost first; `$key` for the whole key, empty for a source in the value."""
        if not self.from_key:
            return ()
        return split_path(self.source)[1:] or (KEY_SOURCE,)

    @property
    def header(self) -> str | None:
        """The name of the header that is the source; None for another source."""
        first, *rest = split_path(self.source) if self.source.startswith(HEADERS_SOURCE) else ("",)
        return rest[0] if first == HEADERS_SOURCE and len(rest) == 1 else None

    @property
    def _is_beside_value(self) -> bool:
        return self.from_key or self.is_valid_to or self.header is not None

    @property
    def from_envelope(self) -> bool:
        """Whether the source is in the envelope of a change event, not in its row."""
        return self.source.startswith("$") and self.source != VALUE_SOURCE and not self._is_beside_value

    @property
    def envelope_path(self) -> tuple[str, ...]:
        """Path in the envelope of a source that is there, outermost first."""
        return split_path(self.source.removeprefix("$"))

    @property
    def is_valid_to(self) -> bool:
        """Whether the column holds when a version ended, which is in no record."""
        return self.source == VALID_TO_SOURCE

    @property
    def path(self) -> tuple[str, ...]:
        """Path of the source in the value, outermost first; empty for key and headers, and if no field is read."""
        return () if self._is_beside_value or not self.source else split_path(self.source)


class Auto(StrictModel):
    """Columns from the newest schema of a subject, after those that the contract lists.

    Attributes:
        subject: The subject in the schema registry. Default: the topic's name and `-value` (TopicNameStrategy).
        omit: Fields of the value that become no column.
    """

    subject: Annotated[str, Field(min_length=1)] | None = None
    omit: Annotated[tuple[FieldName, ...], ListField] = ()


def split_auto_columns(data: object) -> object:
    """Return the contract's plain values with `auto` moved from `columns` to a field of its own.

    In the YAML it is the last entry of `columns`, or the only one.

    Raises:
        ValueError: it is not the last entry, or occurs twice.
    """
    if not isinstance(data, dict):
        return data
    listed = data.get("columns")
    if listed == "auto" or (isinstance(listed, dict) and listed.keys() == {"auto"}):
        listed = [listed]
    if not isinstance(listed, list):
        return data
    at = [i for i, each in enumerate(listed) if each == "auto" or (isinstance(each, dict) and each.keys() == {"auto"})]
    if not at:
        return data
    if at != [len(listed) - 1] or data.get("auto") is not None:
        raise ValueError("columns: auto must be the last entry: the schema's other columns follow the listed ones")
    last = listed[-1]
    return {**data, "columns": listed[:-1], "auto": {} if last == "auto" else last["auto"] or {}}


class Column(Input):
    """One column of the typed table: a field, or an expression over inputs and other columns.

    Attributes:
        required: Whether a record without a value is an error. Columns of `identifier` are always required.
        expression: Spark SQL that computes the column, instead of `source`.
        mask: Hides text before the table has it: `sha256` replaces it by a keyed hash, `redact` by `[redacted]`.
        doc: The column's comment in the table's schema.
        renamed_from: The column's previous name in the table: it is renamed and keeps its values. It may stay in the
            file afterwards.
    """

    required: StrictBool = False
    expression: Annotated[str, Field(min_length=1)] | None = None
    mask: Literal["sha256", "redact"] | None = None
    doc: str | None = None
    renamed_from: Identifier | None = None


def is_readable_as(kind: IcebergType, key_format: str) -> bool:
    """Return whether a whole key or value of that format can be read as type `kind`."""
    if key_format in OBJECT_FORMATS:
        return False
    if key_format in INTEGER_FORMATS:
        return str(kind) in INTEGER_FORMATS[key_format]
    if key_format not in TEXT_AND_BYTES:
        return True
    binary = isinstance(kind, Fixed) or kind == Primitive("binary")
    return is_primitive(kind) and binary == (key_format == "bytes")
