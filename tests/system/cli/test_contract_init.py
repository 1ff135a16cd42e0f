"""`contract init` on a real broker and schema registry: topics that real producers wrote become valid contracts."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from sluice.cli import main
from sluice.cli.contract import sample_test
from sluice.contract import folder as contract_folder
from sluice.contract.contract import Contract
from sluice.embedded.home import REPOSITORY
from sluice.embedded.kafka_broker import EmbeddedBroker
from sluice.embedded.ports import free_port
from sluice.embedded.schema_registry import EmbeddedRegistry
from tests.support.services.registries import registry_client

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("sluice_env")]
Send = Callable[..., str]
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; string note = 2; }'


@pytest.fixture
def send(broker: EmbeddedBroker) -> Send:
    def sending(records: Iterable[tuple[Any, Any]], name: str = "", **config: str) -> str:
        topic = name or f"shop.orders{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(topic, 3, 1, config=config)])[topic].result(30)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for key, value in records:
            producer.produce(topic, key=key, value=value)
        assert producer.flush(30) == 0
        return topic

    return sending


@pytest.fixture
def no_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCHEMA_REGISTRY_URL", raising=False)


@pytest.fixture
def client(registry: EmbeddedRegistry) -> SchemaRegistryClient:
    return registry_client(registry)


def init(folder: Path, *arguments: str) -> int:
    return main.main(["contract", "init", "--output", str(folder), "--owner", "me", "--patience", "30", *arguments])


def only_contract(folder: Path) -> Contract:
    assert main.main(["contract", "check", str(folder)]) == 0
    (contract,) = contract_folder.load_contracts(folder).tables.values()
    return contract


def test_a_sample_is_the_newest_records_of_all_partitions(broker: EmbeddedBroker) -> None:
    """Partition 0 is old, 1 has most of the newest, 2 is empty, and 3 has one between."""
    topic = f"sample{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    now = int(time.time() * 1000)
    for partition, seconds_ago in [*((0, 5000 - n) for n in range(40)), *((1, 40 - n) for n in range(40)), (3, 5)]:
        at = now - seconds_ago * 1000
        producer.produce(topic, b"{}", partition=partition, timestamp=at)
    assert producer.flush(30) == 0

    def sample(number: int) -> list[tuple[int, int]]:
        return [(partition, offset) for _, partition, offset, *_ in sample_test.read_topic(topic, number, patience=9)]

    assert sample(6) == [(1, 35), (3, 0), *((1, offset) for offset in range(36, 40))]
    assert sample(45) == [*((0, offset) for offset in range(36, 40)), *((1, n) for n in range(36)), (3, 0), *sample(4)]
    assert len(sample(100)) == 81


@pytest.mark.usefixtures("no_registry")
def test_json_without_a_registry(send: Send, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    topic = send(
        (str(i), json.dumps({"id": i, "at": "2024-01-31T10:00:00Z", "by": {"email": "a@b.de"}})) for i in range(40)
    )
    assert init(tmp_path / "new", "--topic", topic, "--sample", "10") == 0
    assert "next step:" in capsys.readouterr().out
    (path,) = (tmp_path / "new").iterdir()
    assert "from the newest 10 records" in path.read_text()
    assert path.read_text().startswith("# yaml-language-server: $schema=file:///")
    contract = only_contract(tmp_path / "new")
    assert (contract.table, contract.group, contract.mode) == (f"shop.{path.stem}", "shop", "append")
    assert [(c.name, str(c.type), c.source) for c in contract.columns] == [
        ("id", "long", "$key"), ("at", "timestamptz", "at"), ("by_email", "string", "by.email"),
    ]  # fmt: skip
    before = path.read_text()
    assert init(tmp_path / "new", "--topic", topic) == 3
    assert "is not overwritten" in capsys.readouterr().err
    assert path.read_text() == before


def test_a_registry_that_is_away_is_a_warning_for_json(
    send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("SLUICE_SCHEMAS", str(tmp_path / "kept"))
    assert init(tmp_path, "--topic", send([(None, '{"n": 1}')])) == 0
    assert "made without its schemas" in capsys.readouterr().err
    assert init(tmp_path, "--topic", send([(None, b"\0\0\0\0\x07abc")])) == 2
    assert len(list(tmp_path.glob("*.yaml"))) == 1


@pytest.mark.usefixtures("no_registry")
def test_a_compacted_topic_is_an_upsert(send: Send, tmp_path: Path):
    topic = send([("k1", '{"n": 1}'), ("k2", '{"n": 2}'), ("k1", None)], **{"cleanup.policy": "compact"})
    assert init(tmp_path, "--topic", topic, "--namespace", "lake") == 0
    contract = only_contract(tmp_path)
    assert (contract.namespace, contract.mode, contract.identifier) == (("lake",), "upsert", ("key",))


@pytest.mark.usefixtures("no_registry")
def test_what_contradicts_another_contract_is_not_written(
    send: Send, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    topic = send([(None, '{"n": 1}')])
    (tmp_path / "other.yaml").write_text(
        f"table: shop.other\ntopic: {topic}\ngroup: else\nowner: me\ncolumns: [{{name: n, type: long}}]\n"
    )
    assert init(tmp_path, "--topic", topic) == 3
    assert "is shared with" in capsys.readouterr().err
    assert [each.name for each in tmp_path.glob("*.yaml")] == ["other.yaml"]
    assert init(tmp_path, "--topic", topic, "--group", "else") == 0
    assert main.main(["contract", "check", str(tmp_path)]) == 0


@pytest.mark.usefixtures("no_registry")
def test_what_the_defaults_say_is_not_repeated(send: Send, tmp_path: Path):
    (tmp_path / "defaults.yaml").write_text("owner: data\ngroup: all\n")
    assert main.main(["contract", "init", "--output", str(tmp_path), "--topic", send([(None, '{"n": 1}')])]) == 0
    contract = only_contract(tmp_path)
    assert (contract.owner, contract.group) == ("data", "all")
    (path,) = (each for each in tmp_path.glob("*.yaml") if each.name != "defaults.yaml")
    assert "owner:" not in path.read_text() and "group:" not in path.read_text()


@pytest.mark.usefixtures("no_registry")
def test_a_contract_for_each_topic_of_a_pattern(send: Send, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    prefix = f"p{uuid.uuid4().hex[:8]}"
    send([(None, '{"n": 1}')], f"{prefix}.a")
    send([(None, '{"n": 1}')], f"{prefix}.b-c")
    send([(None, '{"n": 1}')], f"{prefix}.more.a")
    send([], f"{prefix}.empty")
    assert init(tmp_path, "--pattern", f"{prefix}[.].*") == 3  # one topic is empty
    assert "has no records with a value" in capsys.readouterr().out
    assert sorted(contract_folder.load_contracts(tmp_path).tables) == [
        f"{prefix}.a",
        f"{prefix}.b_c",
        f"{prefix}_more.a",
    ]
    assert init(tmp_path, "--pattern", "(") == 3
    assert init(tmp_path, "--pattern", "no-such-topic") == 3


def test_avro_by_its_registered_schema(send: Send, client: SchemaRegistryClient, tmp_path: Path):
    fields = [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "email", "type": ["null", "string"], "default": None},
        {"name": "odd", "type": ["int", "string"]},
    ]
    topic = f"shop.avro{uuid.uuid4().hex[:8]}"
    key = AvroSerializer(client, '{"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}')
    value = AvroSerializer(client, json.dumps({"type": "record", "name": "Order", "fields": fields}))
    row = {"id": 1, "at": 1_700_000_000_000, "email": "x", "odd": 1}
    at = (SerializationContext(topic, MessageField.KEY), SerializationContext(topic, MessageField.VALUE))
    records = [(key({"id": 1}, at[0]), value(row, at[1])), (key({"id": 1}, at[0]), None)]
    assert init(tmp_path, "--topic", send(records, topic)) == 0
    contract = only_contract(tmp_path)
    assert (contract.key.format, contract.value.format, contract.identifier) == ("avro", "avro", ("id",))
    assert {c.name: (str(c.type), c.source) for c in contract.columns} == {
        "id": ("long", "$key.id"), "at": ("timestamptz", "at"), "email": ("string", "email"),
    }  # fmt: skip
    text = next(tmp_path.glob("*.yaml")).read_text()
    assert "the field odd is left out" in text and "mask: sha256" in text


def test_protobuf_and_json_schema(send: Send, client: SchemaRegistryClient, tmp_path: Path):
    topic, other = (send([], f"shop.s{uuid.uuid4().hex[:8]}") for _ in range(2))
    client.register_schema(f"{topic}-value", Schema(PROTO, "PROTOBUF"))
    schema = {
        "title": "x",
        "type": "object",
        "properties": {"n": {"type": "integer"}, "d": {"type": "string", "format": "date"}},
    }
    serializer = JSONSerializer(json.dumps(schema), client)
    record = serializer({"n": 1, "d": "2024-01-31"}, SerializationContext(other, MessageField.VALUE))
    renamed = send([(None, record)], f"{other}x")  # whose own subject does not exist
    assert init(tmp_path, "--topic", topic) == 0
    assert init(tmp_path, "--topic", other, "--namespace", "b") == 0
    assert init(tmp_path, "--topic", renamed, "--namespace", "c") == 0
    assert init(tmp_path, "--topic", other, "--subject", "no-such") == 3
    assert main.main(["contract", "check", str(tmp_path)]) == 0
    found = [
        (c.namespace[0], c.value.format, {each.name: str(each.type) for each in c.columns})
        for c in contract_folder.load_contracts(tmp_path).tables.values()
    ]
    assert sorted(found, key=lambda each: each[0]) == [
        ("b", "json_schema", {"n": "long", "d": "date"}),
        ("c", "json_schema", {"n": "long", "d": "date"}),
        ("shop", "protobuf", {"id": "long", "note": "string"}),
    ]


def test_change_events_in_avro(send: Send, client: SchemaRegistryClient, tmp_path: Path):
    folder = REPOSITORY / "tests/data/debezium"
    schemas = json.loads((folder / "envelope_avro.schemas.json").read_text())
    ids = {
        int(n): client.register_schema(f"avro-{uuid.uuid4().hex}", Schema(json.dumps(s), "AVRO"))
        for n, s in schemas.items()
    }

    def framed(text: str | None) -> bytes | None:
        if text is None:
            return None
        raw = base64.b64decode(text)
        return b"\0" + ids[int.from_bytes(raw[1:5], "big")].to_bytes(4, "big") + raw[5:]

    lines = [json.loads(line) for line in (folder / "envelope_avro.jsonl").read_text().splitlines()]
    assert init(tmp_path, "--topic", send((framed(line["key"]), framed(line["value"])) for line in lines)) == 0
    contract = only_contract(tmp_path)
    assert contract.cdc is not None
    assert (contract.cdc.format, contract.identifier) == ("debezium", ("depot", "number"))
    assert (contract.value.format, str(contract.column("number").type)) == ("avro", "long")
