"""The demo's input can be read beside all other packages, and its check finds every wrong table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from sluice.contract import folder as contract_folder
from sluice.demo import source, verify
from sluice.embedded.home import REPOSITORY
from sluice.iceberg import schema, table_names, tables
from sluice.offsets import OffsetRange

pytestmark = [
    pytest.mark.unit,
    # The package of the input says so itself; hence the pin of setuptools.
    pytest.mark.filterwarnings("ignore:pkg_resources is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:Deprecated call to `pkg_resources:DeprecationWarning"),
]


@pytest.mark.parametrize(("name", "count"), [("planes", 3322), ("airports", 1458)])
def test_the_input_can_be_read(name, count):
    assert sum(1 for _ in source._rows(name)) == count


FLIGHTS, PLANES = "aviation.flights", "aviation.planes"
Rows = list[dict[str, Any]]


@pytest.fixture
def lake(tmp_path) -> Iterator[SqlCatalog]:
    made = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    yield made
    made.close()


def sent() -> source.SentRecords:
    """Forty flights in two partitions, and twenty of each register."""
    it = source.SentRecords()
    for n, row in enumerate(islice(source._rows("flights"), 40)):
        row["flight_date"] = f"{row['year']:04}-{row['month']:02}-{row['day']:02}"
        it.flights.append((n % 2, n // 2, json.dumps(row).encode()))
    for topic, key in source.KEYS.items():
        it.registers[topic] = {row[key]: row for row in islice(source._rows(topic), 20)}
    return it


def typed(value: Any, name: str) -> Any:
    if name == "flight_date":
        return date.fromisoformat(value)
    return datetime.fromisoformat(value).astimezone(UTC) if name == "time_hour" else value


def rows_of(it: source.SentRecords, name: str) -> Rows:
    """What the main job makes of it."""
    promise = contract_folder.load_contracts(REPOSITORY / "include" / "contracts").table(name)
    if name == FLIGHTS:
        records = [(json.loads(value), {"_kafka_partition": p, "_kafka_offset": o}) for p, o, value in it.flights]
    else:
        topic = promise.topics[0]
        records = [
            ({**row, "$key": row[source.KEYS[topic]]}, {"_kafka_partition": 0, "_kafka_offset": n})
            for n, row in enumerate(it.registers[topic].values())
        ]
    place = {"_kafka_topic": promise.topics[0], "_kafka_timestamp": datetime.now(UTC)}
    return [
        {c.name: typed(row.get("$key" if c.from_key else c.source), c.name) for c in promise.columns} | place | at
        for row, at in records
    ]


def damaged(lake: SqlCatalog, name: str, damage: Callable[[Rows], Any]) -> dict[str, list[str]]:
    """What is said of tables one of which was damaged so."""
    promises, it = contract_folder.load_contracts(REPOSITORY / "include" / "contracts"), sent()
    for each in (FLIGHTS, PLANES, "aviation.airports"):
        # Without partitions, which PyIceberg does not write by itself.
        promise = promises.table(each)
        table = tables.ensure_table(lake, table_names.typed(promise), schema.typed_schema(promise))
        rows = rows_of(it, each)
        if each == name:
            damage(rows)
        table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    return verify.find_differences(lake, promises, it)


def doubled(rows: Rows) -> None:
    rows[3] = rows[4]


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        (FLIGHTS, lambda rows: rows, None),
        (FLIGHTS, lambda rows: rows.pop(), "39 rows, but 40 records were sent"),
        (FLIGHTS, lambda rows: rows.append(rows[0]), "41 rows, but 40 records were sent"),
        (FLIGHTS, doubled, "column _kafka_offset differs in"),
        (FLIGHTS, lambda rows: rows[7].update(carrier="??"), "column carrier differs in 1 rows"),
        (FLIGHTS, lambda rows: rows[7].update(dep_delay=None), "column dep_delay differs in 1 rows"),
        (PLANES, lambda rows: rows, None),
        (PLANES, lambda rows: rows.pop(), "1 keys are missing"),
        (PLANES, lambda rows: rows.append(rows[0]), "1 rows have the key of another row"),
        (PLANES, lambda rows: rows.append(rows[0] | {"tailnum": "N0"}), "1 keys are not in the input, such as N0"),
        (PLANES, lambda rows: rows[2].update(seats=-1), "1 rows have wrong values"),
    ],
)
def test_a_wrong_table_is_told(lake, name, damage, said):
    found = damaged(lake, name, damage)
    assert {each: problems for each, problems in found.items() if problems and each != name} == {}
    assert any(said in problem for problem in found[name]) if said else not found[name], found


def test_a_cursor_that_is_not_at_the_end_is_told():
    ends = {0: OffsetRange(0, 5), 1: OffsetRange(0, 7), 2: OffsetRange(0, 0)}
    assert verify.find_offset_differences(ends, {0: 5, 1: 7, 2: 0}) == []
    assert verify.find_offset_differences(ends, {0: 5, 1: 6}) == [
        "partition 1: the cursor is 6, the log end offset is 7",
        "partition 2: the cursor is None, the log end offset is 0",
    ]
