"""Shapes: what decoders make of a writer's schema, told without Spark: at plan time there is no JVM to ask."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from pyspark.sql import types as T

from sluice.contract.types import IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.formats.avro import meaning
from sluice.formats.avro_schema import Emitter, Names, alone, parsed, type_name
from sluice.formats.convert import Meaning, UnfitError, check, plain, reading_schema
from sluice.formats.internal_columns import dotted
from sluice.formats.json import title
from sluice.formats.logical_types import spark_type
from sluice.kafka.registry import WriterSchema

_NUMBERS = (T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.DecimalType)
_FROM_TEXT = (T.DateType, T.TimestampType, T.TimestampNTZType, T.BinaryType, T.DecimalType)
_BY_NAME: dict[str, tuple[type[T.DataType], ...]] = {
    "boolean": (T.BooleanType,),
    "long": (*_NUMBERS, T.TimestampType),
    "double": (*_NUMBERS, T.TimestampType),
}
"""What a value of a type can be read as; besides, all as text. Of others, which are texts, `_FROM_TEXT`."""

Shape = tuple[T.DataType, Meaning]


def find_incompatible_field(form: str, schema: WriterSchema, wanted: T.StructType) -> UnfitError | None:
    """Why records of a schema, or of its first message, can't become the wanted fields; None where they can."""
    try:
        with reading_schema():
            have, means = SHAPES[form](schema, wanted)
            check(have, wanted, means)
    except UnfitError as error:
        return error
    return None


def of_types(form: str, schema: WriterSchema, types: Collection[str]) -> WriterSchema | None:
    """What records of some types are written with: a schema of one of them, or that branch of a union; else None.

    Args:
        types: their full names; none where all are asked for.
    """
    try:
        with reading_schema():
            mine = alone(schema, types)
            return mine if not types or NAMES[form](mine) in types else None
    except UnfitError:
        return None


def _avro(schema: WriterSchema, wanted: T.StructType) -> Shape:
    from sluice.formats.inferred_columns import avro_type

    root, names = parsed(schema)
    text = json.dumps(Emitter(names, strict=True).emit(root, want=wanted))
    # What a number means by such a name is asked of `meaning`: Spark reads the number.
    again = Names()
    read = again.add(json.loads(text, object_hook=_without_meaning))
    return spark_type(avro_type(read, again.found)), meaning(root, names)


def _without_meaning(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != "connect.name"}


def _message_name(schema: WriterSchema) -> str:
    from sluice.formats.protobuf_descriptors import files_of, name_of

    return name_of(files_of(schema), (0,))


def _protobuf(schema: WriterSchema, wanted: T.StructType) -> Shape:
    from pyspark.sql.pandas.types import from_arrow_schema

    from sluice.formats.protobuf import arrow_schema
    from sluice.formats.protobuf_descriptors import cut, files_of

    files, _, copy = cut(files_of(schema), (0,), wanted)
    return from_arrow_schema(arrow_schema(files, copy)), plain


SHAPES: dict[str, Callable[[WriterSchema, T.StructType], Shape]] = {"avro": _avro, "protobuf": _protobuf}
"""By `value.format`, of those whose schemas name all that is in a record."""
NAMES: dict[str, Callable[[WriterSchema], str | None]] = {
    "avro": type_name,
    "protobuf": _message_name,
    "json_schema": title,
}
"""By `value.format` the name of a schema's type; of Protobuf that of its first message."""


def find_incompatible_json_field(have: Mapping[str, IcebergType | None], wanted: T.StructType) -> UnfitError | None:
    """Why no value of a field can be what its column wants; None where some can, or nobody looked.

    Of a text no more than "NaN" and "Infinity" are a double: it counts as one that can't.

    Args:
        have: the schema's fields, with the types that `auto_types.json_schema` reads of them.
    """
    return next(
        (each for f in wanted if (kind := have.get(f.name)) for each in _incompatible(kind, f.dataType, f.name)), None
    )


def closed(schema: WriterSchema) -> bool:
    """Whether what the schema does not name is in no record."""
    try:
        root = json.loads(schema.text)
    except ValueError:
        return False
    more = {"patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if"}
    return isinstance(root, dict) and root.get("additionalProperties") is False and not more & root.keys()


def _incompatible(have: IcebergType, want: T.DataType, path: str) -> Iterator[UnfitError]:
    match have, want:
        case _, T.StringType():
            return
        case Struct(), T.StructType():
            fields = dict(have.fields)
            for each in want:
                if each.name in fields:
                    yield from _incompatible(fields[each.name], each.dataType, dotted(path, each.name))
        case ListOf(), T.ArrayType():
            yield from _incompatible(have.element, want.elementType, f"{path}[]")
        case MapOf(), T.MapType():
            yield from _incompatible(have.value, want.valueType, f"{path}{{}}")
        case (Struct(), T.MapType()) | (MapOf(), T.StructType()):
            return
        case _:
            read = _BY_NAME.get(have.name, _FROM_TEXT) if isinstance(have, Primitive) else ()
            if not isinstance(want, read):
                found = spark_type(have).simpleString()
                yield UnfitError(path, f"is {found}, and its column {want.simpleString()}")
