"""Mode history keeps every version of a row, each valid until the next one of its key, in any order of arrival."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from sluice.iceberg import cursor, table_names, tables
from sluice.ingest.publish import publish
from tests.support.backfills import backfill_request, delete_rows, read_checked_cursor, run_backfill
from tests.support.lake import Lake
from tests.support.thorough import only_thorough, usual

pytestmark = pytest.mark.spark

BODY: dict[str, Any] = {
    "mode": "history",
    "identifier": ["id"],
    "order": ["lsn"],
    "valid_from": "at",
    "deletes": "soft",
    "cdc": {"format": "debezium"},
    "inputs": [{"name": "ms", "type": "long", "source": "$ts_ms"}],
    "columns": [
        {"name": "id", "type": "int"},
        {"name": "n", "type": "long"},
        {"name": "lsn", "type": "long", "required": True, "source": "$source.lsn"},
        {"name": "gone", "type": "boolean", "source": "$deleted"},
        {"name": "at", "type": "timestamptz", "required": True, "expression": "timestamp_millis(ms)"},
        {"name": "until", "type": "timestamptz", "source": "$valid_to"},
    ],
}


def event(op: str, key: int, n: int | None, lsn: int) -> dict[str, Any]:
    after = None if op == "d" else {"id": key, "n": n}
    before = {"id": key} if op == "d" else None
    return {"before": before, "after": after, "source": {"lsn": lsn}, "op": op, "ts_ms": lsn * 1000}


def moment(event: dict[str, Any]) -> datetime:
    return datetime.fromtimestamp(event["ts_ms"] / 1000, UTC)


def expected(it: Lake) -> dict[tuple[int, int], tuple[Any, ...]]:
    """Every event sent as the version that it is, by the oracle's own reckoning."""
    by_key: dict[int, list[tuple[int, int, int, dict[str, Any]]]] = {}
    for partition, records in it.sent.items():
        for offset, (_, value) in records.items():
            if value:
                key = (value["after"] or value["before"])["id"]
                by_key.setdefault(key, []).append((value["source"]["lsn"], partition, offset, value))
    found = {}
    for key, each in by_key.items():
        each.sort(key=lambda v: v[:3])
        for version, following in zip(each, [*each[1:], None], strict=True):
            _, partition, offset, value = version
            until = moment(following[3]) if following else None
            n = value["after"]["n"] if value["after"] else None
            found[partition, offset] = (key, n, value["op"] == "d", moment(value), until)
    return found


def standing(it: Lake, table: str) -> dict[tuple[int, int], tuple[Any, ...]]:
    rows = it.rows(table)
    found = {
        (r["_kafka_partition"], r["_kafka_offset"]): (r["id"], r["n"], r["gone"], r["at"], r["until"]) for r in rows
    }
    assert len(found) == len(rows), "a version stands twice"
    return found


def test_versions_end_where_the_next_begins_whatever_the_order(lake: Callable[..., Lake]) -> None:
    """Events come shuffled, twice, over two partitions and in small batches; ranges are applied again, and refilled."""
    it = lake()
    it.create_topic(2)
    table = it.contract(**BODY, limits={"records_per_batch": 25, "batches_per_run": 10})
    draw = random.Random(7)
    alive: set[int] = set()
    events: list[dict[str, Any] | None] = []
    for lsn in range(1, 61):
        key = draw.randrange(8)
        if key in alive and draw.random() < 0.3:
            alive.discard(key)
            events.append(event("d", key, None, lsn))
        else:
            events.append(event("u" if key in alive else "c", key, lsn, lsn))
            alive.add(key)
    events.append(event("d", 99, None, 100))  # of a key that never was
    events += draw.sample(events, 15) + [None] * 3  # sent again; tombstones are passed over
    draw.shuffle(events)
    it.send((draw.randrange(2), "k", e) for e in events)
    it.drain(table)
    wanted = expected(it)
    assert standing(it, table) == wanted
    current = {row[0] for row in wanted.values() if row[4] is None and not row[2]}
    assert current == alive, "the oracle itself: what is valid now is what lives"

    staged = cursor.read_staged_batches(tables.load(it.catalog, table_names.staging(it.topic)))
    batches = [staged[seq][0] for seq in sorted(staged)]
    assert len(batches) >= 3
    for batch in draw.sample(batches, 2):
        publish(it.context(), it.contract_of(table), batch, replay=True)
        assert standing(it, table) == wanted

    at = read_checked_cursor(it, table)
    delete_rows(it, table, "_kafka_partition = 0 AND _kafka_offset BETWEEN 5 AND 14")
    assert len(standing(it, table)) < len(wanted)
    outcome = run_backfill(it, backfill_request(table, {0: [0, 20], 1: [0, 3]}))
    assert all(o["snapshot_id"] for o in outcome), outcome
    assert standing(it, table) == wanted
    assert read_checked_cursor(it, table) == at


