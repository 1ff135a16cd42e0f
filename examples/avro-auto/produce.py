"""Sends readings of sensors as Avro. `produce.py humidity` also sends some by a newer schema with one more field."""

import json
import os
import sys
from datetime import UTC, datetime

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

TOPIC = "examples.readings"
FIELDS = [
    {"name": "taken_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "celsius", "type": "double"},
]
HUMIDITY = {"name": "humidity", "type": ["null", "int"], "default": None, "doc": "Percent"}


def schema(*fields: dict[str, object]) -> str:
    """Return an Avro schema as text."""
    return json.dumps({"type": "record", "name": "Reading", "namespace": "examples", "fields": fields})


def at(hour: int) -> datetime:
    """Return an hour of the day."""
    return datetime(2026, 11, 26, hour, tzinfo=UTC)


registry = SchemaRegistryClient({"url": os.environ["SCHEMA_REGISTRY_URL"]})
# A serializer registers its schema with the first record.
first = AvroSerializer(registry, schema(*FIELDS))
newer = AvroSerializer(registry, schema(*FIELDS, HUMIDITY))
READINGS = [
    ("attic", first, {"taken_at": at(8), "celsius": 14.5}),
    ("cellar", first, {"taken_at": at(8), "celsius": 9.25}),
]
WITH_HUMIDITY = [
    ("attic", newer, {"taken_at": at(9), "celsius": 15.0, "humidity": 40}),
    ("cellar", first, {"taken_at": at(9), "celsius": 9.5}),  # a sensor that has not been updated yet
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
records = (READINGS + WITH_HUMIDITY if "humidity" in sys.argv else READINGS)[sent:]
producer = Producer(kafka)
for sensor, serialize, reading in records:
    producer.produce(TOPIC, key=sensor, value=serialize(reading, SerializationContext(TOPIC, MessageField.VALUE)))
if producer.flush(30):
    sys.exit("Kafka did not take all records")
print(f"{len(records)} records sent to {TOPIC}")
