"""Reads Protobuf as Arrow batches: in, staged bytes in Confluent's wire format; out, the wanted fields.

Each record is read with its writer's message type, reduced to the wanted fields. The driver makes the descriptors, the
executors decode whole batches, without a Python object per record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract.types import Decimal, IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.formats import compat
from sluice.formats.convert import SchemaMismatchError
from sluice.formats.internal_columns import RecordPart, problem
from sluice.formats.protobuf_descriptors import (
    BATCH,
    DescriptorFiles,
    descriptor_files,
    find_descriptor,
    message_name,
    prune_message,
)
from sluice.formats.wire_format import Decoded, RecordGroup, RegistryFormat, SchemaIds, add_registry_fields

if TYPE_CHECKING:
    import pyarrow as pa
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

MAX_NESTING = 8
"""Levels of message types within others."""
MAX_MESSAGE_TYPES, MAX_MESSAGE_INDEX = 500, 8192
RARE = (
    f"has a message type that is not among the {MAX_MESSAGE_TYPES} most frequent of the batch; others are not read. "
    "Replay such records from the quarantine on their own, or lower limits.records_per_batch"
)
NO_MESSAGE = (
    f"has no valid message index: truncated or damaged, beyond the first {MAX_MESSAGE_INDEX} messages of a file, "
    f"or nested more than {MAX_NESTING} deep"
)
CHUNK_BYTES = 16 << 20
"""Of payloads that are decoded at once."""
# Message indexes in hexadecimal: their count, then as many zigzag numbers of one or two bytes; a single zero is [0].
_INDEX = "(?:[0-7].|[89A-F].[0-7].)"
_INDEXES = f"^(?:00|{'|'.join(f'{2 * count:02X}{_INDEX}{{{count}}}' for count in range(1, MAX_NESTING + 1))})"


def add_protobuf_fields(frame: DataFrame, wanted: T.StructType, part: RecordPart) -> DataFrame:
    """Add the wanted fields of Protobuf in Confluent's wire format."""
    registry_format = RegistryFormat(
        "PROTOBUF",
        decode=lambda group: _decode(group, wanted, part),
        type_name=lambda group: message_name(descriptor_files(group.schema), group.message),
        split=_split_by_message,
    )
    return add_registry_fields(frame, wanted, part, registry_format)


