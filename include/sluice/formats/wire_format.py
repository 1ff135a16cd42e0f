"""Reads Confluent's wire format: a zero byte, the schema id in four bytes, then what was written with that schema.

The distinct ids of a batch are looked up first; then each record is read with its writer's schema. Schemas of a batch
need not be compatible. A record that cannot be read gets a problem; the batch goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import or_

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.formats.convert import (
    LogicalConversion,
    SchemaMismatchError,
    check_has_row,
    convert_value,
    find_lost_values,
    no_logical_types,
    schema_failures_as_mismatch,
)
from sluice.formats.internal_columns import OTHER_TYPE, PROBLEM_TYPE, RecordPart, problem
from sluice.kafka.registry import SchemaRegistry, WriterSchema

PREFIX_BYTES = 5
GLUE_PREFIX_BYTES = 18
MAX_SCHEMA_IDS = 2000


@dataclass
class SchemaIds:
    """The schema ids of a batch, and which of its records cannot or need not be read.

    Attributes:
        part: The key or the value that has the ids.
        number: The schema id, as a column; null for a record without a valid prefix.
        known: The batch's schemas of the wanted kind, by id.
        problems: Conditions for records that cannot be read because of their schema, and the problem of each.
        other_types: Conditions for records of types that the contract does not read.
    """

    part: RecordPart
    number: Column
    known: dict[int, WriterSchema]
    problems: list[tuple[Column, Column]] = field(default_factory=list)
    other_types: list[Column] = field(default_factory=list)

    @property
    def payload(self) -> Column:
        """The bytes after the prefix."""
        raw = F.col(self.part.raw)
        return F.substring(raw, F.lit(PREFIX_BYTES + 1), F.length(raw))

    def add_problem(self, applies: Column, number: int, error: SchemaMismatchError) -> None:
        """Note that records of a schema do not become what the columns want."""
        self.problems.append((applies, problem(f"schema {number}: {error.message}", error.path or None)))

    def is_other_type(self, applies: Column, number: int, type_name: Callable[[], str | None]) -> bool:
        """Whether records are of a type that the contract does not read; notes their condition.

        Args:
            applies: Which records have the type.
            number: Their schema id.
            type_name: Returns the type's name, None if it has none; called only if the contract names types.
        """
        if not self.part.types or (name := type_name()) in self.part.types:
            return False
        if name is None:
            reason = "the record's type has no name, but the contract selects types by name"
            self.add_problem(applies, number, SchemaMismatchError("", reason))
        else:
            self.other_types.append(applies)
        return True

    def other_type_column(self) -> dict[str, Column]:
        """The column `OTHER_TYPE`, if the contract names types."""
        if not self.part.types:
            return {}
        return {OTHER_TYPE: F.coalesce(reduce(or_, self.other_types, F.lit(False)), F.lit(False))}

    def find_problem(self, fields: Column) -> Column:
        """Why a record could not be read, or null. Meaningless where `OTHER_TYPE` is true.

        Args:
            fields: Null for records whose bytes could not be read.
        """
        raw, name = F.col(self.part.raw), self.part.raw
        first = F.hex(F.substring(raw, 1, 1))
        short = f"the {name} is shorter than the {PREFIX_BYTES} bytes of a schema id prefix"
        found = F.when(raw.isNull(), F.lit(None).cast(PROBLEM_TYPE))
        elsewhere = f"the schema id is in header {_id_header(self.part)}: have the serializer put it before the {name}"
        found = found.when(_has_id_in_header(self.part), problem(elsewhere))
        found = found.when(F.length(raw) < PREFIX_BYTES, problem(short))
        # AWS's prefix: version 3, compression 0 or 5 (zlib), and the schema version's UUID of 16 bytes.
        is_glue = F.hex(F.substring(raw, 1, 2)).isin("0300", "0305") & (F.length(raw) >= GLUE_PREFIX_BYTES)
        glue = f"the {name} has AWS Glue Schema Registry's wire format, which is not supported: have the producer use "
        glue += "a serializer of Confluent's wire format"
        found = found.when(is_glue, problem(glue))
        no_magic = f"the {name} does not begin with the magic byte 0 of Confluent's wire format"
        found = found.when(first != "00", problem(no_magic))
        for applies, reason in self.problems:
            found = found.when(applies, reason)
        unknown = F.concat(F.lit("the schema registry has no schema "), self.number.cast("string"))
        found = found.when(~self.number.isin([*self.known, -1]), problem(unknown))
        unread = F.concat(F.lit(f"the {name} cannot be parsed with schema "), self.number.cast("string"))
        return found.when(fields.isNull(), problem(F.concat(unread, F.lit(": truncated or damaged"))))


def look_up_schemas(frame: DataFrame, part: RecordPart, kind: str) -> SchemaIds:
    """Look up the schemas of a batch: those of its `MAX_SCHEMA_IDS` most frequent ids.

    Args:
        frame: The batch.
        part: The key or the value that has the ids.
        kind: The registry's name for the wanted kind of schema.

    Raises:
        RegistryUnavailableError: The registry does not answer, and an id is not in the local cache.
    """
    raw = F.col(part.raw)
    has_prefix = (F.length(raw) >= PREFIX_BYTES) & (F.hex(F.substring(raw, 1, 1)) == "00") & ~_has_id_in_header(part)
    number = F.when(has_prefix, F.conv(F.hex(F.substring(raw, 2, 4)), 16, 10).cast("long"))
    # Damaged records may have any number of ids; the real ones have the most records.
    counted = frame.where(has_prefix).groupBy(number.alias("id")).count().orderBy(F.desc("count"), "id")
    ids = [row["id"] for row in counted.limit(MAX_SCHEMA_IDS + 1).collect()]
    found = {number: s for number, s in SchemaRegistry().schemas(ids[:MAX_SCHEMA_IDS]).items() if s}
    result = SchemaIds(part, number, {n: s for n, s in found.items() if s.kind == kind})
    if len(ids) > MAX_SCHEMA_IDS:
        rare = F.concat(
            F.lit(f"the {part.raw} has schema id "),
            number.cast("string"),
            F.lit(f", which is not among the {MAX_SCHEMA_IDS} most frequent of the batch; others are not looked up"),
        )
        result.problems.append((~number.isin(ids[:MAX_SCHEMA_IDS]), problem(rare)))
    for other, schema in found.items():
        if schema.kind != kind:
            reason = f"schema {other} is of kind {schema.kind}, but the contract's format needs {kind}"
            result.problems.append((number == other, problem(reason)))
    return result


def _id_header(part: RecordPart) -> str:
    return f"__{part.raw}_schema_id"


def _has_id_in_header(part: RecordPart) -> Column:
    """Whether Confluent's serializer put the schema id into a header: the first bytes are the record's own then.

    An Avro record that begins with nulls and zeros would look like a prefix, and be read with another schema.
    """
    return F.coalesce(F.array_contains(F.col("headers")["key"], _id_header(part)), F.lit(False))


@dataclass(frozen=True)
class Decoded:
    """How the records of one group are read.

    Attributes:
        column: Decodes the payload: costly, evaluated once for a record.
        extract: From the decoded column to the struct of fields; null if the bytes are not of the schema.
        logical: Conversions that the schema's logical types ask for.
    """

    column: Column
    extract: Callable[[Column], Column] = lambda it: it
    logical: LogicalConversion = no_logical_types


@dataclass(frozen=True)
class RecordGroup:
    """Records of a batch that are read in the same way.

    Attributes:
        schema: Their writer's schema.
        applies: Which records these are.
        payload: The bytes after the prefix.
        message: For Protobuf, the indexes that lead to the message's type in the schema.
    """

    schema: WriterSchema
    applies: Column
    payload: Column
    message: tuple[int, ...] = ()


def split_by_schema_id(_: DataFrame, ids: SchemaIds) -> list[RecordGroup]:
    """One group for each schema."""
    return [RecordGroup(schema, ids.number == number, ids.payload) for number, schema in ids.known.items()]


@dataclass(frozen=True)
class RegistryFormat:
    """A format whose schemas are in a registry.

    Attributes:
        kind: The registry's name for its schemas.
        decode: How to read a group; raises SchemaMismatchError if the columns cannot hold what the schema describes.
        type_name: The name of a group's record type; None if it has none.
        split: The groups of a batch; may query it.
    """

    kind: str
    decode: Callable[[RecordGroup], Decoded]
    type_name: Callable[[RecordGroup], str | None]
    split: Callable[[DataFrame, SchemaIds], Iterable[RecordGroup]] = split_by_schema_id


def add_registry_fields(
    frame: DataFrame, wanted: T.StructType, part: RecordPart, registry_format: RegistryFormat
) -> DataFrame:
    """Read each record with its writer's schema, and convert it to the wanted fields by name."""
    ids = look_up_schemas(frame, part, registry_format.kind)
    decoded_columns: dict[str, Column] = {}
    converted: list[tuple[Column, Column]] = []
    for index, group in enumerate(registry_format.split(frame, ids)):
        name = f"{part.fields}_{index}"
        try:
            with schema_failures_as_mismatch():
                if ids.is_other_type(group.applies, group.schema.id, partial(registry_format.type_name, group)):
                    continue
                decoded = registry_format.decode(group)
                value = decoded.extract(F.col(name))
                have = _type_of(frame.select(decoded.column.alias(name)), value)
                fields = convert_value(value, have, wanted, decoded.logical)
                check_has_row(have, wanted)
                converted.append((group.applies, fields))
        except SchemaMismatchError as error:
            ids.add_problem(group.applies, group.schema.id, error)
            continue
        decoded_columns[name] = F.when(group.applies, decoded.column)
        for path, kind, lost in find_lost_values(value, F.col(part.fields), have, wanted, decoded.logical):
            ids.add_problem(lost, group.schema.id, SchemaMismatchError(path, f"is not a {kind}"))
    # A projection of its own: otherwise Spark would decode a record once for each of its fields.
    frame = frame.withColumns(decoded_columns)
    none = F.when(F.lit(False), F.lit(None).cast(wanted))
    fields = reduce(lambda cases, case: cases.when(*case), converted, none)
    frame = frame.withColumns({part.fields: fields, **ids.other_type_column()})
    return frame.withColumn(part.problem, ids.find_problem(F.col(part.fields))).drop(*decoded_columns)


def _type_of(frame: DataFrame, column: Column) -> T.DataType:
    """The type that Spark gives a decoded column."""
    try:
        return frame.select(column.alias("it")).schema["it"].dataType
    except (PySparkException, Py4JJavaError) as error:
        raise SchemaMismatchError("", f"Spark cannot read the schema ({type(error).__name__})") from error
