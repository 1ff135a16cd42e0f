"""Columns of a contract, the inputs of their expressions, and what must hold between them. Light, as all of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from sluice.contract.types import Fixed, IcebergType, Primitive, is_primitive
from sluice.contract.values import (
    KAFKA_COLUMNS,
    KEY_SOURCE,
    VALUE_SOURCE,
    ColumnName,
    Flag,
    Identifier,
    ListField,
    Source,
    Strict,
    Type,
)

KAFKA_TYPES: dict[str, IcebergType] = dict(
    zip(KAFKA_COLUMNS, map(Primitive, ("string", "int", "long", "timestamptz")), strict=True)
)
"""Types of the Kafka coordinates in a typed table."""

Format = Literal["json", "json_connect", "json_schema", "avro", "protobuf", "string", "bytes", "int", "long"]
"""`json_connect` is JSON that brings its own schema; the three after it are Confluent's wire format, and need a schema
registry; the last four have no fields."""

PLAIN = ("string", "bytes")
REGISTERED = ("avro", "protobuf", "json_schema")
WHOLE_NUMBERS = {"int": ("int", "long"), "long": ("long",)}
OBJECTS = ("json", "json_schema", "protobuf")
"""Formats that are always objects with fields; `avro` and `json_connect` may be, the others never are."""

VALID_TO_SOURCE = "$valid_to"
"""Source of the column that holds when a version ended: where the next of its key begins; null while there is none."""

KAFKA_TIMESTAMP = KAFKA_COLUMNS[3]


class Input(Strict):
    """A field that is read, for expressions and `where`, and is no column of the table.

    Attributes:
        name: Letters, digits and `_`; unique without regard to case among inputs and columns; not a reserved name.
        type: As Iceberg writes it, for example `decimal(10, 2)` or `list<string>`.
        source: Field of the value, a dotted path of nested fields; `$key` for the record's key, `$key.a` for a field of
            it; `$value` for a value without fields; of a change event also `$op`, `$deleted`, `$source.lsn` and alike.
            Default: the name.
    """

    name: ColumnName
    type: Type
    source: Annotated[Source, Field(validate_default=False)] = ""

    @model_validator(mode="before")
    @classmethod
    def _source_is_name(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("source") is None and isinstance(data.get("name"), str):
            return data if data.get("expression") else {**data, "source": data["name"]}
        if isinstance(data, dict) and data.get("expression") and data.get("source") == "":
            return {k: v for k, v in data.items() if k != "source"}  # as it is written out
        return data

    @property
    def from_key(self) -> bool:
        """Whether it holds the record's key, or a field of it."""
        return self.source == KEY_SOURCE or self.source.startswith(f"{KEY_SOURCE}.")

    @property
    def key_path(self) -> tuple[str, ...]:
        """A source in the key as field names from the outside in, `$key` alone for the whole; empty for the value."""
        if not self.from_key:
            return ()
        return tuple(self.source.split(".")[1:]) or (KEY_SOURCE,)

    @property
    def special(self) -> bool:
        """Whether it is read from the envelope of a change event, instead of from its row."""
        return self.source.startswith("$") and self.source != VALUE_SOURCE and not (self.from_key or self.ends)

    @property
    def ends(self) -> bool:
        """Whether it holds when a version ended, which no record tells."""
        return self.source == VALID_TO_SOURCE

    @property
    def path(self) -> tuple[str, ...]:
        """The source as field names from the outside in; empty for the key, and where no field is read."""
        return () if self.from_key or self.ends or not self.source else tuple(self.source.split("."))


class Auto(Strict):
    """The columns that the newest schema of a subject gives, besides those that the contract lists.

    Attributes:
        subject: The subject in the schema registry. Default: the topic's name and `-value` (TopicNameStrategy).
        omit: Fields of the value that become no column.
    """

    subject: Annotated[str, Field(min_length=1)] | None = None
    omit: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], ListField] = ()


def auto_apart(data: object) -> object:
    """The contract's plain values with `auto`, the last entry of `columns` or all that it says, in a field of its own.

    Raises:
        ValueError: it stands elsewhere, or twice.
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
        raise ValueError("columns: auto stands once, and last: the other columns of the schema follow those listed")
    last = listed[-1]
    return {**data, "columns": listed[:-1], "auto": {} if last == "auto" else last["auto"] or {}}


class Column(Input):
    """One column of the typed table: an input that is kept, or an expression over inputs and other columns.

    Attributes:
        required: Whether null is refused (the record is an error). Default false; true for identifier columns.
        expression: Spark SQL that computes it, instead of `source`.
        mask: How personal data is hidden before the table sees it: `sha256`, keyed by the environment's secret, or
            `redact`.
        doc: Comment kept in the table's schema.
        renamed_from: The name that this column had in the table before: it is renamed, and keeps its values. May stay
            when that is done.
    """

    required: Flag = False
    expression: Annotated[str, Field(min_length=1)] | None = None
    mask: Literal["sha256", "redact"] | None = None
    doc: str | None = None
    renamed_from: Identifier | None = None


def key_holds(kind: IcebergType, key_format: str) -> bool:
    """Tell whether a whole key or value of that format can be read as a value of type `kind`."""
    if key_format in OBJECTS:
        return False
    if key_format in WHOLE_NUMBERS:
        return str(kind) in WHOLE_NUMBERS[key_format]
    if key_format not in PLAIN:
        return True
    binary = isinstance(kind, Fixed) or kind == Primitive("binary")
    return is_primitive(kind) and binary == (key_format == "bytes")
