"""Checks between the fields of one contract: names that exist, keys that can be merged on, sources that agree.

`contract.contract.Contract` calls them once each field is valid by itself; each check adds all errors it finds.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from sluice.contract import suggestions, topic_pattern
from sluice.contract.checks_columns import (
    check_auto,
    check_cdc,
    check_columns,
    check_header,
    check_history,
    check_whole_source,
)
from sluice.contract.columns import KAFKA_TYPES, REGISTRY_FORMATS, TEXT_AND_BYTES
from sluice.contract.partitioning import PartitionField, parse_partition, type_mismatch
from sluice.contract.types import Decimal, IcebergType, Struct, is_primitive
from sluice.contract.values import FieldErrors, join_names

if TYPE_CHECKING:
    from sluice.contract.columns import Input
    from sluice.contract.fields import ContractFields

_INVARIANT = "Sluice's exactly-once guarantee depends on it"
_FIXED_PROPERTIES = {
    "write.merge.isolation-level": ("serializable", _INVARIANT),
    "write.update.isolation-level": ("serializable", _INVARIANT),
    "write.delete.isolation-level": ("serializable", _INVARIANT),
    "write.format.default": ("parquet", "PyIceberg reads no other format"),
    "write.wap.enabled": ("false", "publishing uses its own branch"),
    "write.spark.accept-any-schema": ("false", "the contract defines the schema"),
}
_REFUSED_PROPERTIES = {
    "format-version": "use the field format_version",
    "history.expire.max-ref-age-ms": "it would expire the tag that holds the table's offsets",
    "history.expire.max-snapshot-age-ms": "use maintenance.snapshot_age",
    "history.expire.min-snapshots-to-keep": "use maintenance.min_snapshots",
}
_RESERVED_PROPERTIES = frozenset(
    {
        "current-schema",
        "current-snapshot-id",
        "current-snapshot-summary",
        "current-snapshot-timestamp-ms",
        "default-partition-spec",
        "default-sort-order",
        "snapshot-count",
        "uuid",
    }
)


def check_contract(contract: ContractFields, errors: FieldErrors) -> None:
    """Add to `errors` all contradictions between the contract's fields."""
    check_auto(contract, errors)
    _check_columns(contract, errors)
    check_columns(contract, errors)
    check_history(contract, errors)
    check_cdc(contract, errors)
    if contract.value.types and contract.value.format not in REGISTRY_FORMATS:
        message = f"needs a schema registry's format ({', '.join(REGISTRY_FORMATS)}), not {contract.value.format}"
        errors.add("value", "types", message=message)
    _check_sources(contract, errors)
    check_topics(contract, errors)
    _check_identifier(contract, errors)
    _check_order(contract, errors)
    _check_partitions(contract, errors)
    _check_properties(contract, errors)
    _check_sort(contract, errors)
    _check_retention(contract, errors)


def _check_columns(contract: ContractFields, errors: FieldErrors) -> None:
    seen: dict[str, str] = {}
    for index, column in enumerate(contract.columns):
        first = seen.get(column.name.lower())
        if first is None:
            seen[column.name.lower()] = column.name
        else:
            same = "" if first == column.name else f" (as {first!r}: names are not case-sensitive)"
            errors.add("columns", index, "name", message=f"column {column.name!r} is a duplicate{same}")
    _check_renames(contract, errors)


def _check_renames(contract: ContractFields, errors: FieldErrors) -> None:
    """A column's earlier name must not be another column of the contract, nor be used twice."""
    names = {column.name for column in contract.columns}
    renamed: set[str] = set()
    for index, column in enumerate(contract.columns):
        was = column.renamed_from
        if was is None:
            continue
        if was in names:
            errors.add("columns", index, "renamed_from", message=f"{was!r} is a column of this contract")
        elif was in renamed:
            errors.add("columns", index, "renamed_from", message=f"{was!r} is a duplicate")
        renamed.add(was)


