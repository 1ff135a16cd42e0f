"""What a table promises, for those who own its stream, its rows or its schema. Whether it is kept, is in `detail`.

In: the active contract and the table. Out: values for the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.contract.values import KAFKA_COLUMNS, KEY_SOURCE, VALUE_SOURCE, format_duration
from sluice.iceberg import table_names
from sluice.iceberg.active_contract import COMMENT

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from sluice.contract.columns import Column
    from sluice.contract.contract import Contract

_READING = {
    "Spark": "SELECT count(*), max(_kafka_timestamp) FROM {catalog}.{table}",
    "PyIceberg": "from pyiceberg.catalog import load_catalog\n\n"
    'load_catalog("{catalog}").load_table("{table}").scan(limit=10).to_arrow()',
    "DuckDB, the table as it is now": "SELECT count(*), max(_kafka_offset) FROM iceberg_scan('{file}')",
}
_COORDINATES = dict(zip(KAFKA_COLUMNS, ("topic", "partition", "offset", "timestamp"), strict=True))


@dataclass(frozen=True)
class ContractColumn:
    """A column as its readers see it.

    Attributes:
        source: where its values come from.
        doc: the comment in the table; empty if there is none.
        notes: key, required, masked.
    """

    name: str
    type: str
    source: str
    doc: str
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class TableContract:
    """What a table promises, and where it is.

    Attributes:
        doc: the description; empty if there is none.
        freshness: the target, as the contract writes it; empty if there is none.
        columns: those of the contract, Kafka's coordinates, and what other engines have added.
        policy: the kinds of change of the contract by what happens to them.
        expected: number of expectations.
        catalog: its name in the configuration of PyIceberg and Spark.
        location: of its files; empty without a table.
        format_version: Iceberg's.
        reading: how to read it, by engine.
    """

    doc: str = ""
    freshness: str = ""
    columns: Sequence[ContractColumn] = ()
    policy: Mapping[str, Sequence[str]] | None = None
    expected: int = 0
    catalog: str = ""
    location: str = ""
    format_version: int = 2
    reading: Sequence[tuple[str, str]] = ()


def describe_contract(table: Table | None, active: Contract) -> TableContract:
    """Describe the active contract of a table; what other engines have documented is shown as well.

    Args:
        table: None before the first run.
        active: with the columns of the registry, where the contract takes them from there.
    """
    policy: dict[str, list[str]] = {}
    for kind, answer in active.schema_policy.model_dump().items():
        policy.setdefault(answer, []).append(kind.replace("_", " "))
    return TableContract(
        doc=active.doc or (table.properties.get(COMMENT, "") if table else ""),
        freshness=format_duration(active.freshness) if active.freshness else "",
        columns=_columns(table, active),
        policy=policy,
        expected=len(active.expectations),
        catalog=table_names.catalog_name(),
        location=table.location() if table else "",
        format_version=table.format_version if table else active.format_version,
        reading=_reading(table, active.table) if table else (),
    )


def _columns(table: Table | None, active: Contract) -> list[ContractColumn]:
    fields = {f.name: f for f in table.schema().fields} if table else {}
    comments = {name: f.doc or "" for name, f in fields.items()}
    own = [
        ContractColumn(c.name, str(c.type), _source(c), c.doc or comments.get(c.name, ""), _notes(c, active))
        for c in active.columns
    ]
    names = {c.name for c in own}
    beside = [
        ContractColumn(name, str(f.field_type), _coordinate(name), comments[name], ("required",) if f.required else ())
        for name, f in fields.items()
        if name not in names
    ]
    return own + beside


def _source(column: Column) -> str:
    if column.expression:
        return f"computed: `{column.expression}`"
    if column.is_valid_to:
        return "when the next version of the key begins"
    if column.source in (KEY_SOURCE, VALUE_SOURCE):
        return f"the whole {column.source.removeprefix('$')} of the record"
    if column.from_key:
        return f"field `{column.source.removeprefix(KEY_SOURCE + '.')}` of the record's key"
    if column.from_envelope:
        return f"`{column.source.removeprefix('$')}` of the change event"
    return f"field `{column.source}` of the record's value"


def _coordinate(name: str) -> str:
    return f"Kafka: {_COORDINATES[name]} of the record" if name in _COORDINATES else "not in the contract"


def _notes(column: Column, active: Contract) -> list[str]:
    found = {
        "key": column.name in active.identifier,
        "order": column.name in active.order,
        "required": column.required,
        f"masked ({column.mask})": bool(column.mask),
    }
    return [note for note, holds in found.items() if holds]


def _reading(table: Table, name: str) -> list[tuple[str, str]]:
    known = {"catalog": table_names.catalog_name(), "table": name, "file": table.metadata_location.replace("'", "''")}
    return [(engine, text.format(**known)) for engine, text in _READING.items()]