def test_at_no_moment_are_two_versions_valid_whatever_the_times(lake: Callable[..., Lake]) -> None:
    """What is sent again, or late, has a time behind that of its successors; so has what a producer's clock tells."""
    it, other = lake(), lake()
    columns = [c for c in BODY["columns"] if c["name"] != "at"]
    body = {k: v for k, v in BODY.items() if k not in ("valid_from", "inputs")} | {"columns": columns}
    few = {"records_per_batch": 4, "batches_per_run": 10, "batches_per_commit": 1}
    ordered = it.contract(**body, limits=few)
    plain = [c for c in columns if c["name"] in ("n", "until")] + [{"name": "id", "type": "string", "source": "$key"}]
    by_offset = other.contract(mode="history", identifier=["id"], deletes="ignore", columns=plain)
    for each in (it, other):
        each.create_topic(1)
    for key, at, op, lsn in (
        (1, 1, "c", 1), (1, 2, "u", 2), (1, 100, "c", 1),  # sent again
        (2, 1, "c", 1), (2, 3, "u", 3), (2, 100, "u", 2),  # late
        (3, 1, "c", 1), (3, 2, "d", 2), (3, 100, "c", 1),  # sent again, and deleted
    ):  # fmt: skip
        it.send([(0, "k", event(op, key, None if op == "d" else lsn, lsn))], timestamp_ms=at * 1000)
    for n, at in ((1, 5), (2, 10), (3, 8)):
        other.send([(0, "k", {"n": n})], timestamp_ms=at * 1000)

    def valid(found: Lake, table: str, key: Any, second: int) -> list[int]:
        rows = [r for r in found.rows(table) if r["id"] == key and not r.get("gone")]
        moment = datetime.fromtimestamp(second, UTC)
        there = [r for r in rows if r["_kafka_timestamp"] <= moment and (r["until"] is None or moment < r["until"])]
        return [r["n"] for r in there]

    it.drain(ordered)
    other.drain(by_offset)
    for again in (True, False):
        for second in (2, 50, 200):
            assert [valid(it, ordered, key, second) for key in (1, 2, 3)] == [[2], [1 if second < 3 else 3], []]
        assert [valid(other, by_offset, "k", s) for s in (6, 8, 9, 11)] == [[1], [3], [3], [3]]
        if again:  # and nothing changes
            run_backfill(it, backfill_request(ordered, {0: [2, 7]}))
            run_backfill(other, backfill_request(by_offset, {0: [0, 2]}))