def _split_by_message(frame: DataFrame, ids: SchemaIds) -> list[RecordGroup]:
    """One group per schema and message: the message indexes follow the schema id."""
    if not ids.known:
        return []
    name, payload = ids.part.raw, ids.payload
    indexes = F.regexp_extract(F.hex(F.substring(payload, 1, 1 + 2 * MAX_NESTING)), _INDEXES, 0)
    is_known = ids.number.isin(list(ids.known))
    # Damaged records may have any number of indexes; the real ones have the most records.
    counted = frame.where(is_known).groupBy(ids.number.alias("id"), indexes.alias("indexes")).count()
    rows = counted.orderBy(F.desc("count"), "id", "indexes").limit(MAX_MESSAGE_TYPES + 1).collect()
    if len(rows) > MAX_MESSAGE_TYPES:
        rows = rows[:MAX_MESSAGE_TYPES]
        frequent = [f"{row['id']} {row['indexes']}" for row in rows]
        is_rare = is_known & ~F.concat_ws(" ", ids.number, indexes).isin(frequent)
        ids.problems.append((is_rare, problem(f"the {name} {RARE}")))
    if any(not row["indexes"] for row in rows):
        ids.problems.append((is_known & (indexes == ""), problem(f"the {name} {NO_MESSAGE}")))
    groups = []
    for row in rows:
        if not row["indexes"]:
            continue
        prefix = bytes.fromhex(row["indexes"])
        numbers = _varints(prefix[1:])
        if any(each % 2 for each in numbers):  # zigzag: the index would be negative
            continue
        # No prefix begins with another.
        applies = (ids.number == row["id"]) & (F.substring(payload, 1, len(prefix)) == F.lit(prefix))
        message_bytes = F.substring(payload, F.lit(len(prefix) + 1), F.length(payload))
        message = tuple(each // 2 for each in numbers) or (0,)
        groups.append(RecordGroup(ids.known[row["id"]], applies, message_bytes, message))
    return groups


def _varints(data: bytes) -> list[int]:
    """Numbers of one or two bytes each."""
    numbers, left = [], list(data)
    while left:
        low = left.pop(0)
        numbers.append(low if low < 0x80 else low - 0x80 + left.pop(0) * 0x80)
    return numbers


def _decode(group: RecordGroup, wanted: T.StructType, part: RecordPart) -> Decoded:
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

    if part.root in wanted.names:
        raise SchemaMismatchError("", f"the message has fields, so {part.root} cannot be read as one value")
    files, name, copy = prune_message(descriptor_files(group.schema), group.message, wanted)
    decoded_type = compat.spark_type_from_arrow(spark_arrow_schema(files, copy))
    if not decoded_type.fields:  # an Arrow struct without fields has no rows
        raise SchemaMismatchError("", f"message {name} has none of the fields that columns read")
    reader = arrow_udf(_reader(files, copy), decoded_type)
    return Decoded(reader(F.when(group.applies, group.payload)))


def spark_arrow_schema(files: DescriptorFiles, name: str) -> pa.Schema:
    """The Arrow schema that a message is decoded to, limited to types that Spark has."""
    import pyarrow as pa

    return pa.schema(_spark_type(_handler(files, name).schema(), find_descriptor(files, name)))


@cache
def _handler(files: DescriptorFiles, name: str) -> Any:
    from ptars import HandlerPool, PtarsConfig

    message = find_descriptor(files, name)
    config = PtarsConfig(enum_repr="string", timestamp_unit="us", time_unit="us", duration_unit="us")
    try:
        return HandlerPool([message.file], config).get_for_message(message)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the Rust library is not an Exception
        reason = str(error).rpartition("value: ")[2]
        raise SchemaMismatchError("", f"the schema's descriptors cannot be read: {reason}") from error


def _reader(files: DescriptorFiles, name: str) -> Callable[[pa.Array], pa.Array]:
    def read(payloads: pa.Array) -> pa.Array:
        return _decode_payloads(files, name, payloads)

    read.__annotations__ = {}  # Spark would evaluate them, and pa is imported for type checks only
    return read


def _decode_payloads(files: DescriptorFiles, name: str, payloads: pa.Array) -> pa.Array:
    """Messages as a struct array; null for what is not a message."""
    import pyarrow as pa

    handler = _handler(files, name)
    target = _spark_type(handler.schema(), find_descriptor(files, name))
    present = payloads.drop_null()
    chunks = _decode_chunks(handler, _batch(files), present, target)
    structs = pa.concat_arrays(chunks) if chunks else pa.array([], target)
    if len(present) == len(payloads):
        return structs
    valid = payloads.is_valid()
    positions = pa.compute.if_else(valid, pa.compute.subtract(pa.compute.cumulative_sum(valid.cast("int64")), 1), None)
    return structs.take(positions)


def _decode_chunks(handler: Any, batch: Descriptor, payloads: pa.Array, target: pa.DataType) -> list[pa.Array]:
    """Decode payloads; on a failure halve them until only the bad ones are left, which become null."""
    import pyarrow as pa

    if not len(payloads):
        return []
    if len(payloads) == 1 or pa.compute.sum(pa.compute.binary_length(payloads)).as_py() <= CHUNK_BYTES:
        try:
            return [_decode_chunk(handler, batch, payloads, target)]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - a panic of the Rust library is not an Exception
            if len(payloads) == 1:
                return [pa.nulls(1, target)]
    middle = len(payloads) // 2
    return [
        *_decode_chunks(handler, batch, payloads[:middle], target),
        *_decode_chunks(handler, batch, payloads[middle:], target),
    ]


def _decode_chunk(handler: Any, batch: Descriptor, payloads: pa.Array, target: pa.DataType) -> pa.Array:
    import pyarrow as pa

    columns = handler.array_to_record_batch(_checked(batch, payloads)).columns
    arrays = [_converted(a, f.type) for a, f in zip(columns, target, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(target))


def _converted(array: pa.Array, target: pa.DataType) -> pa.Array:
    """An array as another type, whose structs may have other names; a cast would take them for other fields."""
    import pyarrow as pa

    if pa.types.is_struct(target):
        members = [_converted(array.field(index), field.type) for index, field in enumerate(target)]
        return pa.StructArray.from_arrays(members, fields=list(target), mask=array.is_null())
    if pa.types.is_map(target):
        keys, items = _converted(array.keys, target.key_type), _converted(array.items, target.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=target)
    if pa.types.is_list(target):
        return pa.ListArray.from_arrays(array.offsets, _converted(array.values, target.value_type), type=target)
    return array.cast(target)


def _checked(batch: Descriptor, payloads: pa.Array) -> pa.Array:
    """Messages that Google's library takes, with each field written once and each entry of a map in full.

    The Rust library needs that: it passes over what is damaged in fields that it skips or takes in bulk, overflows the
    stack with nested groups, and does not merge what was written twice. All are parsed in one call. They are written
    again if the message has parts that may be written twice: no size tells, since what one entry of a map lacks may be
    as long as what another field has twice.

    Raises:
        DecodeError: One of them is damaged.
    """
    import pyarrow as pa
    from google.protobuf.message_factory import GetMessageClass
    from pyarrow import compute

    sizes = compute.binary_length(payloads).dictionary_encode()
    tags = pa.array([b"\x0a" + _varint(size) for size in sizes.dictionary.to_pylist()], payloads.type)
    joined = compute.binary_join_element_wise(tags.take(sizes.indices), payloads, b"")
    _, offsets, data = joined.buffers()
    framed = memoryview(data)[: memoryview(offsets).cast("i")[len(joined)]]
    records = GetMessageClass(batch).FromString(framed).records
    fields = batch.fields[0].message_type.fields
    if not any(f.message_type or (f.containing_oneof and len(f.containing_oneof.fields) > 1) for f in fields):
        return payloads
    return pa.array([each.SerializeToString() for each in records], payloads.type)


@cache
def _batch(files: DescriptorFiles) -> Any:
    """The descriptor of `BATCH` in what `prune_message` returns, with all enums as numbers.

    Numbers that an enum of proto2 lacks are written after all other fields by Google's library. That would change
    which value is the last of a field, a list, a map's key or a oneof.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    protos = [FileDescriptorProto.FromString(each) for each in files]
    messages = [message for file in protos for message in file.message_type]
    for message in (*messages, *(entry for each in messages for entry in each.nested_type)):
        for field in message.field:
            if field.type == field.TYPE_ENUM:
                field.type = field.TYPE_INT32
                field.ClearField("type_name")
    package = protos[-1].package
    return find_descriptor(tuple(each.SerializeToString() for each in protos), f"{package}.{BATCH}".lstrip("."))


def _varint(number: int) -> bytes:
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])


def _spark_type(fields: Iterable[pa.Field], message: Descriptor) -> pa.StructType:
    """The struct that a message is decoded to: with its fields' own names, and types that Spark has."""
    import pyarrow as pa

    known = message.fields_by_name
    return pa.struct([pa.field(known[f.name].json_name, _spark_compatible(f.type, known[f.name])) for f in fields])


def _spark_compatible(kind: pa.DataType, field: FieldDescriptor) -> pa.DataType:
    """A type that Spark has, with room for all values: Spark lacks unsigned numbers, and Iceberg durations."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return _spark_type(kind, field.message_type)
    if pa.types.is_map(kind):
        entry = field.message_type.fields_by_name
        key, value = _spark_compatible(kind.key_type, entry["key"]), _spark_compatible(kind.item_type, entry["value"])
        return pa.map_(key, value)
    if pa.types.is_list(kind):
        return pa.list_(_spark_compatible(kind.value_type, field))
    if pa.types.is_uint32(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind):
        return pa.int64()
    return pa.decimal128(20, 0) if pa.types.is_uint64(kind) else kind


def iceberg_type_from_arrow(kind: pa.DataType, path: str) -> IcebergType:
    """The column type of a field of `spark_arrow_schema`."""
    import pyarrow as pa

    known = pa.types
    if known.is_struct(kind):
        if not kind.num_fields:
            raise SchemaMismatchError(path, "is a message without fields, which no column type holds")
        return Struct(tuple((f.name, iceberg_type_from_arrow(f.type, f"{path}.{f.name}")) for f in kind))
    if known.is_list(kind):
        return ListOf(iceberg_type_from_arrow(kind.value_type, f"{path}[]"))
    if known.is_map(kind):  # integer keys become text
        return MapOf(Primitive("string"), iceberg_type_from_arrow(kind.item_type, f"{path}{{}}"))
    if known.is_decimal(kind):
        return Decimal(kind.precision, kind.scale)
    if known.is_timestamp(kind):
        return Primitive("timestamptz" if kind.tz else "timestamp")
    names = {
        pa.bool_(): "boolean", pa.int32(): "int", pa.int64(): "long", pa.float32(): "float", pa.float64(): "double",
        pa.string(): "string", pa.binary(): "binary", pa.date32(): "date",
    }  # fmt: skip
    if kind not in names:
        raise SchemaMismatchError(path, f"is read as {kind}, which no column type holds")
    return Primitive(names[kind])
