"""What the newest schema of a topic's writers no longer has of what a contract reads, or has as another type.

Seen before its records come. What a schema does not name is missed where it is in no record: by Avro and Protobuf, and
by a JSON Schema that allows no more than it names.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sluice.contract import Contract
from sluice.contract_cdc import rows_at
from sluice.contract_formats import REGISTERED
from sluice.errors import SluiceError
from sluice.iceberg_types import IcebergType, Struct
from sluice.kafka_retention import Risk
from sluice.registry import Registry, WriterSchema, subjects_of
from sluice.status_model import Kind

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)


def look(contract: Contract, registry: Registry | None = None) -> list[Risk]:
    """Warnings of topics whose newest schema lacks fields that columns or inputs are read from, or does not fit them.

    Of change events the row is looked at, in an envelope the one after the change: what tells the operation depends on
    how the connector is set. A topic without a subject of the type is passed over, and so are several types, of which
    each has what others lack. A registry that does not answer is no reason to stop planning.
    """
    types = contract.value.types
    if contract.value.format not in REGISTERED or len(types) > 1:
        return []
    from sluice import json_fit
    from sluice.shapes import of_types, unfit

    needed = _wanted(contract)
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
        if contract.value.format == "json_schema":
            lost = [n for n in needed.names if n not in have] if json_fit.closed(schema) else []
            why, which = json_fit.unfit(have, needed), "records that have one"
        else:
            lost = list(_missing(have, needed))
            why, which = unfit(contract.value.format, schema, needed), "all records written with it"
        if lost:
            found.append(Risk(Kind.SCHEMA, topic, _words(contract, schema, subject, lost), contract.table))
        if why:
            told = f"in the newest schema of {subject} (id {schema.id}) {why.told}: {which}"
            found.append(Risk(Kind.SCHEMA, topic, f"{told} go to the quarantine", contract.table))
    return found


def _wanted(contract: Contract) -> StructType:
    from pyspark.sql.types import StructField
    from pyspark.sql.types import StructType as Nested

    from sluice.decode import wanted

    row = wanted(contract.model_copy(update={"cdc": None}))
    at = rows_at(contract)[0]
    return Nested([StructField(at[0], row)]) if at and row.fields else row


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
    gone = [tuple(path.split("."))[len(rows_at(contract)[0]) :] for path in lost]
    names = [c.name for c in contract.columns if any(c.path[: len(g)] == g[: len(c.path)] for g in gone if c.path)]
    required = [c.name for c in contract.columns if c.required and any(c.path[: len(g)] == g for g in gone)]
    told = f"the newest schema of {subject} (id {schema.id}) has no field {', '.join(lost)}, which "
    told += f"{', '.join(names) or 'an expression'} reads: it is null in records written with that schema"
    return told + (f"; {', '.join(required)} may not be, so they go to the quarantine" if required else "")
