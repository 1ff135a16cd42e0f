"""Sends readings of sensors as Avro. `produce.py humidity` also sends some by a newer schema with one more field."""

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

sys.path.append(str(Path(__file__).resolve().parents[1]))  # examples/
from sending import send

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


registry = SchemaRegistryClient({"url": os.environ["SCHEMA_REGISTRY_URL"], "timeout": 30})
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

records = READINGS + WITH_HUMIDITY if "humidity" in sys.argv else READINGS
context = SerializationContext(TOPIC, MessageField.VALUE)
send(TOPIC, ({"key": sensor, "value": serialize(reading, context)} for sensor, serialize, reading in records))