_Fields = dict[str, dict[tuple[str, ...], tuple[tuple[str, ...], "Input"]]]
"""Fields that are read, by the first name of their path and by the path, both in lower case: the path as written, and
who reads it. Only fields with the same first name can conflict, and each parse of a DAG file compares them."""


def _check_sources(contract: ContractFields, errors: FieldErrors) -> None:
    """Two columns may read the same field only with the same type and unit."""
    fields: _Fields = {}
    read = [("columns", i, c) for i, c in enumerate(contract.columns) if c.source and not c.is_valid_to]
    for part, index, column in [*read, *(("inputs", i, c) for i, c in enumerate(contract.inputs))]:
        at = (part, index, "source")
        if column.header is not None:
            check_header(column, errors, (part, index))
            continue
        side, form = ("key", contract.key.format) if column.from_key else ("value", contract.value.format)
        check_whole_source(column, side, form, errors, (part, index))
        path = ("$key", *column.key_path) if column.from_key else column.path
        if path == ("$key", "$key") and form in TEXT_AND_BYTES:
            continue
        if conflict := _source_conflict(column.source, path, column, fields):
            errors.add(*at, message=conflict)
        fields.setdefault(path[0].lower(), {}).setdefault(_lower(path), (path, column))
    cdc = contract.cdc
    if (
        cdc
        and cdc.format == "op_field"
        and cdc.op
        and (conflict := _source_conflict(cdc.op, cdc.op_path, None, fields))
    ):
        errors.add("cdc", "op", message=conflict)


def _lower(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.lower() for part in path)


def _source_conflict(source: str, path: tuple[str, ...], reader: Input | None, fields: _Fields) -> str | None:
    """Return why a path can't be read beside the other fields; None if it can.

    Args:
        source: the path as the contract has it.
        path: its parts.
        reader: what reads it; None for the operation's field, which may be inside a struct that is read.
        fields: the other fields.
    """
    for other, (there, known) in fields.get(path[0].lower(), {}).items():
        shorter = min(len(other), len(path))
        if other[:shorter] != _lower(path)[:shorter]:
            continue
        if there[:shorter] != path[:shorter]:
            return f"{source!r} and {join_names(there)!r} differ only by case, which Spark does not distinguish"
        if reader is None:
            if len(path) < len(other) or not _has_primitive(known.type, path[shorter:]):
                return f"{source!r} is not a primitive value, since {join_names(there)!r} is read as {known.type}"
            continue
        if len(other) != len(path):
            return f"{source!r} and {join_names(there)!r}: one contains the other; read only the outer one"
        if (reader.type, reader.unit) != (known.type, known.unit):
            return f"field {source!r} is read as {known.described_type} by another column; use one type and unit"
    return None


def _has_primitive(kind: IcebergType, path: tuple[str, ...]) -> bool:
    """Return whether a value of that type has a primitive value at a path."""
    for name in path:
        fields = dict(kind.fields) if isinstance(kind, Struct) else {}
        if name not in fields:
            return False
        kind = fields[name]
    return is_primitive(kind)


