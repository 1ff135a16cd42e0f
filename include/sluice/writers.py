"""What the newest schema of a topic's writers no longer has of what a contract reads, or has as another type.

Seen before its records come. Only where what a schema does not name is in no record: Avro and Protobuf. A JSON Schema
may leave names out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sluice.contract import Contract
from sluice.errors import SluiceError
from sluice.iceberg_types import IcebergType, Struct
from sluice.kafka_retention import Risk
from sluice.registry import Registry, WriterSchema, subjects_of
from sluice.status_model import Kind

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_FORMATS = ("avro", "protobuf")


def look(contract: Contract, registry: Registry | None = None) -> list[Risk]:
    """Warnings of topics whose newest schema lacks fields that columns or inputs are read from, or does not fit them.

    A topic without a subject of the type is passed over, and so are several types, of which each has what others lack,
    and change events, whose fields depend on how the connector is set. A registry that does not answer is no reason to
    stop planning.
    """
    types = contract.value.types
    if contract.value.format not in _FORMATS or contract.cdc or len(types) > 1:
        return []
    from sluice.decode import wanted  # with Spark's types
    from sluice.shapes import of_types, unfit

    needed = wanted(contract)
    found: list[Risk] = []
    for topic in contract.topics if needed.fields else ():
        try:
            asked = registry or Registry()
            newest = ((s, whole) for s in subjects_of(topic, types) if (whole := asked.newest(s)))
            mine = ((s, one) for s, whole in newest if (one := of_types(contract.value.format, whole, types)))
            subject, schema = next(mine, ("", None))
        except SluiceError as error:
            log.info("%s: the writers' newest schema was not looked at: %s", contract.table, error.message)
            return found
        have = _fields(contract, schema) if schema else {}
        if schema is None or not have.keys() & set(needed.names):  # of another message, or of a kind we can't read
            continue
        if lost := list(_missing(have, needed)):
            found.append(Risk(Kind.SCHEMA, topic, _words(contract, schema, subject, lost), contract.table))
        if why := unfit(contract.value.format, schema, needed):
            told = f"in the newest schema of {subject} (id {schema.id}) {why.told}: all records written with it"
            found.append(Risk(Kind.SCHEMA, topic, f"{told} go to the quarantine", contract.table))
    return found


def _fields(contract: Contract, schema: WriterSchema) -> Mapping[str, IcebergType | None]:
    """The root's fields; those without a type are there, and nobody looked into them."""
    from sluice.auto_types import READERS
    from sluice.fit import UnfitError, reading_schema

    kind, read = READERS[contract.value.format]
    skip: set[str] = set()
    while schema.kind == kind:
        try:
            with reading_schema():
                return {each.name: each.type for each in read(schema, skip)}
        except UnfitError as error:
            root = error.path.partition(".")[0].rstrip("[]{}")
            if not root or root in skip:
                break
            skip.add(root)  # what no column type holds is there all the same
    return {}


def _missing(have: Mapping[str, IcebergType | None], needed: StructType, path: str = "") -> Iterator[str]:
    from pyspark.sql.types import StructType as Nested

    for field in needed.fields:
        if field.name not in have:
            yield f"{path}{field.name}"
        elif isinstance(inner := have[field.name], Struct) and isinstance(field.dataType, Nested):
            yield from _missing(dict(inner.fields), field.dataType, f"{path}{field.name}.")


def _words(contract: Contract, schema: WriterSchema, subject: str, lost: list[str]) -> str:
    gone = [tuple(path.split(".")) for path in lost]
    names = [c.name for c in contract.columns if any(c.path[: len(g)] == g[: len(c.path)] for g in gone if c.path)]
    required = [c.name for c in contract.columns if c.required and any(c.path[: len(g)] == g for g in gone)]
    told = f"the newest schema of {subject} (id {schema.id}) has no field {', '.join(lost)}, which "
    told += f"{', '.join(names) or 'an expression'} reads: it is null in records written with that schema"
    return told + (f"; {', '.join(required)} may not be, so they go to the quarantine" if required else "")
