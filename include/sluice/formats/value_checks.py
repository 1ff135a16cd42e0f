"""Misfit: what a type asks of a value beyond its Spark type, in which a uuid is a text and fixed are bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import add

from pyspark.sql import Column
from pyspark.sql import functions as F

from sluice.contract.contract import Contract
from sluice.contract.types import Decimal, Fixed, IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.formats.internal_columns import dotted

_UUID = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\z"
FOLDER = 255
"""Bytes of a folder's name that file systems take. Iceberg writes a partition to `field=value`, URL-encoded."""
FOLDERS = 640
"""Bytes of several such names: object stores take 1,024 per key, and the table's location and the file want theirs."""

Change = Callable[[Column], Column]


def misfits(kind: IcebergType, path: str) -> Iterator[tuple[str, str, Change]]:
    """Each place in a value that may be none of the type: path, what is wrong then, and whether it is so of a value.

    Of a null that is null, or false.
    """
    match kind:
        case Primitive("uuid"):
            yield path, "the text is no uuid", lambda value: ~value.rlike(_UUID)
        case Fixed(length):
            yield path, f"there are not exactly {length} bytes", lambda value: F.length(value) != length
        case ListOf(element):
            for inner, words, wrong in misfits(element, f"{path}[]"):
                yield inner, words, _of_some(wrong)
        case MapOf(_, each):
            for inner, words, wrong in misfits(each, f"{path}{{}}"):
                yield inner, words, _of_some(wrong, F.map_values)
        case Struct(fields):
            for name, member in fields:
                for inner, words, wrong in misfits(member, dotted(path, name)):
                    yield inner, words, _of_field(name, wrong)


def unfit_folders(contract: Contract) -> Iterator[tuple[str, str, Column]]:
    """Each column whose value is too long for the folder of its partition, as `misfits` tells it.

    Only texts and bytes can be; nobody writes them as they are where a mask is laid over them.
    """
    kinds = {c.name: str(c.type) for c in contract.columns if not c.mask and str(c.type) in ("string", "binary")}
    sizes, lengths = [], []
    for field in contract.partitioning:
        if field.column not in kinds or field.transform not in ("identity", "truncate"):
            continue
        value = F.col(field.column)
        if field.argument is not None:
            value = F.substring(value, 1, field.argument)
        if kinds[field.column] == "binary":
            value = F.base64(value)
        room = FOLDER - len(f"{field.name}=")
        # Encoded, a byte takes three at most: so most need not be encoded to be told.
        size, length = F.octet_length(value), F.length(F.url_encode(value))
        words = f"the value is too long for a partition: encoded for a path it may have {room} bytes"
        yield field.column, words, (size * 3 > room) & ((size > room) | (length > room))
        sizes.append(F.coalesce(size, F.lit(0)) + len(field.name))
        lengths.append(F.coalesce(length, F.lit(0)) + len(field.name))
        last = field.column
    if len(sizes) * FOLDER > FOLDERS:
        words = f"the values of all partition columns are too long together: encoded they may have {FOLDERS} bytes"
        # Past the checks of each by itself, none is long to encode.
        yield last, words, (reduce(add, sizes) * 3 > FOLDERS) & (reduce(add, lengths) > FOLDERS)


def unfit_steps(contract: Contract) -> Iterator[tuple[str, str, Column]]:
    """Each column of decimals whose type can't hold the step that a value is cut off to for its partition."""
    kinds = {c.name: c.type for c in contract.columns}
    for field in contract.partitioning:
        kind = kinds.get(field.column)
        if isinstance(kind, Decimal) and field.transform == "truncate" and field.argument:
            # Iceberg cuts off downwards, in units of the last digit.
            least = -((10**kind.precision - 1) // field.argument * field.argument)
            words = f"the value is too low for a partition: {field.name} would have more digits than {kind}"
            yield field.column, words, F.col(field.column) < F.expr(f"CAST('{least}E-{kind.scale}' AS {kind})")


def _of_some(wrong: Change, items: Change = lambda value: value) -> Change:
    return lambda value: F.exists(items(value), wrong)


def _of_field(name: str, wrong: Change) -> Change:
    return lambda value: wrong(value.getField(name))


def lowered(kind: IcebergType) -> Change | None:
    """How uuids in a value become as the table gives them back; None where there are none."""
    match kind:
        case Primitive("uuid"):
            return F.lower
        case ListOf(element):
            return _in_list(change) if (change := lowered(element)) else None
        case MapOf(_, element):
            return _in_map(change) if (change := lowered(element)) else None
        case Struct(fields):
            parts = {name: change for name, member in fields if (change := lowered(member))}
            return _in_struct(parts) if parts else None
    return None


def _in_list(change: Change) -> Change:
    return lambda value: F.transform(value, change)


def _in_map(change: Change) -> Change:
    return lambda value: F.transform_values(value, lambda _, each: change(each))


def _in_struct(parts: Mapping[str, Change]) -> Change:
    return lambda value: reduce(lambda it, name: it.withField(name, parts[name](it.getField(name))), parts, value)
