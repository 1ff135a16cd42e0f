"""`columns: auto` follows the registry's newest schema, with records from Confluent's serializers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from datetime import time as datetime_time
from typing import Any

import pytest
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from sluice.contract.types import parse_type
from sluice.embedded.ports import free_port
from sluice.embedded.schema_registry import EmbeddedRegistry
from sluice.errors import RegistryUnavailableError, SchemaMissingError
from sluice.evolve import auto_columns, evolve
from sluice.evolve.pending_change import ReviewDecision
from sluice.formats import inferred_columns
from sluice.ingest import outcome as ingest_outcome
from sluice.ingest import run, settle
from sluice.kafka.registry import WriterSchema
from sluice.operate import review_schema
from sluice.status import timeline
from sluice.status.events import Lane
from tests.spark.formats.test_formats import AVRO_TYPES, record
from tests.support.backfills import run_backfill
from tests.support.lake import Lake
from tests.support.services.registries import registry_client

pytestmark = pytest.mark.spark

PLACE = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}


def schema(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": fields})


SSN = {"name": "ssn", "type": "string"}
ADDED = {"name": "more", "type": ["null", "string"], "default": None, "doc": "what is new"}
FIRST = schema({"name": "n", "type": "int"}, {"name": "place", "type": PLACE}, SSN)
WIDER = schema({"name": "n", "type": "long"}, {"name": "place", "type": PLACE}, SSN, ADDED)
OTHER = schema({"name": "n", "type": "string"}, SSN, ADDED)


def test_a_table_takes_its_columns_from_the_registry_and_follows_its_producers(
    lake: Callable[..., Lake], registry: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    it, client = lake(), registry_client(registry)
    monkeypatch.setattr("sluice.kafka.registry.LATEST_TTL_S", 0)  # the plans of this test are those of many processes
    it.create_topic(1)
    table = it.contract(
        columns=[{"name": "id", "type": "string", "source": "$key"}, {"auto": {"omit": ["ssn"]}}],
        value={"format": "avro"},
        errors={"max_ratio": 1.0},
    )
    context = SerializationContext(it.topic, MessageField.VALUE)
    first, wider, other = (AvroSerializer(client, each) for each in (FIRST, WIDER, OTHER))
    away = f"http://127.0.0.1:{free_port()}"

    def stopped() -> Any:
        return it.plan().stops[table]

    assert isinstance(stopped(), SchemaMissingError), "no producer has registered anything"
    with monkeypatch.context() as patch:
        patch.setenv("SCHEMA_REGISTRY_URL", away)
        assert isinstance(stopped(), RegistryUnavailableError)
    x = {"place": {"city": "X"}, "ssn": "secret"}
    it.send([(0, "a", first({"n": 1, **x}, context))])
    assert it.run()[table]["state"] == "published"
    assert columns(it, table) | {"place": ""} == {"id": "string", "n": "int", "place": ""}

    it.send([(0, "b", first({"n": 2, **x}, context)), (0, "c", wider({"n": 3 << 31, **x, "more": "yes"}, context))])
    assert it.run()[table]["state"] == "published"
    assert columns(it, table) | {"place": ""} == {"id": "string", "n": "long", "place": "", "more": "string"}
    assert it.catalog.load_table(table).schema().find_field("more").doc == "what is new"
    whole = [("a", 1, {"city": "X"}, None), ("b", 2, {"city": "X"}, None), ("c", 3 << 31, {"city": "X"}, "yes")]
    assert rows(it, table) == whole
    kinds = [set(v.kinds) for v in evolve.list_versions(it.catalog, it.contract_of(table))]
    assert kinds == [{"create"}, {"widen", "add_column"}]

    it.send([(0, "d", wider({"n": 4, **x, "more": None}, context))])
    it.send([(0, "e", other({"n": "five", "ssn": "s"}, context))])
    with monkeypatch.context() as patch:
        patch.setenv("SCHEMA_REGISTRY_URL", away)
        planned = it.plan()
        assert not planned.stops and planned.has_work
        (warning,) = [line for line in planned.lines() if line.startswith("warn")]
        assert "did not answer" in warning and "stays at version 2" in warning
    planned = it.plan("third")
    assert planned.pending_changes[table].review == "open"
    (line,) = [line for line in planned.lines() if line.startswith("schema")]
    assert "changes the type of column n: long to string" in line and "drops column place" in line
    with monkeypatch.context() as patch:
        # The driver asks for the writers' schemas by id, and for no columns.
        patch.setattr(auto_columns, "resolve_columns", None)
        promises = it.contracts
        group = promises.group(it.group)
        run.run(it.context("third"), group, promises, it.admin, deadline=time.monotonic() + 600)
        outcome = settle.settle(group, it.catalog, ingest_outcome.summarize_plan(planned), run_id="third")[table]
    assert (outcome["state"], outcome["rejected"]) == ("published", 1)
    assert rows(it, table) == [*whole, ("d", 4, {"city": "X"}, None)]
    (bad,) = it.quarantined(table)
    assert (bad["key"], bad["field"]) == (b"e", "n")


def test_a_time_of_another_unit_is_converted_until_a_review_begins_a_column_of_that_unit(
    lake: Callable[..., Lake], registry: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source's TIME(3) becomes a TIME(6)."""
    it, client = lake(), registry_client(registry)
    monkeypatch.setattr("sluice.kafka.registry.LATEST_TTL_S", 0)
    it.create_topic(1)
    table = it.contract(
        columns=[{"name": "id", "type": "string", "source": "$key"}, "auto"],
        value={"format": "avro"},
        errors={"max_ratio": 1.0, "raw": "keep"},
    )
    context = SerializationContext(it.topic, MessageField.VALUE)

    def opens(name: str, base: str) -> Callable[[datetime_time], Any]:
        write = AvroSerializer(client, schema({"name": "opens", "type": {"type": base, "logicalType": name}}))
        return lambda at: write({"opens": at}, context)

    def times() -> list[tuple[Any, ...]]:
        return sorted((r["id"], r["opens"], r.get("opens_before_1")) for r in it.rows(table))

    millis, micros = opens("time-millis", "int"), opens("time-micros", "long")
    it.send([(0, "a", millis(datetime_time(23, 59, 59, 999_000)))])
    assert it.run()[table]["state"] == "published"
    it.send([(0, "b", micros(datetime_time(0, 0, 1, 5_000))), (0, "c", micros(datetime_time(0, 0, 1, 5_001)))])
    it.send([(0, "d", millis(datetime_time(0, 0, 2)))])
    (line,) = [line for line in it.plan().lines() if line.startswith("schema")]
    assert "under review: changes the unit of column opens: int of millis to long of micros" in line
    assert it.run()[table]["state"] == "published"
    assert times() == [("a", 86_399_999, None), ("b", 1005, None), ("d", 2000, None)]
    assert [(r["key"], r["field"]) for r in it.quarantined(table)] == [(b"c", "opens")]

    decision = ReviewDecision(approve=True, who="ann", why="agreed", run_id="by hand")
    (request,) = review_schema.answer_review(it.catalog, it.contracts, table, decision, republish=False).backfills
    run_backfill(it, request)
    it.send([(0, "e", millis(datetime_time(0, 0, 3))), (0, "f", micros(datetime_time(0, 0, 0, 1)))])
    assert it.run()[table]["state"] == "published"
    old = [("a", None, 86_399_999), ("b", None, 1005)]
    new = [("c", 1_005_001, None), ("d", None, 2000), ("e", 3_000_000, None), ("f", 1, None)]
    assert (times(), it.quarantined(table)) == ([*old, *new], [])
    assert columns(it, table) == {"id": "string", "opens": "long", "opens_before_1": "int"}


