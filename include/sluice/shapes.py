"""Shapes: what decoders make of a writer's schema, told without Spark: at plan time there is no JVM to ask."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from pyspark.sql import types as T

from sluice.avro import meaning
from sluice.avro_schema import Emitter, Names, alone, parsed, type_name
from sluice.fit import Meaning, UnfitError, check, plain, reading_schema
from sluice.formats import spark_type, title
from sluice.registry import WriterSchema

Shape = tuple[T.DataType, Meaning]


def unfit(form: str, schema: WriterSchema, wanted: T.StructType) -> UnfitError | None:
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
    from sluice.auto_types import avro_type

    root, names = parsed(schema)
    text = json.dumps(Emitter(names, strict=True).emit(root, want=wanted))
    # What a number means by such a name is asked of `meaning`: Spark reads the number.
    again = Names()
    read = again.add(json.loads(text, object_hook=_without_meaning))
    return spark_type(avro_type(read, again.found)), meaning(root, names)


def _without_meaning(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != "connect.name"}


def _message_name(schema: WriterSchema) -> str:
    from sluice.descriptors import files_of, name_of

    return name_of(files_of(schema), (0,))


def _protobuf(schema: WriterSchema, wanted: T.StructType) -> Shape:
    from pyspark.sql.pandas.types import from_arrow_schema

    from sluice.descriptors import cut, files_of
    from sluice.protobuf import arrow_schema

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
