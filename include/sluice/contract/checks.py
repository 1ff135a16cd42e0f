"""What must hold between the fields of one contract: names that exist, keys that can be merged on, sources that agree.

`contract.contract.Contract` calls them when all of its fields are well formed. Each check adds every flaw it finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.contract import topic_pattern, values
from sluice.contract.checks_columns import check_auto, check_cdc, check_columns, check_history, check_whole
from sluice.contract.columns import KAFKA_TYPES, PLAIN, REGISTERED
from sluice.contract.partitioning import PartitionField, misfit, parse_partition
from sluice.contract.types import Decimal, IcebergType, Struct, is_primitive
from sluice.contract.values import Flaws

if TYPE_CHECKING:
    from sluice.contract.fields import ContractFields

_INVARIANT = "Sluice's exactly-once rests on it"
_FIXED_PROPERTIES = {
    "write.merge.isolation-level": ("serializable", _INVARIANT),
    "write.update.isolation-level": ("serializable", _INVARIANT),
    "write.delete.isolation-level": ("serializable", _INVARIANT),
    "write.format.default": ("parquet", "PyIceberg reads nothing else"),
    "write.wap.enabled": ("false", "publishing has a branch of its own"),
    "write.spark.accept-any-schema": ("false", "the contract is the schema"),
}
_REFUSED_PROPERTIES = {
    "format-version": "use the field format_version",
    "history.expire.max-ref-age-ms": "it would expire the tag that keeps the table's offsets",
    "history.expire.max-snapshot-age-ms": "use maintenance.snapshot_age: Sluice expires by that",
    "history.expire.min-snapshots-to-keep": "use maintenance.min_snapshots: Sluice expires by that",
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


def check_contract(contract: ContractFields, flaws: Flaws) -> None:
    """Note in `flaws` whatever contradicts itself in `contract`."""
    check_auto(contract, flaws)
    _check_columns(contract, flaws)
    check_columns(contract, flaws)
    check_history(contract, flaws)
    check_cdc(contract, flaws)
    if contract.value.types and contract.value.format not in REGISTERED:
        message = f"stand in a registry's schemas ({', '.join(REGISTERED)}), not in {contract.value.format}"
        flaws.add("value", "types", message=message)
    _check_sources(contract, flaws)
    check_topics(contract, flaws)
    _check_identifier(contract, flaws)
    _check_order(contract, flaws)
    _check_partitions(contract, flaws)
    _check_properties(contract, flaws)
    _check_sort(contract, flaws)


def _check_columns(contract: ContractFields, flaws: Flaws) -> None:
    seen: dict[str, str] = {}
    for index, column in enumerate(contract.columns):
        first = seen.setdefault(column.name.lower(), column.name)
        if index and any(first.lower() == each.name.lower() for each in contract.columns[:index]):
            same = "" if first == column.name else f" (as {first!r}: case makes no difference)"
            flaws.add("columns", index, "name", message=f"column {column.name!r} stands twice{same}")
    _check_renames(contract, flaws)


def _check_renames(contract: ContractFields, flaws: Flaws) -> None:
    """What a column was called must not be another column of the contract, nor be claimed twice."""
    names = {column.name for column in contract.columns}
    claimed: set[str] = set()
    for index, column in enumerate(contract.columns):
        was = column.renamed_from
        if was is None:
            continue
        if was in names:
            flaws.add("columns", index, "renamed_from", message=f"{was!r} is a column of this contract")
        elif was in claimed:
            flaws.add("columns", index, "renamed_from", message=f"{was!r} stands twice")
        claimed.add(was)


_Taken = dict[tuple[str, ...], tuple[tuple[str, ...], IcebergType]]
"""What is read, by its path in small letters: the path as it is written, and the type."""


def _check_sources(contract: ContractFields, flaws: Flaws) -> None:
    """One field of the value is read with one type, so two columns may share it only if they agree."""
    taken: _Taken = {}
    read = [("columns", i, c) for i, c in enumerate(contract.columns) if c.source and not c.ends]
    for part, index, column in [*read, *(("inputs", i, c) for i, c in enumerate(contract.inputs))]:
        at = (part, index, "source")
        side, form = ("key", contract.key.format) if column.from_key else ("value", contract.value.format)
        check_whole(column, side, form, flaws, (part, index))
        path_here = ("$key", *column.key_path) if column.from_key else column.path
        if path_here == ("$key", "$key") and form in PLAIN:
            continue
        if wrong := _contradiction(column.source, path_here, column.type, taken):
            flaws.add(*at, message=wrong)
        taken.setdefault(_folded(path_here), (path_here, column.type))
    cdc = contract.cdc
    if cdc and cdc.format == "op_field" and cdc.op and (wrong := _contradiction(cdc.op, cdc.op_path, None, taken)):
        flaws.add("cdc", "op", message=wrong)


def _folded(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.lower() for part in path)


def _contradiction(source: str, path: tuple[str, ...], kind: IcebergType | None, taken: _Taken) -> str | None:
    """How what is read at a path contradicts what else is read.

    Args:
        kind: as which type; None for what the operation is told by, which may stand in a struct that is read.
    """
    for other, (there, known) in taken.items():
        shorter = min(len(other), len(path))
        if other[:shorter] != _folded(path)[:shorter]:
            continue
        if there[:shorter] != path[:shorter]:
            return f"{source!r} and {'.'.join(there)!r} differ only by case, and Spark tells them not apart"
        if kind is None:
            if len(path) < len(other) or not _holds(known, path[shorter:]):
                return f"{source!r} is no plain value where {'.'.join(there)!r} is read as {known}"
            continue
        if len(other) != len(path):
            return f"{source!r} and {'.'.join(there)!r}: one is a field inside the other; read the outer one"
        if kind != known:
            return f"field {source!r} is read as {kind} by another column; one field has one type"
    return None


def _holds(kind: IcebergType, path: tuple[str, ...]) -> bool:
    """Whether a value of that type has a plain value at a path."""
    for name in path:
        fields = dict(kind.fields) if isinstance(kind, Struct) else {}
        if name not in fields:
            return False
        kind = fields[name]
    return is_primitive(kind)


def _check_identifier(contract: ContractFields, flaws: Flaws) -> None:
    if contract.keyed and not contract.identifier:
        message = f"mode {contract.mode} needs identifier: the columns that make up the key of a row"
        flaws.add("identifier", message=message)
    if not contract.keyed and contract.identifier:
        flaws.add("identifier", message="mode append has no identifier; use mode: upsert or history, or leave it out")
    if not contract.keyed and "deletes" in contract.model_fields_set:
        flaws.add("deletes", message="mode append deletes nothing; use mode: upsert, or leave it out")
    _refuse_repeats(contract.identifier, "identifier", flaws)
    types = {column.name: column.type for column in contract.columns}
    for index, name in enumerate(contract.identifier):
        kind = types.get(name)
        if kind is None and contract.auto:
            continue  # the registry may know it: what it gives is checked as well
        if kind is None:
            flaws.add("identifier", index, message=f"there is no column {name!r}{values.nearest(name, types)}")
        elif not is_primitive(kind) or str(kind) in {"float", "double"}:
            flaws.add("identifier", index, message=f"a {kind} cannot be a key: equality of it is not reliable")
    given = contract.cdc is None and "deletes" in contract.model_fields_set
    explicit = contract.upsert and given and contract.deletes == "tombstone"
    # Whoever asks for tombstones must get them; whoever is silent gets an error only if one arrives.
    known = bool(contract.identifier) and set(contract.identifier) <= set(types)
    if explicit and known and not contract.tombstone_column and not contract.key_names_rows:
        message = (
            "a tombstone carries only the record's key, which cannot name a row here: it takes an identifier of one "
            f"column that a key of format {contract.key.format} can be read as; otherwise deletes: ignore"
        )
        flaws.add("deletes", message=message)


def _check_order(contract: ContractFields, flaws: Flaws) -> None:
    if contract.order and not contract.keyed:
        flaws.add("order", message="mode append keeps every record: there are no versions to order")
        return
    if contract.keyed and contract.mixed and not contract.order:
        message = "with several topics, offsets do not order the versions of a key: name columns, or _kafka_timestamp"
        flaws.add("order", message=message)
    _refuse_repeats(contract.order, "order", flaws)
    columns = {column.name: column for column in contract.columns}
    for index, name in enumerate(contract.order):
        column = columns.get(name)
        if name == "_kafka_timestamp" or (column is None and contract.auto):
            continue
        if column is None:
            hint = values.nearest(name, [*columns, "_kafka_timestamp"])
            flaws.add("order", index, message=f"there is no column {name!r}{hint}")
        elif name in contract.identifier or column.from_key:
            flaws.add("order", index, message=f"{name!r} is the same in all versions of a key, so it orders nothing")
        elif not is_primitive(column.type):
            flaws.add("order", index, message=f"{column.type} has no order")
        elif not column.required:
            flaws.add(
                "order", index, message=f"{name!r} must be required: a version without it has no place in the order"
            )
        elif contract.tombstones_delete:
            way_out = "cdc.tombstones: ignore, if an event before it deletes" if contract.cdc else "deletes: ignore"
            message = f"a tombstone has no value, hence no {name!r}: order by _kafka_timestamp, or set {way_out}"
            flaws.add("order", index, message=message)


def _check_partitions(contract: ContractFields, flaws: Flaws) -> None:
    types = {**{column.name: column.type for column in contract.columns}, **KAFKA_TYPES}
    names: dict[str, PartitionField] = {}
    families: dict[tuple[str, str], PartitionField] = {}
    for index, text in enumerate(contract.partition_by):
        try:
            field = parse_partition(text)
        except ValueError as error:
            flaws.add("partition_by", index, message=str(error))
            continue
        kind = types.get(field.column)
        if kind is None and contract.auto:
            continue
        wrong = (
            f"there is no column {field.column!r}{values.nearest(field.column, types)}"
            if kind is None
            else misfit(field, kind)
        )
        if not wrong and (twin := families.setdefault(field.family, field)) is not field:
            wrong = f"{field} and {twin} are redundant: keep one"
        if not wrong and field.transform != "identity" and field.name.lower() in {each.lower() for each in types}:
            wrong = f"the partition field would be called {field.name!r}, which is a column"
        if not wrong and names.setdefault(field.name.lower(), field) is not field:
            wrong = f"{field} and {names[field.name.lower()]} would both be called {field.name!r}"
        if wrong:
            flaws.add("partition_by", index, message=wrong)


def _check_properties(contract: ContractFields, flaws: Flaws) -> None:
    for key, value in contract.properties.items():
        if key in _FIXED_PROPERTIES and value != _FIXED_PROPERTIES[key][0]:
            wanted, why = _FIXED_PROPERTIES[key]
            flaws.add("properties", key, message=f"must stay {wanted}: {why}")
        elif key in _REFUSED_PROPERTIES:
            flaws.add("properties", key, message=_REFUSED_PROPERTIES[key])
        elif key in _RESERVED_PROPERTIES or key.startswith("sluice."):
            owner = "Sluice" if key.startswith("sluice.") else "Iceberg"
            flaws.add("properties", key, message=f"is written by {owner} itself")


def _check_sort(contract: ContractFields, flaws: Flaws) -> None:
    """Names and types of `maintenance.sort_by`, by what Iceberg's rewrite can sort."""
    settings = contract.maintenance
    types = {**{column.name: column.type for column in contract.columns}, **KAFKA_TYPES}
    constant = {text.strip() for text in contract.partition_by}
    for index, name in enumerate(settings.sort_by):
        kind = types.get(name)
        if kind is None and contract.auto:
            continue
        if kind is None:
            wrong = f"there is no column {name!r}{values.nearest(name, types)}"
        elif not is_primitive(kind):
            wrong = f"{kind} has no order"
        elif settings.strategy == "zorder" and isinstance(kind, Decimal):
            wrong = f"zorder does not take {kind}: use strategy: sort, or leave the column out"
        elif name in constant:
            wrong = f"{name!r} is the same in all rows of a partition, so it sorts nothing"
        elif name in settings.sort_by[:index]:
            wrong = f"{name!r} stands twice"
        else:
            continue
        flaws.add("maintenance", "sort_by", index, message=wrong)


def _refuse_repeats(names: tuple[str, ...], field: str, flaws: Flaws) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            flaws.add(field, index, message=f"{name!r} stands twice")


def check_topics(contract: ContractFields, flaws: Flaws) -> None:
    """Note in `flaws` what is wrong with the topics, and with the names that a template makes of them."""
    if not contract.topic and not contract.matching:
        flaws.add("topic", message="must not be empty")
    if isinstance(contract.start, dict) and (len(contract.topic) > 1 or contract.matching):
        flaws.add("start", message="offsets per partition need a single topic; use a timestamp, earliest or latest")
    made: dict[str, str] = {}
    for index, topic in enumerate(contract.topic):
        if topic in contract.topic[:index]:
            flaws.add("topic", index, message=f"{topic!r} stands twice")
        elif contract.template:
            try:
                table = topic_pattern.table_of(contract.table, topic)
            except ValueError as error:
                flaws.add("topic", index, message=f"{error}. Give it a contract of its own")
                continue
            if (other := made.setdefault(table.lower(), topic)) != topic:
                message = f"{topic!r} and {other!r} both make the table {table!r}: give one a contract of its own"
                flaws.add("topic", index, message=message)
