"""Protobuf: bytes to Arrow in batches, without a Python object a record, each with its writer's message type.

The registry's schema, a .proto text or a serialized descriptor, becomes descriptors in the driver; the executors are
given these, cut down to the fields that columns want.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.formats.convert import UnfitError
from sluice.formats.internal_columns import Side, problem
from sluice.formats.logical_types import FIRST_MOMENT_US, LAST_MOMENT_US
from sluice.formats.protobuf_descriptors import Files, cut, descriptor, files_of, name_of
from sluice.formats.wire_format import Decoded, Framed, Variant, by_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from google.protobuf.descriptor import Descriptor

# How deep a message's type may be nested in others, and how many types a batch may have.
DEEPEST = 8
MOST_MESSAGES, MOST_OF_FILE = 500, 8192
RARE = (
    f"is of a message type that is not among the {MOST_MESSAGES} most frequent of the batch: others are not read. "
    "Bring such records from the quarantine by themselves, or let limits.records_per_batch be less"
)
NO_MESSAGE = (
    f"names no message of its schema: truncated or damaged, beyond the first {MOST_OF_FILE} of a file, "
    f"or more than {DEEPEST} deep"
)
# Payloads that are longer are read by Google's library first. Groups within groups have no end for the Rust library, a
# byte each on the wire: somewhere above 100,000 of them it runs out of stack, and takes the process with it.
LONG = 32 << 10
MOST_DURATION_US = 315_576_000_000_999_999
"""Google's own bound: 10,000 years. What is far beyond has been cut off to what 64 bits hold."""
# Zigzag numbers of one or two bytes, in hexadecimal: as many as the first says, and where that is zero no more.
_INDEX = "(?:[0-7].|[89A-F].[0-7].)"
_PATH = f"^(?:00|{'|'.join(f'{2 * count:02X}{_INDEX}{{{count}}}' for count in range(1, DEEPEST + 1))})"


def protobuf_fields(frame: DataFrame, wanted: T.StructType, side: Side) -> DataFrame:
    """Add the wanted fields of Protobuf in Confluent's wire format."""
    return by_schema(frame, wanted, side, "PROTOBUF", lambda v: _decode(v, wanted, side), _name, _by_message)


def _name(variant: Variant) -> str:
    return name_of(files_of(variant.schema), variant.message)


def _by_message(frame: DataFrame, found: Framed) -> list[Variant]:
    """After the schema's id stands which of its messages it is: a count and so many indexes; one zero is the first."""
    if not found.known:
        return []
    payload = found.payload
    path = F.regexp_extract(F.hex(F.substring(payload, 1, 1 + 2 * DEEPEST)), _PATH, 0)
    known = found.number.isin(list(found.known))
    # Damage makes up any number of them: those that most records have are the real ones.
    counted = frame.where(known).groupBy(found.number.alias("id"), path.alias("path")).count()
    rows = counted.orderBy(F.desc("count"), "id", "path").limit(MOST_MESSAGES + 1).collect()
    named = F.concat_ws(" ", found.number, path)
    if len(rows) > MOST_MESSAGES:
        rows = rows[:MOST_MESSAGES]
        rare = known & ~named.isin([f"{row['id']} {row['path']}" for row in rows])
        found.refused.append((rare, problem(f"the {found.side.raw} {RARE}")))
    if any(not row["path"] for row in rows):
        found.refused.append((known & (path == ""), problem(f"the {found.side.raw} {NO_MESSAGE}")))
    variants = []
    for row in rows:
        if not row["path"]:
            continue
        prefix = bytes.fromhex(row["path"])
        indexes = _indexes(prefix[1:])
        if any(each % 2 for each in indexes):  # they would be negative
            continue
        # No path is the beginning of another.
        applies = (found.number == row["id"]) & (F.substring(payload, 1, len(prefix)) == F.lit(prefix))
        rest = F.substring(payload, F.lit(len(prefix) + 1), F.length(payload))
        message = tuple(each // 2 for each in indexes) or (0,)
        variants.append(Variant(found.known[row["id"]], applies, rest, message))
    return variants


def _indexes(path: bytes) -> list[int]:
    """The numbers of one or two bytes each."""
    numbers, left = [], list(path)
    while left:
        low = left.pop(0)
        numbers.append(low if low < 0x80 else low - 0x80 + left.pop(0) * 0x80)
    return numbers


def _decode(variant: Variant, wanted: T.StructType, side: Side) -> Decoded:
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]
    from pyspark.sql.pandas.types import from_arrow_schema

    if side.whole in wanted.names:
        raise UnfitError("", f"there are fields, and {side.whole} names none of them")
    files, name, copy = cut(files_of(variant.schema), variant.message, wanted)
    shape = from_arrow_schema(arrow_schema(files, copy))
    if not shape.fields:  # Arrow's structs have as many rows as their fields
        raise UnfitError("", f"message {name} has none of the fields that columns read")
    return Decoded(arrow_udf(_reader(files, copy), shape)(F.when(variant.applies, variant.payload)))


def arrow_schema(files: Files, name: str) -> pa.Schema:
    """What a message is read as."""
    return _plain_schema(_handler(files, name).schema())


