"""Sends payments as Protobuf, as payment.proto describes them."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import grpc
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

TOPIC = "examples.payments"
# Compiles the file here and now. A program of yours imports the module that protoc made.
sys.path.insert(0, str(Path(__file__).parent))
Payment = grpc.protos("payment.proto").Payment

PAID = datetime(2026, 11, 26, 9, 30, tzinfo=UTC)
VISA = Payment.Card(brand="visa", last_digits="4242")
PAYMENTS = [
    Payment(payment_id=1, cents=1250, status=Payment.SETTLED, paid_at=PAID, card=VISA, tags=["web", "gift"]),
    Payment(payment_id=2, cents=700, iban="NO9386011117947", note="by invoice"),
]

kafka = {"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"]}
admin = AdminClient(kafka)
partition = TopicPartition(TOPIC, 0)
if TOPIC in admin.list_topics(timeout=10).topics:
    sent = admin.list_offsets({partition: OffsetSpec.latest()})[partition].result().offset
else:
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result()
    sent = 0

registry = SchemaRegistryClient({"url": os.environ["SCHEMA_REGISTRY_URL"]})
serialize = ProtobufSerializer(Payment, registry, {"use.deprecated.format": False})
# Only what the topic lacks, so that a second run sends nothing.
records = PAYMENTS[sent:]
producer = Producer(kafka)
for payment in records:
    producer.produce(TOPIC, serialize(payment, SerializationContext(TOPIC, MessageField.VALUE)))
if producer.flush(30):
    sys.exit("Kafka did not take all records")
print(f"{len(records)} records sent to {TOPIC}")
