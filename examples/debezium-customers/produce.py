"""Sends change events as Debezium's connector for PostgreSQL does. `produce.py deletes` also sends a delete."""

import json
import os
import sys

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

TOPIC = "examples.public.customers"


def row(id_: int, name: str | None, city: str | None, credit: str | None, hour: int | None) -> dict[str, object]:
    """Return a row of the table."""
    updated_at = None if hour is None else f"2026-11-26T{hour:02}:00:00.000000Z"
    return {"id": id_, "name": name, "city": city, "credit": credit, "updated_at": updated_at}


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

kafka = {"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"]}
admin = AdminClient(kafka)
partition = TopicPartition(TOPIC, 0)
if TOPIC in admin.list_topics(timeout=10).topics:
    sent = admin.list_offsets({partition: OffsetSpec.latest()})[partition].result().offset
else:
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result()
    sent = 0

# Only what the topic lacks, so that a second run sends nothing.
records = (EVENTS + DELETES if "deletes" in sys.argv else EVENTS)[sent:]
producer = Producer(kafka)
for id_, value in records:
    producer.produce(TOPIC, key=json.dumps({"id": id_}), value=json.dumps(value) if value else None)
if producer.flush(30):
    sys.exit("Kafka did not take all records")
print(f"{len(records)} records sent to {TOPIC}")