@cache
def _handler(files: Files, name: str) -> Any:
    from ptars import HandlerPool, PtarsConfig

    found = descriptor(files, name)
    config = PtarsConfig(enum_repr="string", timestamp_unit="us", time_unit="us", duration_unit="us")
    return HandlerPool([found.file], config).get_for_message(found)


def _reader(files: Files, name: str) -> Callable[[pa.Array], pa.Array]:
    def read(payloads: pa.Array) -> pa.Array:
        return _read(_handler(files, name), descriptor(files, name), payloads)

    read.__annotations__ = {}  # they are for the type checker; Spark would take them to pieces
    return read


def _read(handler: Any, message: Descriptor, payloads: pa.Array) -> pa.Array:
    """Messages as a struct array; null for what is none of them."""
    import pyarrow as pa

    target = pa.struct(_plain_schema(handler.schema()))
    payloads = _without_endless(message, payloads)
    there = payloads.drop_null()
    pieces = _pieces(handler, message, there, target)
    structs = pa.concat_arrays(pieces) if pieces else pa.array([], target)
    if len(there) == len(payloads):
        return structs
    valid = payloads.is_valid()
    places = pa.compute.if_else(valid, pa.compute.subtract(pa.compute.cumulative_sum(valid.cast("int64")), 1), None)
    return structs.take(places)


def _without_endless(message: Descriptor, payloads: pa.Array) -> pa.Array:
    """The payloads, null for those long ones that Google's library refuses, be it for their depth."""
    import pyarrow as pa
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass
    from pyarrow import compute

    kept = [True] * len(payloads)
    for at in compute.indices_nonzero(compute.greater(compute.binary_length(payloads), LONG)).to_pylist():
        try:
            GetMessageClass(message).FromString(payloads[at].as_py())
        except (DecodeError, RecursionError):
            kept[at] = False
    return payloads if all(kept) else compute.if_else(pa.array(kept), payloads, None)


def _pieces(handler: Any, message: Descriptor, payloads: pa.Array, target: pa.DataType) -> list[pa.Array]:
    import pyarrow as pa

    if not len(payloads):
        return []
    try:
        batch = handler.array_to_record_batch(payloads)
        arrays = [a.cast(f.type) for a, f in zip(batch.columns, target, strict=True)]
        if any(map(_beyond, batch.columns)):
            raise ValueError("a moment or a duration that is none")
        if _several(message, dict(zip(target.names, arrays, strict=True))):
            raise ValueError("several members of a oneof")
        return [pa.StructArray.from_arrays(arrays, fields=list(target))]
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of the Rust library is no Exception
        if len(payloads) == 1:
            again = None if isinstance(error, ValueError) else _written_out(message, payloads[0].as_py())
            if again in (None, payloads[0].as_py()):
                return [pa.nulls(1, target)]
            return _pieces(handler, message, pa.array([again], payloads.type), target)
    middle = len(payloads) // 2
    return [
        *_pieces(handler, message, payloads[:middle], target), *_pieces(handler, message, payloads[middle:], target)
    ]  # fmt: skip


def _written_out(message: Descriptor, payload: bytes) -> bytes | None:
    """The message as Google's library writes it, which leaves nothing of a map's entry out, as others may; or None."""
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    try:
        return bytes(GetMessageClass(message).FromString(payload).SerializeToString(deterministic=True))
    except (DecodeError, RecursionError):
        return None


def _several(message: Descriptor, fields: Mapping[str, pa.Array]) -> bool:
    """Whether a record has two members of a oneof. The last one counts, and which that was is not told any more."""
    import pyarrow as pa

    for one in message.oneofs:
        there = [fields[f.name].is_valid().cast("int8") for f in one.fields]
        if len(there) > 1 and pa.compute.any(pa.compute.greater(reduce(pa.compute.add, there), 1)).as_py():
            return True
    for field in message.fields:
        inner, array = field.message_type, fields[field.name]
        if pa.types.is_map(array.type):
            inner, array = inner.fields_by_name["value"].message_type, array.items
        elif pa.types.is_list(array.type):
            array = array.flatten()
        if inner and pa.types.is_struct(array.type):
            parts = dict(zip(array.type.names, array.flatten(), strict=True))
            if _several(inner, parts):
                return True
    return False


def _beyond(array: pa.Array) -> bool:
    """Whether a moment or a duration in it is none that Protobuf has: they would be cut off."""
    import pyarrow as pa

    if pa.types.is_struct(array.type):
        return any(map(_beyond, array.flatten()))
    if pa.types.is_map(array.type):
        return _beyond(array.items)
    if pa.types.is_list(array.type):
        return _beyond(array.flatten())
    if pa.types.is_timestamp(array.type):
        least, most = FIRST_MOMENT_US, LAST_MOMENT_US
    elif pa.types.is_duration(array.type):
        least, most = -MOST_DURATION_US, MOST_DURATION_US
    else:
        return False
    if array.null_count == len(array):
        return False
    ends = pa.compute.min_max(array.cast("int64"))
    return bool(ends["min"].as_py() < least or ends["max"].as_py() > most)


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(f.name, _plain(f.type)) for f in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type that Spark has, with room for all values: nothing there is unsigned, and no duration fits Iceberg."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _plain(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_uint32(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind):
        return pa.int64()
    return pa.decimal128(20, 0) if pa.types.is_uint64(kind) else kind