def test_a_field_that_the_writers_drop_is_told_before_its_records_come(
    lake: Callable[..., Lake], registry: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    it, client = lake(), registry_client(registry)
    monkeypatch.setattr("sluice.kafka.registry.LATEST_TTL_S", 0)
    it.create_topic(1)
    columns = [
        {"name": "id", "type": "string", "source": "$key"},
        {"name": "n", "type": "long"},
        {"name": "city", "type": "string", "source": "place.city"},
    ]
    table = it.contract(columns=columns, value={"format": "avro"})
    context = SerializationContext(it.topic, MessageField.VALUE)
    assert it.plan().warnings == ()  # nothing is registered
    first = AvroSerializer(client, FIRST)
    it.send([(0, "a", first({"n": 1, "place": {"city": "X"}, "ssn": "s"}, context))])
    assert it.plan().warnings == ()
    it.drain(table)

    moved = {**PLACE, "fields": [{"name": "town", "type": "string"}]}
    later = AvroSerializer(client, schema({"name": "n", "type": "int"}, {"name": "place", "type": moved}, SSN))
    value = later({"n": 2, "place": {"town": "Y"}, "ssn": "s"}, context)  # which registers it
    planned = it.plan()
    (warning,) = planned.warnings
    assert f"the newest schema of {it.topic}-value" in str(warning)
    assert "has no field place.city, which city reads: it is null in records" in str(warning)
    assert (warning.table, planned.stops) == (table, {})
    with monkeypatch.context() as patch:
        patch.setenv("SCHEMA_REGISTRY_URL", f"http://127.0.0.1:{free_port()}")
        away = it.plan()
        assert away.warnings == () and away.stops == {}
        began = datetime.now(UTC)
        it.send([(0, "b", value)])
        patch.setattr(run.retry_step, "__defaults__", (2,))  # not for as long as a run is patient
        assert it.run()[table]["state"] == "failed"
    told = [e.told for e in timeline.read_events(it.catalog, began, [it.contract_of(table)]) if e.lane == Lane.REGISTRY]
    assert [each.partition(", ")[0] for each in told] == ["failed", "retried"]
    assert all("RegistryUnavailableError: The schema registry at http" in each for each in told), told
    it.drain(table)
    assert it.quarantined(table) == []
    assert {(r["id"], r["n"], r["city"]) for r in it.rows(table)} == {("a", 1, "X"), ("b", 2, None)}


def test_types_are_those_that_the_decoder_is_proved_with_and_never_wider() -> None:
    """`test_every_avro_type` reads each field of this schema as the column that is listed beside it."""
    text = json.dumps(record(**{n: kind for n, (kind, *_) in AVRO_TYPES.items()}))
    found = {f.name: str(f.type) for f in inferred_columns.infer_avro_fields(WriterSchema(1, "AVRO", text), ())}
    other = {n: found[n] for n, (_, listed, *_) in AVRO_TYPES.items() if str(parse_type(listed)) != found[n]}
    assert other == {
        "i_l": "int", "i_d": "int", "i_dec": "int", "f_d": "float", "dec_w": "decimal(9, 2)", "li": "list<int>",
        "st": "struct<a: int, b: list<struct<c: date, x: string>>>",
        "tx_day": "string", "tx_at": "string", "tx_face": "string", "tx_dec": "string", "tx_li": "list<string>",
        "dz_at": "timestamp", "dz_raw": "timestamp", "dz_ms_at": "timestamp", "dz_ms_raw": "timestamp",
        "dz_days": "date", "dz_tx": "timestamptz", "u_tx": "uuid", "dz_ns": "long", "dz_ns_old": "long",
        "dz_iso_at": "timestamp", "dz_iso_tx": "date", "co_at": "timestamptz", "dec_64": "decimal(38, 4)",
        "dec_64_2": "decimal(38, 4)", "dec_64_by": "decimal(38, 4)", "dec_64_tx": "decimal(38, 4)",
        "dec_64_li": "list<decimal(38, 1)>", "dec_tx": "decimal(9, 2)", "dec_by": "decimal(9, 2)",
        "vsd": "struct<scale: int, value: binary>", "vsd_st": "struct<scale: int, value: binary>",
    }  # fmt: skip


def columns(it: Lake, table: str) -> dict[str, str]:
    return {f.name: str(f.field_type) for f in it.catalog.load_table(table).schema().fields if f.name[0] != "_"}


def rows(it: Lake, table: str) -> list[tuple[Any, ...]]:
    found = it.rows(table)
    assert all("ssn" not in row for row in found)
    return sorted((r["id"], r["n"], r["place"], r.get("more")) for r in found)