def _check_identifier(contract: ContractFields, errors: FieldErrors) -> None:
    if contract.keyed and not contract.identifier:
        message = f"mode {contract.mode} needs identifier: the columns that identify a row"
        errors.add("identifier", message=message)
    if not contract.keyed and contract.identifier:
        errors.add("identifier", message="mode append has no identifier; use mode: upsert or history, or remove it")
    if not contract.keyed and "deletes" in contract.model_fields_set:
        errors.add("deletes", message="mode append never deletes; use mode: upsert, or remove it")
    _refuse_repeats(contract.identifier, "identifier", errors)
    types = {column.name: column.type for column in contract.columns}
    for index, name in enumerate(contract.identifier):
        kind = types.get(name)
        if kind is None and contract.auto:
            continue  # it may be a column from the registry; those are checked later
        if kind is None:
            errors.add(
                "identifier", index, message=f"there is no column {name!r}{suggestions.did_you_mean(name, types)}"
            )
        elif not is_primitive(kind) or str(kind) in {"float", "double"}:
            errors.add("identifier", index, message=f"a {kind} cannot be a key: its equality is not reliable")
        elif contract.column(name).header is not None and contract.tombstones_delete:
            message = "a tombstone is found by its key, and not by its headers: set deletes: ignore"
            errors.add("identifier", index, message=message)
    given = contract.cdc is None and "deletes" in contract.model_fields_set
    explicit = contract.upsert and given and contract.deletes == "tombstone"
    # An error only if the contract sets tombstones itself; by default an arriving tombstone is the error.
    known = bool(contract.identifier) and set(contract.identifier) <= set(types)
    if explicit and known and not contract.tombstone_column and not contract.key_names_rows:
        message = (
            "a tombstone has only the record's key, which does not identify a row here: use an identifier of one "
            f"column that a key of format {contract.key.format} can be read as, or deletes: ignore"
        )
        errors.add("deletes", message=message)


def _check_order(contract: ContractFields, errors: FieldErrors) -> None:
    if contract.order and not contract.keyed:
        errors.add("order", message="mode append keeps every record: it has no versions to order")
        return
    if contract.keyed and contract.reads_several_topics and not contract.order:
        message = "with several topics, offsets do not order the versions of a key: set columns, or _kafka_timestamp"
        errors.add("order", message=message)
    _refuse_repeats(contract.order, "order", errors)
    columns = {column.name: column for column in contract.columns}
    for index, name in enumerate(contract.order):
        column = columns.get(name)
        if name == "_kafka_timestamp" or (column is None and contract.auto):
            continue
        if column is None:
            hint = suggestions.did_you_mean(name, [*columns, "_kafka_timestamp"])
            errors.add("order", index, message=f"there is no column {name!r}{hint}")
        elif name in contract.identifier or column.from_key:
            errors.add("order", index, message=f"{name!r} is the same in all versions of a key, so it can't order them")
        elif not is_primitive(column.type):
            errors.add("order", index, message=f"{column.type} has no order")
        elif not column.required:
            errors.add("order", index, message=f"{name!r} must be required: a version without it can't be ordered")
        elif contract.tombstones_delete:
            next_step = "cdc.tombstones: ignore, if an event before it deletes" if contract.cdc else "deletes: ignore"
            message = f"a tombstone has no {name!r}: order by _kafka_timestamp, or set {next_step}"
            errors.add("order", index, message=message)


def _check_partitions(contract: ContractFields, errors: FieldErrors) -> None:
    types = {**{column.name: column.type for column in contract.columns}, **KAFKA_TYPES}
    names: dict[str, PartitionField] = {}
    by_redundancy_key: dict[tuple[str, str], PartitionField] = {}
    for index, text in enumerate(contract.partition_by):
        try:
            field = parse_partition(text)
        except ValueError as error:
            errors.add("partition_by", index, message=str(error))
            continue
        kind = types.get(field.column)
        if kind is None and contract.auto:
            continue
        problem = (
            f"there is no column {field.column!r}{suggestions.did_you_mean(field.column, types)}"
            if kind is None
            else type_mismatch(field, kind)
        )
        if not problem and (twin := by_redundancy_key.setdefault(field.redundancy_key, field)) is not field:
            problem = f"{field} and {twin} are redundant: keep one"
        if not problem and field.transform != "identity" and field.name.lower() in {each.lower() for each in types}:
            problem = f"the partition field would be called {field.name!r}, which is a column"
        if not problem and names.setdefault(field.name.lower(), field) is not field:
            problem = f"{field} and {names[field.name.lower()]} would both be called {field.name!r}"
        if problem:
            errors.add("partition_by", index, message=problem)


