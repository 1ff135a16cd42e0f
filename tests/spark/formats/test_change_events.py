"""Debezium change events and all forms of deletes lead to the same table, in whatever order they arrive."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import uuid
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema
from pyspark.sql import SparkSession

from sluice.embedded.schema_registry import EmbeddedRegistry
from sluice.errors import CompactedDeletesError
from sluice.evolve.pending_change import ReviewDecision
from sluice.formats.internal_columns import ERROR, FIELD, OP
from sluice.iceberg import cursor, table_names, tables
from sluice.ingest.publish import publish
from sluice.operate import review_schema
from tests.spark.formats.test_formats import framed, read
from tests.spark.formats.test_formats import name as name_of_its_own
from tests.support.backfills import backfill_request, run_backfill
from tests.support.lake import Lake
from tests.support.services.registries import registry_client
from tests.support.thorough import only_thorough

SECRET = "Ada Lovelace"
DATA = Path(__file__).parents[2] / "data" / "debezium"
PARCEL = [
    {"name": "depot", "type": "string"},
    {"name": "number", "type": "long"},
    {"name": "carrier", "type": "string"},
    {"name": "weight", "type": "decimal(8, 3)"},
    {"name": "sent", "type": "timestamptz"},
    {"name": "note", "type": "string"},
]
# What PostgreSQL held before the table was truncated; `note` of the first came as a placeholder in its last update.
LEFT = {("south", 20): ("gls", "9.125"), ("west", 7): ("dpd", "7.500"), ("north", 1): ("hermes", "1.500")}


def fixture(name: str) -> list[tuple[int, Any, Any]]:
    lines = (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [(0, row["key"], row["value"]) for row in map(json.loads, lines)]


def avro_fixture(name: str, registry: EmbeddedRegistry) -> list[tuple[int, Any, Any]]:
    """Records in Confluent's wire format, with the ids that this registry gives to their schemas."""
    client, ids = registry_client(registry), {}
    schemas = json.loads((DATA / f"{name}.schemas.json").read_text(encoding="utf-8"))
    for each, schema in schemas.items():
        ids[int(each)] = client.register_schema(name_of_its_own(), Schema(json.dumps(schema), "AVRO"))

    def reframed(text: str | None) -> bytes | None:
        if text is None:
            return None
        raw = base64.b64decode(text)
        assert raw[0] == 0
        return framed(ids[int.from_bytes(raw[1:5], "big")], raw[5:])

    return [(partition, reframed(key), reframed(value)) for partition, key, value in fixture(name)]


def parcels(it: Lake, table: str) -> dict[tuple[str, int], tuple[Any, Any]]:
    rows = it.rows(table)
    found = {(r["depot"], r["number"]): (r["carrier"], r["weight"] and str(r["weight"])) for r in rows}
    assert len(found) == len(rows), "a key stands twice"
    return found


