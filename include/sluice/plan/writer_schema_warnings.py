"""What the newest schema of a topic's writers no longer has of what a contract reads, or has as another type.

Seen before its records come. What a schema does not name is missed where it is in no record: by Avro and Protobuf, and
by a JSON Schema that allows no more than it names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sluice.contract.change_events import DELETED_SOURCE, OP_SOURCE
from sluice.contract.columns import REGISTERED, Input
from sluice.contract.contract import Contract
from sluice.contract.fields import rows_at
from sluice.contract.types import IcebergType, Struct
from sluice.errors import RegistryUnavailableError, SluiceError
from sluice.kafka.registry import Registry, WriterSchema, subjects_of
from sluice.plan.risk import Kind, Risk

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_MARKS = ("__op", "__deleted")
"""What Debezium's unwrap adds where it is asked to; without them whatever has a row is a change."""


LOOK_S = 20.0
"""How long the looks of one plan take, but for the request that is under way: a warning is not worth more."""


class Subjects:
    """The newest schemas for the looks of one plan: each subject is asked for once, and none when the time is over."""

    def __init__(self, registry: Registry | None = None) -> None:
        self._registry, self._until = registry, time.monotonic() + LOOK_S
        self._found: dict[str, WriterSchema | None] = {}

    def newest(self, subject: str) -> WriterSchema | None:
        """As the registry has it.

        Raises:
            RegistryUnavailableError: it does not answer, or there is no time left to ask.
            ConfigError: as `Registry.newest`; or no registry is named.
        """
        if subject not in self._found:
            if time.monotonic() > self._until:
                raise RegistryUnavailableError(f"The plan has asked the schema registry for {LOOK_S:.0f} s.")
            self._registry = self._registry or Registry()
            self._found[subject] = self._registry.newest(subject)
        return self._found[subject]


def look(contract: Contract, registry: Registry | Subjects | None = None) -> list[Risk]:
    """Warnings of topics whose newest schema lacks fields that columns or inputs are read from, or does not fit them.

    Of an envelope the row after the change is looked at, and what columns and the operation are read from besides it;
    of what an unwrap leaves, the operation alone may be missing. A topic without a subject of the type is passed over,
    and so are several types, of which each has what others lack. A registry that does not answer is no reason to stop
    planning.
    """
    types = contract.value.types
    if contract.value.format not in REGISTERED or len(types) > 1:
        return []
    from sluice.formats import schema_compat
    from sluice.formats.schema_compat import find_incompatible_field, of_types

    needed = _wanted(contract)
    read = {_place(contract, each)[:1] for each in (*contract.columns, *contract.inputs)}
    may_lack = {name for name in _MARKS if (name,) not in read}
    found: list[Risk] = []
    for at, topic in enumerate(contract.topics if needed.fields else ()):
        try:
            asked = registry or Registry()
            newest = ((s, whole) for s in subjects_of(topic, types) if (whole := asked.newest(s)))
            mine = ((s, one) for s, whole in newest if (one := of_types(contract.value.format, whole, types)))
            subject, schema = next(mine, ("", None))
        except SluiceError as error:
            left = ", ".join(contract.topics[at:])
            log.info("%s: the writers' newest schema of %s was not looked at: %s", contract.table, left, error.message)
            return found
        have = _fields(contract, schema) if schema else {}
        known = have.keys() & set(needed.names) - may_lack
        if schema is None or not known:  # of another message, or of a kind we can't read
            continue
        if contract.value.format == "json_schema":
            lost = [n for n in needed.names if n not in have] if schema_compat.closed(schema) else list[str]()
            why, which = schema_compat.find_incompatible_json_field(have, needed), "records that have one"
        else:
            lost = list(_missing(have, needed))
            why, which = find_incompatible_field(contract.value.format, schema, needed), "all records written with it"
        if lost := [path for path in lost if path not in may_lack]:
            found.append(Risk(Kind.SCHEMA, topic, _words(contract, schema, subject, lost), contract.table))
        if why:
            told = f"in the newest schema of {subject} (id {schema.id}) {why.told}: {which}"
            found.append(Risk(Kind.SCHEMA, topic, f"{told} go to the quarantine", contract.table))
    return found


def _wanted(contract: Contract) -> StructType:
    """What of the value is read, but for the row before a change: it lacks what the one after it lacks."""
    from pyspark.sql.types import StructType as Nested

    from sluice.formats.decode import wanted
    from sluice.formats.internal_columns import SPARE

    return Nested([f for f in wanted(contract) if SPARE not in f.metadata and f.dataType != Nested([])])


def _place(contract: Contract, each: Input) -> tuple[str, ...]:
    """Where in the value a column or input stands; empty for what is in none."""
    if each.source == OP_SOURCE and contract.cdc:
        return contract.cdc.op_path
    if each.source == DELETED_SOURCE or not each.path:
        return ()
    return (*rows_at(contract)[0], *each.path) if not each.special else (each.path[0].removeprefix("$"), *each.path[1:])


def _fields(contract: Contract, schema: WriterSchema) -> Mapping[str, IcebergType | None]:
    """The root's fields; those without a type are there, and nobody looked into them."""
    from sluice.formats.convert import UnfitError, reading_schema
    from sluice.formats.inferred_columns import READERS

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
    at = {c.name: _place(contract, c) for c in contract.columns}
    names = [name for name, p in at.items() if any(p[: len(g)] == g[: len(p)] for g in gone if p)]
    required = [c.name for c in contract.columns if c.required and any(at[c.name][: len(g)] == g for g in gone)]
    op = contract.cdc.op_path if contract.cdc and contract.cdc.format != "debezium_unwrapped" else ()
    untold = any(op[: len(g)] == g for g in gone)
    reads = ", ".join(names) or ("" if untold else "an expression")
    told = f"the newest schema of {subject} (id {schema.id}) has no field {', '.join(lost)}, which "
    told += " and ".join([f"{reads} reads"] * bool(reads) + ["tells what an event does"] * untold)
    told += ": it is null in records written with that schema"
    if untold:
        return f"{told}, so they go to the quarantine"
    return told + (f"; {', '.join(required)} may not be, so they go to the quarantine" if required else "")