def _check_properties(contract: ContractFields, errors: FieldErrors) -> None:
    for key, value in contract.properties.items():
        if key in _FIXED_PROPERTIES and value != _FIXED_PROPERTIES[key][0]:
            wanted, why = _FIXED_PROPERTIES[key]
            errors.add("properties", key, message=f"must be {wanted}: {why}")
        elif key in _REFUSED_PROPERTIES:
            errors.add("properties", key, message=_REFUSED_PROPERTIES[key])
        elif key in _RESERVED_PROPERTIES or key.startswith("sluice."):
            owner = "Sluice" if key.startswith("sluice.") else "Iceberg"
            errors.add("properties", key, message=f"is set by {owner} itself")


def _check_sort(contract: ContractFields, errors: FieldErrors) -> None:
    """Check `maintenance.sort_by` against what Iceberg's rewrite can sort by."""
    settings = contract.maintenance
    types = {**{column.name: column.type for column in contract.columns}, **KAFKA_TYPES}
    constant = {text.strip() for text in contract.partition_by}
    for index, name in enumerate(settings.sort_by):
        kind = types.get(name)
        if kind is None and contract.auto:
            continue
        if kind is None:
            problem = f"there is no column {name!r}{suggestions.did_you_mean(name, types)}"
        elif not is_primitive(kind):
            problem = f"{kind} has no order"
        elif settings.strategy == "zorder" and isinstance(kind, Decimal):
            problem = f"zorder does not support {kind}: use strategy: sort, or remove the column"
        elif name in constant:
            problem = f"{name!r} is the same in all rows of a partition, so sorting by it has no effect"
        elif name in settings.sort_by[:index]:
            problem = f"{name!r} is a duplicate"
        else:
            continue
        errors.add("maintenance", "sort_by", index, message=problem)


def _check_retention(contract: ContractFields, errors: FieldErrors) -> None:
    if contract.retention is None:
        return
    at = ("retention", "column")
    column = next((c for c in contract.columns if c.name == contract.retention.column), None)
    if contract.mode == "history":
        errors.add("retention", message="mode history keeps every version: remove it")
    if contract.retention.keep < timedelta(days=1):
        errors.add("retention", "keep", message="must be 1d or more: whole days are deleted")
    if column is None:
        if not contract.auto:
            hint = suggestions.did_you_mean(contract.retention.column, [c.name for c in contract.columns])
            errors.add(*at, message=f"there is no column {contract.retention.column!r}{hint}")
    elif str(column.type) not in ("date", "timestamp", "timestamptz"):
        errors.add(*at, message=f"needs type date, timestamp or timestamptz, not {column.type}")
    elif column.mask:
        errors.add(*at, message="a masked column has no time")


def _refuse_repeats(names: tuple[str, ...], field: str, errors: FieldErrors) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            errors.add(field, index, message=f"{name!r} is a duplicate")


def check_topics(contract: ContractFields, errors: FieldErrors) -> None:
    """Add to `errors` what is wrong with the topics, and with the table names that a template makes of them."""
    if not contract.topic and not contract.topic_pattern:
        errors.add("topic", message="must not be empty")
    if isinstance(contract.start, dict) and (len(contract.topic) > 1 or contract.topic_pattern):
        errors.add("start", message="offsets per partition need a single topic; use a timestamp, earliest or latest")
    tables: dict[str, str] = {}
    for index, topic in enumerate(contract.topic):
        if topic in contract.topic[:index]:
            errors.add("topic", index, message=f"{topic!r} is a duplicate")
        elif contract.is_template:
            try:
                table = topic_pattern.table_for_topic(contract.table, topic)
            except ValueError as error:
                errors.add("topic", index, message=f"{error}. Write a separate contract for it")
                continue
            if (other := tables.setdefault(table.lower(), topic)) != topic:
                message = f"{topic!r} and {other!r} both map to table {table!r}: write a separate contract for one"
                errors.add("topic", index, message=message)
