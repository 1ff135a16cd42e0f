"""Sends orders as JSON, with the order's number as key. `produce.py changes` also sends an update and a delete."""

import json
import os
import sys

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

TOPIC = "examples.orders"


def order(customer: str, total: str, status: str, minute: int) -> dict[str, object]:
    """Return the value of a record."""
    placed_at = f"2026-11-26T09:{minute:02}:00Z"
    return {"customer": customer, "total": total, "status": status, "meta": {"placed_at": placed_at}}


ORDERS = [
    ("1", order("ann", "12.50", "placed", 30)),
    ("2", order("bob", "7.00", "placed", 31)),
    ("3", order("ann", "99.90", "placed", 32)),
    ("1", order("ann", "12.50", "paid", 30)),
]
CHANGES = [
    ("2", order("bob", "7.00", "paid", 31)),
    ("3", None),  # a tombstone: the order is deleted
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
records = (ORDERS + CHANGES if "changes" in sys.argv else ORDERS)[sent:]
producer = Producer(kafka)
for key, value in records:
    producer.produce(TOPIC, key=key, value=json.dumps(value) if value else None)
if producer.flush(30):
    sys.exit("Kafka did not take all records")
print(f"{len(records)} records sent to {TOPIC}")
