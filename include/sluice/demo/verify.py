"""Compares every row and value of the demo's tables with the records that were sent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyiceberg.catalog import Catalog

from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.demo.source import KEYS, SentRecords
from sluice.offsets import OffsetRange

COORDINATES = ("_kafka_partition", "_kafka_offset")


def find_differences(catalog: Catalog, contracts: Contracts, sent: SentRecords) -> dict[str, list[str]]:
    """Return the differences from the input by table; an empty list for a correct table."""
    found = {"aviation.flights": _flights(catalog, contracts.table("aviation.flights"), sent)}
    for topic in KEYS:
        name = f"aviation.{topic}"
        found[name] = _register(catalog, contracts.table(name), sent.registers[topic])
    return found


def _flights(catalog: Catalog, contract: Contract, sent: SentRecords) -> list[str]:
    """Check that every record is in the table once, with its coordinates and values."""
    wanted = _expected_flights(sent)
    table = catalog.load_table(tuple(contract.table.split(".")))
    columns = [c.name for c in contract.columns]
    have = table.scan(selected_fields=(*columns, *COORDINATES)).to_arrow()
    order = [(name, "ascending") for name in COORDINATES]
    have, wanted = have.sort_by(order), wanted.sort_by(order)
    if have.num_rows != wanted.num_rows:
        return [f"{have.num_rows} rows, but {wanted.num_rows} records were sent"]
    problems = []
    for name in (*COORDINATES, *columns):
        left = have[name].combine_chunks()
        right = wanted[name].cast(left.type).combine_chunks()
        if not left.equals(right):
            same = pc.sum(pc.fill_null(pc.equal(left, right), pc.and_(pc.is_null(left), pc.is_null(right)))).as_py()
            problems.append(f"column {name} differs in {len(left) - (same or 0)} rows")
    return problems


def _expected_flights(sent: SentRecords) -> pa.Table:
    lines = b"\n".join(value for _, _, value in sent.flights)
    text = pa.schema([("flight_date", pa.string()), ("time_hour", pa.string()), ("tailnum", pa.string())])
    table = pj.read_json(pa.BufferReader(lines), parse_options=pj.ParseOptions(explicit_schema=text))
    for name, kind in (("flight_date", pa.date32()), ("time_hour", pa.timestamp("us", "UTC"))):
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(kind))
    table = table.append_column(COORDINATES[0], pa.array([p for p, _, _ in sent.flights], pa.int32()))
    return table.append_column(COORDINATES[1], pa.array([o for _, o, _ in sent.flights], pa.int64()))


def _register(catalog: Catalog, contract: Contract, last_values: dict[str, dict[str, Any]]) -> list[str]:
    """Check that the table has exactly the keys that are not deleted, each with its last values."""
    columns = {c.name: KEYS[contract.topics[0]] if c.from_key else c.source for c in contract.columns}
    table = catalog.load_table(tuple(contract.table.split(".")))
    rows = table.scan(selected_fields=tuple(columns)).to_arrow().to_pylist()
    key = contract.identifier[0]
    have = {row[key]: row for row in rows}
    wanted = {k: {name: row.get(source) for name, source in columns.items()} for k, row in last_values.items()}
    problems = []
    if len(have) != len(rows):
        problems.append(f"{len(rows) - len(have)} rows have the key of another row")
    if missing := sorted(set(wanted) - set(have)):
        problems.append(f"{len(missing)} keys are missing, such as {missing[0]}")
    if extra := sorted(set(have) - set(wanted)):
        problems.append(f"{len(extra)} keys are not in the input, such as {extra[0]}")
    if wrong := sorted(k for k in set(have) & set(wanted) if have[k] != wanted[k]):
        k = wrong[0]
        problems.append(f"{len(wrong)} rows have wrong values, such as {have[k]} instead of {wanted[k]}")
    return problems


def find_offset_differences(ends: dict[int, OffsetRange], cursor: dict[int, int]) -> list[str]:
    """Return one sentence for each partition whose cursor is not at the log end offset."""
    return [
        f"partition {p}: the cursor is {cursor.get(p)}, the log end offset is {marks.end}"
        for p, marks in sorted(ends.items())
        if cursor.get(p) != marks.end
    ]
