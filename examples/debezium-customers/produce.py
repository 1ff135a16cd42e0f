"""Sends change events as Debezium's connector for PostgreSQL does. `produce.py deletes` also sends a delete."""

import json
import os
import sys
from decimal import Decimal
from pathlib import Path

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

sys.path.append(str(Path(__file__).resolve().parents[1]))  # examples/
from sending import send

TOPIC = "examples.public.customers"


def record(name: str, /, **fields: object) -> dict[str, object]:
    """Return an Avro record with these fields; those that may be null are null by default."""
    namespace, _, short = name.rpartition(".")
    typed = [{"name": field, "type": kind} for field, kind in fields.items()]
    typed = [{**field, "default": None} if isinstance(field["type"], list) else field for field in typed]
    return {"type": "record", "name": short, "namespace": namespace, "fields": typed}


def optional(kind: object) -> list[object]:
    """Return a type that may be null."""
    return ["null", kind]


TIMES = {"ts_us": optional("long"), "ts_ns": optional("long")}
ROW = record(
    f"{TOPIC}.Value",
    id="long",
    name=optional("string"),
    city=optional("string"),
    credit=optional({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
    updated_at=optional({"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}),
)
SOURCE = record(
    "io.debezium.connector.postgresql.Source",
    **dict.fromkeys(("version", "connector", "name"), "string"),
    ts_ms="long",
    snapshot=optional("string"),
    db="string",
    sequence=optional("string"),
    **TIMES,
    **dict.fromkeys(("schema", "table"), "string"),
    **dict.fromkeys(("txId", "lsn", "xmin"), optional("long")),
)
BLOCK = record("event.block", id="string", total_order="long", data_collection_order="long")
ENVELOPE = record(
    f"{TOPIC}.Envelope",
    before=optional(ROW),
    after=optional(f"{TOPIC}.Value"),
    source=SOURCE,
    transaction=optional(BLOCK),
    op="string",
    ts_ms=optional("long"),
    **TIMES,
)


def row(id_: int, name: str | None, city: str | None, credit: str | None, hour: int | None) -> dict[str, object]:
    """Return a row of the table."""
    updated_at = None if hour is None else f"2026-11-26T{hour:02}:00:00.000000Z"
    return {"id": id_, "name": name, "city": city, "credit": credit and Decimal(credit), "updated_at": updated_at}


def event(op: str, lsn: int, before: dict[str, object] | None, after: dict[str, object] | None) -> dict[str, object]:
    """Return a change event: r is a row of the snapshot, c an insert, u an update, d a delete."""
    at = 1_795_680_000_000 + lsn
    time = {"ts_ms": at, "ts_us": at * 1000, "ts_ns": at * 1_000_000}
    source = {"version": "3.0.8.Final", "connector": "postgresql", "name": "examples", "db": "shop", **time}
    source |= {"snapshot": "true" if op == "r" else "false", "schema": "public", "table": "customers"}
    source |= {"sequence": f'[null,"{lsn}"]', "txId": 700 + lsn, "lsn": lsn, "xmin": None}
    return {"before": before, "after": after, "source": source, "transaction": None, "op": op, **time}


EVENTS = [
    (1, event("r", 100, None, row(1, "Ann", "Oslo", "100.00", 8))),
    (2, event("r", 100, None, row(2, "Bob", "Rome", "50.00", 8))),
    (3, event("c", 110, None, row(3, "Cem", None, "0.00", 9))),
    (1, event("u", 120, None, row(1, "Ann", "Bergen", "80.50", 10))),
]
DELETES = [
    # With the default REPLICA IDENTITY, a delete has only the key of the row. A tombstone follows it.
    (2, event("d", 130, row(2, None, None, None, None), None)),
    (2, None),
]

registry = SchemaRegistryClient({"url": os.environ["SCHEMA_REGISTRY_URL"], "timeout": 30})
# As the AvroConverter of Connect: each serializer registers its schema, under <topic>-key and <topic>-value.
key_schema = json.dumps(record(f"{TOPIC}.Key", id="long"))
key, value = AvroSerializer(registry, key_schema), AvroSerializer(registry, json.dumps(ENVELOPE))
of_key, of_value = SerializationContext(TOPIC, MessageField.KEY), SerializationContext(TOPIC, MessageField.VALUE)
events = EVENTS + DELETES if "deletes" in sys.argv else EVENTS
send(TOPIC, ({"key": key({"id": id_}, of_key), "value": change and value(change, of_value)} for id_, change in events))
