"""Avro: read in the JVM by spark-avro, each record with the schema that it was written with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.avro.functions import from_avro

from sluice.formats import logical_types
from sluice.formats.avro_schema import Emitter, Names, branches, no_schema, parsed, read_wider, type_name, wanted_of
from sluice.formats.convert import Change, Meaning, UnfitError, narrowed, reading_schema, text_in
from sluice.formats.internal_columns import MARK, SPARE, Side, problem
from sluice.formats.wire_format import Decoded, Framed, Variant, by_id, by_schema

_WHOLE, _END = "_sluice_whole", "_sluice_end"
_OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}


def avro_fields(frame: DataFrame, wanted: T.StructType, side: Side) -> DataFrame:
    """Add the wanted fields of Avro in Confluent's wire format."""
    split = by_id if side.whole in wanted.names else _by_branch
    frame = by_schema(frame, wanted, side, "AVRO", lambda variant: _decode(variant, wanted, side), _name, split)
    # Spark takes the bytes of a string as they are; a table with others than UTF-8 can't be read by everybody.
    # Told first: what has fields has but one of them wrong otherwise, and that may be one to spare. Of these, last.
    needed: list[Column] = []
    spare: list[Column] = []
    for f in wanted.fields:
        if (is_text := text_in(F.col(side.fields)[f.name], f.dataType)) is not None:
            garbled = F.when(~is_text, problem(f"field {f.name!r} is not UTF-8 text", f.name))
            (spare if SPARE in f.metadata else needed).append(garbled)
    return frame.withColumn(side.problem, F.coalesce(*needed, F.col(side.problem), *spare))


def _name(variant: Variant) -> str | None:
    return type_name(variant.schema)


def _by_branch(frame: DataFrame, found: Framed) -> Iterator[Variant]:
    """Of a union at the root stands first which of its types a record is of; the rest is as of that type alone."""
    for variant in by_id(frame, found):
        try:
            with reading_schema():
                several = branches(variant.schema)
        except UnfitError:
            several = []  # as its records are read, they are told why not
        for number, schema in several:
            applies = variant.applies & (F.substring(variant.payload, 1, len(number)) == F.lit(number))
            rest = F.substring(variant.payload, F.lit(len(number) + 1), F.length(variant.payload))
            yield Variant(schema, applies, rest)
        if not several:
            yield variant


def _decode(variant: Variant, wanted: T.StructType, side: Side) -> Decoded:
    root, names = parsed(variant.schema)
    with no_schema():
        whole = side.whole in wanted.names
        if not whole:
            _check(root, names, wanted)
        want = wanted[side.whole].dataType if whole else wanted
        writer = _ended(Emitter(names).emit(root))
        reader = _ended(Emitter(names, strict=True).emit(root, want=want))
    read = from_avro(
        F.concat(variant.payload, F.lit(MARK)), json.dumps(writer), {**_OPTIONS, "avroSchema": json.dumps(reader)}
    )

    def opened(it: Column) -> Column:
        # What can't be read is a record of nulls, and Spark's reader stops where the record ends, whatever follows.
        read = it.getField(_WHOLE)
        return F.when(it.getField(_END) == F.lit(MARK), F.struct(read.alias(side.whole)) if whole else read)

    return Decoded(read, opened, meaning(root, names, side.whole if whole else ""))


def meaning(root: Any, names: Names, whole: str = "") -> Meaning:
    """What Kafka Connect's names say of whole numbers, which decimals have their digits, which moments their years.

    Args:
        whole: where the root stands in what is wanted.
    """

    def means(path: str, have: T.DataType, want: T.DataType) -> Change | None:
        there = path.removeprefix(whole).removeprefix(".")
        if isinstance(have, T.DecimalType):
            of = read_wider(names.at(root, there))
            return narrowed(of, want, path) if of else None
        if isinstance(have, (T.DateType, T.TimestampType, T.TimestampNTZType)):
            return (lambda moment: logical_types.within(moment, have)) if have == want else None
        name = names.semantic(root, there)
        if name in logical_types.DATES and isinstance(want, T.DateType):
            return logical_types.date
        if name in logical_types.MOMENTS and isinstance(want, (T.TimestampType, T.TimestampNTZType)):
            return lambda units: logical_types.moment(units, F.lit(logical_types.MOMENTS[name]).cast("long"), want)
        return None

    return means


def _ended(schema: Any) -> dict[str, Any]:
    """What is written with a schema, and the mark after it."""
    mark = {"type": "fixed", "name": _END, "size": len(MARK)}
    return {
        "type": "record",
        "name": _WHOLE,
        "fields": [{"name": _WHOLE, "type": schema}, {"name": _END, "type": mark}],
    }


def _check(root: Any, names: Names, wanted: T.StructType) -> None:
    """Refuse what is no record, or has nothing that columns read."""
    found = names.found.get(root, root) if isinstance(root, str) else root
    if not isinstance(found, dict) or found.get("type") != "record":
        kind = found.get("type") if isinstance(found, dict) else found
        raise UnfitError("", f"the root is no record with fields but {kind}")
    # A record of another kind, and a row of nulls would be all that it says.
    if wanted.names and not wanted_of(found["fields"], wanted):
        raise UnfitError("", f"record {found['name']} has none of the fields that columns read")
