"""What a JSON Schema says of fields that columns can't read: told at plan time, as records tell it one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from pyspark.sql import types as T

from sluice.fields import dotted
from sluice.fit import UnfitError
from sluice.formats import spark_type
from sluice.iceberg_types import IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.registry import WriterSchema

_NUMBERS = (T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.DecimalType)
_FROM_TEXT = (T.DateType, T.TimestampType, T.TimestampNTZType, T.BinaryType, T.DecimalType)
_BY_NAME: dict[str, tuple[type[T.DataType], ...]] = {
    "boolean": (T.BooleanType,),
    "long": (*_NUMBERS, T.TimestampType),
    "double": (*_NUMBERS, T.TimestampType),
}
"""What a value of a type can be read as; besides, all as text. Of others, which are texts, `_FROM_TEXT`."""


def unfit(have: Mapping[str, IcebergType | None], wanted: T.StructType) -> UnfitError | None:
    """Why no value of a field can be what its column wants; None where some can, or nobody looked.

    Of a text no more than "NaN" and "Infinity" are a double: it counts as one that can't.

    Args:
        have: the schema's fields, with the types that `auto_types.json_schema` reads of them.
    """
    return next((each for f in wanted if (kind := have.get(f.name)) for each in _unfit(kind, f.dataType, f.name)), None)


def closed(schema: WriterSchema) -> bool:
    """Whether what the schema does not name is in no record."""
    try:
        root = json.loads(schema.text)
    except ValueError:
        return False
    more = {"patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if"}
    return isinstance(root, dict) and root.get("additionalProperties") is False and not more & root.keys()


def _unfit(have: IcebergType, want: T.DataType, path: str) -> Iterator[UnfitError]:
    match have, want:
        case _, T.StringType():
            return
        case Struct(), T.StructType():
            fields = dict(have.fields)
            for each in want:
                if each.name in fields:
                    yield from _unfit(fields[each.name], each.dataType, dotted(path, each.name))
        case ListOf(), T.ArrayType():
            yield from _unfit(have.element, want.elementType, f"{path}[]")
        case MapOf(), T.MapType():
            yield from _unfit(have.value, want.valueType, f"{path}{{}}")
        case (Struct(), T.MapType()) | (MapOf(), T.StructType()):
            return
        case _:
            read = _BY_NAME.get(have.name, _FROM_TEXT) if isinstance(have, Primitive) else ()
            if not isinstance(want, read):
                found = spark_type(have).simpleString()
                yield UnfitError(path, f"is {found}, and its column {want.simpleString()}")
