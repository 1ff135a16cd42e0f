"""Warns when the newest registered schema of a topic lacks a field that a contract reads, or has it as another type.

A missing field matters in Avro, in Protobuf, and in a JSON Schema that allows no fields beside those that it names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sluice.contract.change_events import DELETED_SOURCE, OP_SOURCE
from sluice.contract.columns import REGISTRY_FORMATS, Input
from sluice.contract.contract import Contract
from sluice.contract.fields import row_paths
from sluice.contract.types import IcebergType, Struct
from sluice.contract.values import quote_name, root_name, split_path
from sluice.errors import RegistryUnavailableError, SluiceError
from sluice.kafka.registry import SchemaRegistry, WriterSchema, candidate_subjects
from sluice.plan.risk import Risk, RiskKind

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_UNWRAP_FIELDS = ("__op", "__deleted")
"""Fields that Debezium's unwrap adds on request; without them every record with a row is a change."""

MAX_UNREAD_FIELDS = 100
"""A schema with more fields that no column holds is not compared: it is read once more for each of them."""
REGISTRY_SECONDS = 20.0
"""How long one plan asks the registry, apart from the last request: a warning is not worth more."""


class SubjectCache:
    """The newest schemas of one plan: each subject is requested once, and none after `REGISTRY_SECONDS`."""

    def __init__(self, registry: SchemaRegistry | None = None) -> None:
        self._registry, self._until = registry, time.monotonic() + REGISTRY_SECONDS
        self._found: dict[str, WriterSchema | None] = {}

    def newest(self, subject: str) -> WriterSchema | None:
        """The newest schema of a subject; None where it has none.

        Raises:
            RegistryUnavailableError: the registry did not answer, or the time is over.
            ConfigError: as `Registry.newest`; or no registry is named.
        """
        if subject not in self._found:
            if time.monotonic() > self._until:
                raise RegistryUnavailableError(
                    f"The schema registry was asked for {REGISTRY_SECONDS:.0f} s, which is the limit for one plan."
                )
            self._registry = self._registry or SchemaRegistry()
            self._found[subject] = self._registry.newest(subject)
        return self._found[subject]


def find_schema_risks(contract: Contract, registry: SchemaRegistry | SubjectCache | None = None) -> list[Risk]:
    """Warnings of topics whose newest schema lacks a field that columns or inputs read, or has it as another type.

    In a change event the row after the change is checked, and the fields of the envelope that the contract reads; after
    Debezium's unwrap only the operation may be missing. Topics without a subject are skipped, and so are contracts with
    several message types, of which each lacks fields of the others. A registry error ends the check without a warning.
    """
    types = contract.value.types
    if contract.value.format not in REGISTRY_FORMATS or len(types) > 1:
        return []
    from sluice.formats import schema_compat
    from sluice.formats.schema_compat import find_incompatible_field, select_schema

    needed = _value_fields(contract)
    read = {_value_path(contract, each)[:1] for each in (*contract.columns, *contract.inputs)}
    may_lack = {name for name in _UNWRAP_FIELDS if (name,) not in read}
    found: list[Risk] = []
    for at, topic in enumerate(contract.topics if needed.fields else ()):
        try:
            asked = registry or SchemaRegistry()
            newest = ((s, whole) for s in candidate_subjects(topic, types) if (whole := asked.newest(s)))
            mine = ((s, one) for s, whole in newest if (one := select_schema(contract.value.format, whole, types)))
            subject, schema = next(mine, ("", None))
        except SluiceError as error:
            left = ", ".join(contract.topics[at:])
            log.info("%s: the newest schema of %s was not checked: %s", contract.table, left, error.message)
            return found
        have = _fields(contract, schema) if schema else {}
        known = have.keys() & set(needed.names) - may_lack
        if schema is None or not known:  # a schema of another message, or of an unknown type
            continue
        if contract.value.format == "json_schema":
            lost = (
                [quote_name(n) for n in needed.names if n not in have]
                if schema_compat.is_closed(schema)
                else list[str]()
            )
            why, which = schema_compat.find_incompatible_json_field(have, needed), "records that have one"
        else:
            lost = list(_missing(have, needed))
            why, which = find_incompatible_field(contract.value.format, schema, needed), "all records written with it"
        if lost := [path for path in lost if path not in may_lack]:
            found.append(
                Risk(RiskKind.SCHEMA, topic, _describe_lost_fields(contract, schema, subject, lost), contract.table)
            )
        if why:
            text = f"in the newest schema of {subject} (id {schema.id}) {why.message}: {which} are quarantined"
            found.append(Risk(RiskKind.SCHEMA, topic, text, contract.table))
    return found