@pytest.mark.timeout(900)
def test_what_debezium_sent_becomes_the_table_that_postgres_held(
    lake: Callable[..., Lake], registry: EmbeddedRegistry
) -> None:
    it = lake()
    lsn = {"name": "lsn", "type": "long", "required": True}
    upsert = {"mode": "upsert", "identifier": ["depot", "number"], "errors": {"max_ratio": 0.2}}
    ordered = {**upsert, "order": ["lsn"]}
    enveloped = {"columns": [*PARCEL, {**lsn, "source": "$source.lsn"}]}
    unwrapped = {"columns": [*PARCEL, {**lsn, "source": "__lsn"}], "cdc": {"format": "debezium_unwrapped"}}
    at = {"name": "at", "type": "timestamptz", "expression": "timestamp_millis(ms)"}
    key = [{**c, "source": f"$key.{c['name']}"} for c in PARCEL[:2]]
    keyed = {"columns": [*key, *PARCEL[2:]], "key": {"format": "json"}, "cdc": {"format": "debezium_unwrapped"}}
    registered = {part: {"format": "avro"} for part in ("key", "value")}
    in_avro = {**registered, "cdc": {"format": "debezium"}}
    log = [*enveloped["columns"], {"name": "op", "type": "string", "source": "$op"}, at]
    ms = {"name": "ms", "type": "long", "source": "$source.ts_ms"}
    soft = [*enveloped["columns"], {"name": "gone", "type": "timestamptz", "source": "$deleted"}]
    until = {"name": "until", "type": "timestamptz", "source": "$valid_to"}
    gone = {"name": "gone", "type": "boolean", "source": "$deleted"}
    versions = [*enveloped["columns"], {**at, "required": True}, until, gone]
    passed = {"format": "debezium_unwrapped", "tombstones": "ignore"}
    plans: dict[str, tuple[str, dict[str, Any]]] = {
        "plain": ("envelope", {**upsert, "columns": PARCEL, "cdc": {"format": "debezium"}}),
        "soft": ("envelope", {**ordered, "columns": soft, "cdc": {"format": "debezium"}, "deletes": "soft"}),
        "log": (
            "envelope",
            {"columns": log, "inputs": [ms], "cdc": {"format": "debezium"}, "errors": {"max_ratio": 0.2}},
        ),
        "history": (
            "envelope",
            {
                **ordered,
                "mode": "history",
                "columns": versions,
                "inputs": [ms],
                "valid_from": "at",
                "cdc": {"format": "debezium"},
                "deletes": "soft",
            },
        ),
        "schema": (
            "envelope_with_schema",
            {**ordered, **enveloped, "cdc": {"format": "debezium"}, "value": {"format": "json_connect"}},
        ),
        "avro": ("envelope_avro", {**ordered, **in_avro, "columns": [*key, *enveloped["columns"][2:]]}),
        "keyed": ("unwrapped_tombstone", {**upsert, **keyed}),
        "both": ("unwrapped_both", {**ordered, **unwrapped, "cdc": passed}),
    }
    made = {}
    for source in dict.fromkeys(source for source, _ in plans.values()):
        it.create_topic(1, name=f"{it.topic}.{source}")
        records = avro_fixture(source, registry) if source.endswith("avro") else fixture(source)
        it.send(records, topic=f"{it.topic}.{source}")
    for name, (source, contract) in plans.items():
        made[name] = it.contract(table=f"db.{it.group}_{name}", topic=f"{it.topic}.{source}", **contract)
    outcomes = it.run()
    for name, table in made.items():
        assert outcomes[table]["state"] == "published", (name, outcomes[table])
        classes = {(r["error_class"], r["field"]) for r in it.quarantined(table)}
        expected = {("unavailable", "note")}
        if not plans[name][0].startswith("unwrapped"):  # the transform drops what truncates
            expected.add(("truncate", None))
        assert classes == expected, name
        if name not in ("log", "soft", "history"):
            assert parcels(it, table) == LEFT, name
    texts = {r["number"]: r["note"] for r in it.rows(made["plain"])}
    assert texts == {20: "'; DROP TABLE parcel; --", 7: "again", 1: "long " * (len(texts[1]) // 5)}
    assert len(texts[1]) > 2000

    kept = it.rows(made["soft"])
    assert {(r["depot"], r["number"]) for r in kept if r["gone"] is None} == set(LEFT)
    gone = {(r["depot"], r["number"]): r for r in kept if r["gone"]}
    assert set(gone) == {("south", 1), ("south", 2), ("north", 2), ("east", 1)}
    assert gone["east", 1]["weight"] == Decimal("6.000"), "with REPLICA IDENTITY FULL the row's last state is kept"
    assert gone["north", 2]["weight"] is None, "without it PostgreSQL tells the key alone"

    entries = sorted(it.rows(made["log"]), key=lambda r: r["_kafka_offset"])
    assert "".join(r["op"] for r in entries) == "rrrcuuuddccdcduc" + "ud"
    assert_versions(it, made["history"], entries)


def assert_versions(it: Lake, table: str, entries: list[dict[str, Any]]) -> None:
    """The history has each entry of the log, ended by the next of its key, as the query in the docs finds it."""
    text = (DATA.parents[2] / "docs" / "guides" / "history.md").read_text(encoding="utf-8")
    (query,) = (each for each in re.findall("```sql\n(.*?)```", text, re.DOTALL) if "shop.parcel_history" in each)
    query = query.replace("shop.parcel_history", f"lake.{table}")
    changes = [e["at"] for e in entries]
    for when, known in ((changes[-1] + timedelta(days=1), LEFT), (changes[0] - timedelta(days=1), {})):
        found = it.spark.sql(query, args={"moment": when}).collect()
        assert {(r["depot"], r["number"]): (r["carrier"], str(r["weight"])) for r in found} == known
    history = {r["_kafka_offset"]: r for r in it.rows(table)}
    assert history.keys() == {e["_kafka_offset"] for e in entries}
    for entry in entries:  # each ends with the next entry of its key, by the log's own order
        after = [e for e in entries if (e["depot"], e["number"]) == (entry["depot"], entry["number"])]
        after = [e for e in after if (e["lsn"], e["_kafka_offset"]) > (entry["lsn"], entry["_kafka_offset"])]
        ends = min(after, key=lambda e: (e["lsn"], e["_kafka_offset"]))["at"] if after else None
        assert history[entry["_kafka_offset"]]["until"] == ends


def test_a_large_value_of_any_type_that_was_not_sent_is_told_of(spark: SparkSession) -> None:
    """As UnchangedToastedPlaceholder of Debezium's connector for PostgreSQL makes them."""
    text = "__debezium_unavailable_value"
    java = bytearray(hashlib.md5(text.encode(), usedforsecurity=False).digest())
    given: dict[str, tuple[str, Any, Any]] = {
        "t": ("string", text, "x"),
        "by": ("binary", base64.b64encode(text.encode()).decode(), "AP8="),
        "coded": ("string", base64.b64encode(text.encode()).decode(), "X19k"),
        "bare": ("string", base64.urlsafe_b64encode(text.encode()).decode().rstrip("="), "X19k"),
        "hex": ("string", text.encode().hex(), "5f"),
        "upper": ("string", text.encode().hex().upper(), "5F"),
        "by_hex": ("binary", text.encode().hex(), "5f5f"),
        "twice": ("binary", base64.b64encode(base64.b64encode(text.encode())).decode(), ""),
        "fixed": ("fixed[28]", base64.b64encode(text.encode()).decode(), base64.b64encode(bytes(28)).decode()),
        "coded_texts": ("list<string>", [text.encode().hex()], [text.encode().hex(), "x"]),
        "in_struct": ("struct<a: int, by: binary>", {"by": base64.b64encode(text.encode()).decode()}, {"by": "AP8="}),
        "texts": ("list<string>", [text], [text, None]),
        "bytes": ("list<binary>", [base64.b64encode(text.encode()).decode()], []),
        "ints": ("list<int>", [*text.encode()], [95]),
        "longs": ("list<long>", [*text.encode()], [None]),
        "doubles": ("list<double>", [*text.encode()], [1.5]),
        "decimals": ("list<decimal(12, 2)>", [*text.encode()], ["1"]),
        "narrow": ("list<decimal(2, 1)>", None, [1.5]),
        "as_text": ("list<string>", [*text.encode()], [1]),
        "uuids": ("list<uuid>", [str(uuid.UUID(bytes=bytes(java), version=3))], [str(uuid.UUID(int=1))]),
        "uuid_texts": ("list<string>", [str(uuid.UUID(bytes=bytes(java), version=3))], []),
        "map": ("map<string, string>", {text: text}, {"x": text}),
        "json": ("string", json.dumps({text: text}, separators=(",", ":")), json.dumps({"x": text})),
        "seconds": ("list<timestamptz>", [*text.encode()], [95]),
    }
    columns: list[Any] = [{"name": "id", "type": "long"}]
    columns += [{"name": n, "type": kind} for n, (kind, *_) in given.items()]
    rows: list[dict[str, Any]] = [{n: good for n, (_, _, good) in given.items()}, {}]
    rows += [{n: sent} for n, (_, sent, _) in given.items() if sent is not None]
    values = [json.dumps({"op": "u", "after": {"id": 1, **row}}).encode() for row in rows]
    more = {"mode": "upsert", "identifier": ["id"], "value": "json", "cdc": {"format": "debezium"}}
    found = read(spark, [(None, each) for each in values], columns, **more)
    told = [(row[ERROR], row[FIELD]) for row in found]
    expected = [(None, None)] * 2 + [("unavailable", n) for n, (_, sent, _) in given.items() if sent is not None]

    # What is no number in JSON, by the schema that Kafka Connect writes beside it.
    meant = {
        "ms": ("list<timestamp>", {"type": "int64", "name": "io.debezium.time.Timestamp"}, [*text.encode()]),
        "us": ("list<timestamp>", {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, [*text.encode()]),
        "days": ("list<date>", {"type": "int32", "name": "io.debezium.time.Date"}, [*text.encode()]),
        "flags": ("list<boolean>", {"type": "boolean"}, [True] * len(text)),
    }
    fields = [{"field": n, "type": "array", "items": items} for n, (_, items, _) in meant.items()]
    after = {"type": "struct", "field": "after", "fields": [{"field": "id", "type": "int64"}, *fields]}
    rows = [{n: sent[1:] for n, (*_, sent) in meant.items()}, *({n: sent} for n, (*_, sent) in meant.items())]
    values = [
        json.dumps(
            {"schema": {"type": "struct", "fields": [after]}, "payload": {"op": "u", "after": {"id": 1, **row}}}
        ).encode()
        for row in rows
    ]
    columns = [columns[0], *({"name": n, "type": kind} for n, (kind, *_) in meant.items())]
    found = read(spark, [(None, each) for each in values], columns, **{**more, "value": "json_connect"})
    told += [(row[ERROR], row[FIELD]) for row in found]
    assert told == [*expected, (None, None), *(("unavailable", n) for n in meant)]


def test_a_compacted_topic_stops_a_table_that_would_pass_lone_tombstones_over(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1, cleanup_policy="compact")
    body = {"mode": "upsert", "columns": [{"name": "id", "type": "string", "source": "$key"}]}
    silent = it.contract(**body, cdc={"format": "debezium"})
    said = it.contract(**body, cdc={"format": "debezium", "tombstones": "delete"})
    log = it.contract(columns=body["columns"], cdc={"format": "debezium"})
    it.send([(0, "a", event("c", 1, 1, 1)), (0, "a", None)])
    plan = it.preview_plan()
    assert set(plan.stops) == {silent} and isinstance(plan.stops[silent], CompactedDeletesError)
    assert set(plan.tables) == {said, log}
    # By what is in force, not by a file that waits for an answer: the tombstone would be passed over.
    other = {**body, "columns": [{"name": "key", "type": "string", "source": "$key", "renamed_from": "id"}]}
    it.run()
    it.contract(table=silent, **{**other, "identifier": ["key"]}, cdc={"format": "debezium", "tombstones": "delete"})
    assert isinstance(it.preview_plan().stops[silent], CompactedDeletesError)
    it.contract(table=silent, **body, cdc={"format": "debezium", "tombstones": "delete"})
    assert silent not in it.preview_plan().stops


def event(op: str, key: int, n: int | None, lsn: int) -> dict[str, Any]:
    row = None if n is None else {"id": key, "n": n}
    before = {"id": key} if op == "d" else None
    return {"before": before, "after": row, "source": {"lsn": lsn}, "op": op, "ts_ms": 1}


@pytest.mark.parametrize("seed", [1])
def test_the_table_is_the_fold_by_lsn_whatever_the_order(lake: Callable[..., Lake], seed: int) -> None:
    """Events come shuffled, twice, over two partitions and in small batches; older ranges are applied again."""
    it = lake()
    it.create_topic(2)
    columns = [
        {"name": "id", "type": "int"},
        {"name": "n", "type": "long"},
        {"name": "lsn", "type": "long", "required": True, "source": "$source.lsn"},
    ]
    body = {"mode": "upsert", "columns": columns, "order": ["lsn"], "cdc": {"format": "debezium"}}
    table = it.contract(**body, limits={"records_per_batch": 25, "batches_per_run": 10})
    draw = random.Random(seed)
    state: dict[int, int] = {}
    events: list[dict[str, Any] | None] = []
    for lsn in range(1, 61):
        key = draw.randrange(8)
        if key in state and draw.random() < 0.4:
            del state[key]
            events.append(event("d", key, None, lsn))
        else:
            events.append(event("u" if key in state else "c", key, lsn, lsn))
            state[key] = lsn
    events += [event("d", 99, None, 100), event("d", 99, None, 101)]  # of keys that never were
    events += draw.sample(events, 20) + [None] * 5
    draw.shuffle(events)
    it.send((draw.randrange(2), json.dumps({"id": e["after"] or e["before"]} if e else {}), e) for e in events)
    it.drain(table)

    def standing() -> dict[int, int]:
        rows = it.rows(table)
        assert len({r["id"] for r in rows}) == len(rows)
        return {r["id"]: r["n"] for r in rows}

    assert standing() == state
    staged = cursor.read_staged_batches(tables.load(it.catalog, table_names.staging(it.topic)))
    batches = [staged[seq][0] for seq in sorted(staged)]
    assert len(batches) >= 3
    for batch in draw.sample(batches, 3):
        publish(it.context(), it.contract_of(table), batch, replay=True)
        assert standing() == state


def test_sql_servers_order_holds_across_transactions_and_after_a_snapshot(lake: Callable[..., Lake]) -> None:
    """As the guide says it. Change LSNs of an early transaction that commits late are below the snapshot's."""
    it = lake()
    it.create_topic(2)
    inputs = [
        {"name": "change_lsn", "type": "string", "source": "$source.change_lsn"},
        {"name": "event_serial_no", "type": "long", "source": "$source.event_serial_no"},
    ]
    columns = [
        {"name": "id", "type": "int"},
        {"name": "n", "type": "long"},
        {"name": "commit_lsn", "type": "string", "required": True, "source": "$source.commit_lsn"},
        {"name": "position", "type": "string", "required": True, "expression": "coalesce(change_lsn, '')"},
        {"name": "serial", "type": "long", "required": True, "expression": "coalesce(event_serial_no, 0)"},
    ]
    order = ["commit_lsn", "position", "serial"]
    table = it.contract(mode="upsert", columns=columns, inputs=inputs, order=order, cdc={"format": "debezium"})

    def read(op: str, key: int, n: int | None, commit: int, change: int | None = None, serial: int = 1) -> Any:
        source: dict[str, Any] = {"commit_lsn": f"00000027:{commit:08x}:0004"}
        if change is not None:
            source |= {"change_lsn": f"00000027:{change:08x}:0002", "event_serial_no": serial}
        return {**event(op, key, n, 0), "source": source}

    events = [
        *(read("r", key, 0, 100) for key in range(4)),
        read("u", 1, 1, 120, 90),  # written before the snapshot was taken, committed after it
        read("u", 2, 1, 130, 125),
        read("u", 2, 2, 140, 115),  # another transaction, begun earlier and committed later
        read("d", 3, None, 150, 145, 1),  # a key that changes: both at one position
        read("c", 9, 5, 150, 145, 2),
        read("d", 0, None, 160, 155, 1),
        read("c", 0, 7, 160, 155, 2),
    ]
    random.Random(1).shuffle(events)
    it.send((n % 2, json.dumps({"id": (e["after"] or e["before"])["id"]}), e) for n, e in enumerate(events))
    it.drain(table)
    assert not it.quarantined(table)
    assert {r["id"]: r["n"] for r in it.rows(table)} == {0: 7, 1: 1, 2: 2, 9: 5}


def test_postgres_order_is_that_of_commits(lake: Callable[..., Lake]) -> None:
    """PostgreSQL 15 logged these: the second insert waited for the first transaction, and has a lower LSN than its end.

    `sequence` is that of Debezium: the end of the last commit, and the LSN.
    """
    it = lake()
    it.create_topic(2)

    def read(op: str, n: int, lsn: int, committed: int | None) -> tuple[int, str, dict[str, Any]]:
        row = {"id": 1, "n": n}
        source = {"lsn": lsn, "sequence": json.dumps([committed and str(committed), str(lsn)])}
        return draw.randrange(2), "k", {"op": op, "before": row, "after": None if op == "d" else row, "source": source}

    draw = random.Random(3)
    columns: list[dict[str, Any]] = [{"name": "id", "type": "long"}, {"name": "n", "type": "long"}]
    committed = "coalesce(CAST(from_json(sequence, 'array<string>')[0] AS BIGINT), 0)"
    columns.append({"name": "committed", "type": "long", "required": True, "expression": committed})
    columns.append({"name": "lsn", "type": "long", "required": True, "source": "$source.lsn"})
    table = it.contract(
        mode="upsert",
        identifier=["id"],
        order=["committed", "lsn"],
        cdc={"format": "debezium"},
        inputs=[{"name": "sequence", "type": "string", "source": "$source.sequence"}],
        columns=columns,
    )
    events = [read("c", 10, 22156496, None), read("u", 11, 22156784, None), read("d", 11, 22156872, None)]
    events.append(read("c", 20, 22156720, 22156992))
    draw.shuffle(events)
    for each in events:
        it.send([each])
        assert it.run()[table]["state"] == "published"
    assert [(row["id"], row["n"]) for row in it.rows(table)] == [(1, 20)]


def test_an_order_that_was_there_before_may_come_back(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    columns = [{"name": n, "type": "long" if n in "ab" else "string", "required": True} for n in ("id", "a", "b")]
    cdc = {"format": "op_field", "op": "op", "tombstones": "ignore"}
    name = it.contract(mode="upsert", columns=columns, cdc=cdc, order=["a"])
    for order, event in (
        ("a", {"op": "d", "a": 10, "b": 1}),
        ("b", {"op": "d", "a": 20, "b": 2}),
        ("a", {"op": "u", "a": 15, "b": 3}),
    ):
        it.contract(table=name, mode="upsert", columns=columns, cdc=cdc, order=[order])
        it.send([(0, "k", {"id": "k", **event})])
        it.drain(name)
        assert it.rows(name) == [], event


def test_each_way_of_saying_a_delete(lake: Callable[..., Lake]) -> None:
    """A plain field that names the operation, an unwrapped record whose deletes are tombstones, and what is neither."""
    it = lake()
    it.create_topic(1)
    columns = [{"name": "id", "type": "string", "source": "$key"}, {"name": "n", "type": "int"}]
    cdc = {"format": "op_field", "op": "meta.what", "ops": {"upsert": ["I", "U"], "delete": ["D"]}}
    errors = {"max_ratio": 1.0}
    named = it.contract(mode="upsert", columns=columns, cdc=cdc, errors=errors)
    bare = it.contract(mode="upsert", columns=columns, cdc={"format": "debezium_unwrapped"}, errors=errors)
    it.send(
        (0, key, value)
        for key, value in [
            ("a", {"n": 1, "meta": {"what": "I"}}),
            ("a", {"n": 2, "meta": {"what": "u"}}),
            ("b", {"n": 1, "meta": {"what": "I"}}),
            ("b", {"meta": {"what": "D"}}),
            ("c", {"n": 1, "meta": {"what": "I"}}),
            ("c", None),
            ("never", {"meta": {"what": "D"}}),
            ("never", {"meta": {"what": "D"}}),
            ("strange", {"n": 1, "meta": {"what": "merge"}}),
            ("silent", {"n": 1}),
            ("marked", {"n": 1, "__op": "x"}),
            ("d", {"n": 5, "__deleted": "false", "meta": {"what": "I"}}),
            ("d", {"n": 5, "__deleted": True, "meta": {"what": "U"}}),
        ]
    )
    outcomes = it.run()
    assert {o["state"] for o in outcomes.values()} == {"published"}, outcomes
    assert {r["id"]: r["n"] for r in it.rows(named)} == {"a": 2, "d": 5}
    assert {r["key"].decode() for r in it.quarantined(named)} == {"strange", "silent", "marked"}
    assert {r["error_class"] for r in it.quarantined(named)} == {"operation"}
    assert {r["id"]: r["n"] for r in it.rows(bare)} == {"a": 2, "b": None, "never": None, "strange": 1, "silent": 1}
    assert {r["key"].decode() for r in it.quarantined(bare)} == {"marked"}
    # An object is the key of no row whose identifier is a text; it would delete none in silence.
    text = [{"name": "id", "type": "string"}, columns[1]]
    keyed = {"mode": "upsert", "identifier": ["id"], "cdc": {"format": "debezium_unwrapped"}}
    for key, why in ((b'{"id": "a"}', "tombstone_key"), (b"{3F25-04E0}", None), (b"a", None)):
        (row,) = read(it.spark, [(key, None)], text, **keyed)
        assert (row[OP], row[ERROR]) == ("d", why), key
    for more, told in (({}, ("i", None)), ({"tombstones": "delete"}, ("u", "null_value"))):
        log = read(it.spark, [(b"c", None)], columns, cdc={"format": "debezium_unwrapped", **more})
        assert [(row[OP], row[ERROR]) for row in log] == [told], "a log has nothing to delete"
    # The operation stands in what a column reads as well.
    columns.append({"name": "meta", "type": "struct<by: string, what: string>"})
    events = [{"n": 1, "meta": {"what": "I", "by": "ann"}}, {"meta": {"what": "d"}}, {"n": 1, "meta": {"what": {}}}]
    written = [(b"k", json.dumps(each).encode()) for each in events]
    rows = read(it.spark, written, columns, mode="upsert", identifier=["id"], cdc=cdc)
    assert [(row[OP], row[ERROR]) for row in rows] == [("u", None), ("d", None), ("u", "operation")]
    assert rows[0]["meta"] == {"by": "ann", "what": "I"}


@only_thorough("test_what_debezium_sent_becomes_the_table_that_postgres_held")
@pytest.mark.usefixtures("generated_code")
def test_change_events_are_masked_judged_and_under_review_like_any_record(lake: Callable[..., Lake]) -> None:
    """By columns of `after` and of `source`; a delete is no row, so that nothing is expected of it."""
    it = lake()
    it.create_topic(1)
    columns = [
        {"name": "id", "type": "int"},
        {"name": "n", "type": "long"},
        {"name": "name", "type": "string", "mask": "redact"},
        {"name": "day", "type": "date"},
        {"name": "lsn", "type": "long", "required": True, "source": "$source.lsn"},
    ]
    within = {
        "type": "expect_column_values_to_be_between",
        "column": "n",
        "min_value": 0,
        "severity": "quarantine_rows",
    }
    told = {"type": "expect_column_values_to_not_be_null", "column": "name", "severity": "block"}
    # Where a column is masked, a record that is set apart is kept raw only if that is said.
    errors = {"max_ratio": 1.0, "raw": "keep"}
    body = {"mode": "upsert", "order": ["lsn"], "cdc": {"format": "debezium"}, "errors": errors}
    table = it.contract(**body, columns=columns, expectations=[within, told])
    masked = it.contract(**{**body, "errors": {"max_ratio": 1.0}}, columns=columns, expectations=[within, told])

    def named(op: str, key: int, n: int | None, lsn: int) -> tuple[int, str, dict[str, Any]]:
        made = event(op, key, n, lsn)
        if made["after"]:
            made["after"]["name"] = SECRET
        return 0, json.dumps({"id": key}), made

    it.send(
        [named("c", 1, 1, 1), named("c", 2, 2, 2), named("u", 2, -1, 4), named("d", 1, None, 3), named("c", 3, 3, 5)]
    )
    outcome = it.run()[table]
    assert (outcome["state"], outcome["records"], outcome["rejected"]) == ("published", 5, 1), outcome
    rows = it.rows(table)
    assert {r["id"]: r["n"] for r in rows} == {2: 2, 3: 3}
    assert SECRET not in str(rows) and all(r["name"] for r in rows)
    (apart,) = it.quarantined(table)
    assert (apart["error_class"], apart["field"]) == ("expectation", "n")
    (bare,) = it.quarantined(masked)
    assert SECRET in str(apart) and SECRET not in str(bare)
    assert (bare["_kafka_offset"], bare["key"], bytes(bare["value"])) == (2, None, b"") and not bare["headers"]
    (it.folder / f"{masked}.yaml").unlink()
    # The update that was set apart is older by then than the row's next version, and changes nothing.
    it.send([named("u", 2, 9, 6)])
    it.run()
    it.contract(table=table, **body, columns=columns, expectations=[{**within, "min_value": -5}, told])
    run_backfill(it, backfill_request(table, origin="quarantine"))
    assert {r["id"]: r["n"] for r in it.rows(table)} == {2: 9, 3: 3}
    assert it.quarantined(table) == []
    # What waits for an answer counts for no limit, though its field is named as it stands in the envelope.
    body["errors"] = {"max_ratio": 0.0, "raw": "keep"}
    it.contract(table=table, **body, columns=[{**c, "type": "string"} if c["name"] == "day" else c for c in columns])
    late = named("u", 3, 8, 8)
    late[2]["after"]["day"] = "soon"
    it.send([named("c", 4, 4, 7), late])
    outcome = it.run()[table]
    assert (outcome["state"], outcome["rejected"]) == ("published", 1), outcome
    assert {r["id"]: r["n"] for r in it.rows(table)} == {2: 9, 3: 3, 4: 4}
    answer = ReviewDecision(approve=False, who="ann", why="no", run_id="by hand")
    review_schema.answer_review(it.catalog, it.contracts, table, answer)
    (apart,) = it.quarantined(table)
    assert apart["field"] == "after.day" and "was rejected by ann: no" in apart["error"], apart