def test_history_before_the_live_feed_is_ended_by_it(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    it.send((0, "k", event("u", n % 3, n, n + 1)) for n in range(12))
    table = it.contract(**BODY, start={0: 9})
    it.drain(table)
    assert len(standing(it, table)) == 3
    outcome = run_backfill(it, backfill_request(table, {0: [0, 9]}))
    assert all(o["snapshot_id"] for o in outcome), outcome
    assert standing(it, table) == expected(it)


def test_without_an_order_the_offset_decides_and_a_key_stays_in_its_partition(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    columns = [
        {"name": "id", "type": "string", "source": "$key"},
        {"name": "n", "type": "long"},
        {"name": "until_when", "type": "timestamptz", "source": "$valid_to"},
    ]
    table = it.contract(mode="history", identifier=["id"], deletes="ignore", columns=columns)
    for number, at in enumerate((1_000, 3_000)):
        it.send([(0, "a'`", {"n": number}), (1, "b", {"n": number}), (1, "b", None)], timestamp_ms=at)
        it.drain(table)
    rows = {(r["id"], r["n"]): (r["_kafka_timestamp"], r["until_when"]) for r in it.rows(table)}
    first, second = (datetime.fromtimestamp(at, UTC) for at in (1, 3))
    assert rows == {(k, n): at for k in ("a'`", "b") for n, at in ((0, (first, second)), (1, (second, None)))}
    head = it.catalog.load_table(table).metadata.current_snapshot_id
    it.send([(1, "a'`", {"n": 9})])
    outcome = it.run()[table]
    assert outcome["state"] == "failed", outcome
    assert "A key was met in two partitions" in outcome["error"], outcome
    assert "partition 0 offset 0" in outcome["error"] and "partition 1 offset" in outcome["error"], outcome
    assert it.catalog.load_table(table).metadata.current_snapshot_id == head


@pytest.mark.usefixtures("generated_code")
def test_what_a_table_stores_otherwise_than_it_was_sent_is_the_same_all_the_same(lake: Callable[..., Lake]) -> None:
    """A key of type uuid comes back in small letters, a struct in the table's order; both as the first batch's."""
    it = lake()
    it.create_topic(1)
    key = {"name": "id", "type": "uuid", "source": "$key"}
    until = {"name": "until", "type": "timestamptz", "source": "$valid_to"}
    place = {"name": "place", "type": "struct<city: string>"}
    common = {"identifier": ["id"], "deletes": "ignore", "schema_policy": {"change_nested": "auto"}}
    history = it.contract(mode="history", columns=[key, place, until], **common)
    upsert = it.contract(mode="upsert", columns=[key, place], **common)
    small = str(uuid.uuid4())
    it.send([(0, small.upper(), {"place": {"city": "X"}})])
    it.drain(upsert)
    wider = {**place, "type": "struct<zip: long, city: string>"}
    for table, columns in ((history, [key, wider, until]), (upsert, [key, wider])):
        it.contract(table=table, mode="history" if table == history else "upsert", columns=columns, **common)
    it.send([(0, small, {"place": {"city": "Y", "zip": 7}})])
    it.drain(upsert)
    (row,) = it.rows(upsert)
    assert (str(row["id"]), row["place"]) == (small, {"city": "Y", "zip": 7})
    first, second = sorted(it.rows(history), key=lambda r: r["_kafka_offset"])
    assert (first["place"], second["place"]) == ({"city": "X", "zip": None}, {"city": "Y", "zip": 7})
    assert (first["until"], second["until"]) == (second["_kafka_timestamp"], None)
    for outcome in run_backfill(it, backfill_request(history, {0: [0, 2]})):
        assert outcome["snapshot_id"], outcome
    assert len(it.rows(history)) == 2


def test_a_topic_with_a_new_name_needs_an_order(lake: Callable[..., Lake]) -> None:
    """Offsets of one topic say nothing about those of another, whichever name comes first."""
    it = lake()
    columns = [
        {"name": "id", "type": "string", "source": "$key"},
        {"name": "until", "type": "timestamptz", "source": "$valid_to"},
    ]
    body = {"mode": "history", "identifier": ["id"], "deletes": "ignore", "columns": columns}
    table = f"db.{it.group}_0"
    for topic in (it.topic, f"a-{it.topic}"):
        it.create_topic(1, name=topic)
        it.contract(table=table, topic=topic, **body)
        it.send([(0, "k", {})], topic=topic)
        outcome = it.run()[table]
    assert outcome["state"] == "failed" and "A key was met in two partitions" in outcome["error"], outcome
    assert len(it.rows(table)) == 1


@only_thorough("test_bounds_enclose_the_keys")
@pytest.mark.parametrize("records", [25_000])
def test_a_batch_of_many_keys_looks_only_at_its_own(lake: Callable[..., Lake], records: int) -> None:
    """Above `merge.KEYS_INLINE` the keys are no literals any more."""
    it = lake()
    it.create_topic(1)
    table = it.contract(**BODY, limits={"records_per_batch": 100_000})
    it.send((0, "k", event("u", n % (records - 500), n, n + 1)) for n in range(records))
    it.drain(table)
    it.send((0, "k", event("u", n, n, n + 100_000)) for n in range(10))
    it.drain(table)
    assert standing(it, table) == expected(it)


@pytest.mark.parametrize("mode", usual(["history"], ["upsert", "history"]))
def test_tables_that_are_copied_on_write_and_rows_taken_out_by_hand(lake: Callable[..., Lake], mode: str) -> None:
    """More rows are written than the batch has records: others of their files, and versions that end otherwise now."""
    it = lake()
    it.create_topic(1)
    body = {**BODY, "properties": {"write.merge.mode": "copy-on-write"}}
    if mode == "upsert":
        body = {k: v for k, v in body.items() if k != "valid_from"}
        body |= {"mode": "upsert", "columns": body["columns"][:-1]}
    table = it.contract(**body)
    it.send((0, "k", event("u", n % 5, n, n + 1)) for n in range(50))
    it.drain(table)
    if mode == "history":
        delete_rows(it, table, "lsn % 2 = 0")
    it.send([(0, "k", event("u", 3, 60, 61))])
    it.drain(table)
    rows = it.rows(table)
    if mode == "upsert":
        assert {r["id"]: r["n"] for r in rows} == {**{n: 45 + n for n in range(5)}, 3: 60}
        return
    mine = sorted((r["lsn"], r["until"]) for r in rows if r["id"] == 3)
    following = [moment(event("u", 3, 0, lsn)) for lsn, _ in mine[1:]]
    assert [until for _, until in mine] == [*following, None]
    assert len(rows) == 26