def _value_fields(contract: Contract) -> StructType:
    """The fields of the value that are read, without the row before a change: it has the fields of the row after it."""
    from pyspark.sql.types import StructType as Nested

    from sluice.formats.decode import wanted_fields
    from sluice.formats.internal_columns import BEST_EFFORT

    return Nested([f for f in wanted_fields(contract) if BEST_EFFORT not in f.metadata and f.dataType != Nested([])])


def _value_path(contract: Contract, each: Input) -> tuple[str, ...]:
    """The path in the value that a column or input reads; empty where it reads something else."""
    if each.source == OP_SOURCE and contract.cdc:
        return contract.cdc.op_path
    if each.source == DELETED_SOURCE or not each.path:
        return ()
    return each.envelope_path if each.from_envelope else (*row_paths(contract)[0], *each.path)


def _fields(contract: Contract, schema: WriterSchema) -> Mapping[str, IcebergType | None]:
    """The top-level fields of the schema; those without a type exist, but were not resolved."""
    from sluice.formats.convert import SchemaMismatchError, schema_failures_as_mismatch
    from sluice.formats.inferred_columns import FIELD_READERS

    kind, read = FIELD_READERS[contract.value.format]
    skip: set[str] = set()
    while schema.kind == kind and len(skip) <= MAX_UNREAD_FIELDS:
        try:
            with schema_failures_as_mismatch():
                return {each.name: each.type for each in read(schema, skip)}
        except SchemaMismatchError as error:
            root = root_name(error.path)
            if not root or root in skip:
                break
            skip.add(root)  # the field exists, though it has no column type
    return {}


def _missing(have: Mapping[str, IcebergType | None], needed: StructType, path: str = "") -> Iterator[str]:
    from pyspark.sql.types import StructType as Nested

    from sluice.formats.internal_columns import join_path

    for field in needed.fields:
        if field.name not in have:
            yield join_path(path, field.name)
        elif isinstance(inner := have[field.name], Struct) and isinstance(field.dataType, Nested):
            yield from _missing(dict(inner.fields), field.dataType, join_path(path, field.name))


def _describe_lost_fields(contract: Contract, schema: WriterSchema, subject: str, lost: list[str]) -> str:
    lost_paths = [split_path(path) for path in lost]
    paths = {c.name: _value_path(contract, c) for c in contract.columns}
    readers = [name for name, p in paths.items() if any(p[: len(g)] == g[: len(p)] for g in lost_paths if p)]
    required = [
        c.name for c in contract.columns if c.required and any(paths[c.name][: len(g)] == g for g in lost_paths)
    ]
    op = contract.cdc.op_path if contract.cdc and contract.cdc.format != "debezium_unwrapped" else ()
    operation_lost = any(op[: len(g)] == g for g in lost_paths)
    reads = ", ".join(readers) or ("" if operation_lost else "an expression")
    uses = [f"{reads} reads"] * bool(reads) + ["names the operation of an event"] * operation_lost
    text = f"the newest schema of {subject} (id {schema.id}) has no field {', '.join(lost)}, which {' and '.join(uses)}"
    text += ": it is null in records written with that schema"
    if operation_lost:
        return f"{text}, so they are quarantined"
    return text + (f"; {', '.join(required)} is required, so they are quarantined" if required else "")
