"""Sends payments as Protobuf, as payment.proto describes them."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import grpc
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

sys.path.append(str(Path(__file__).resolve().parents[1]))  # examples/
from sending import send

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

registry = SchemaRegistryClient({"url": os.environ["SCHEMA_REGISTRY_URL"], "timeout": 30})
serialize = ProtobufSerializer(Payment, registry, {"use.deprecated.format": False})
context = SerializationContext(TOPIC, MessageField.VALUE)
send(TOPIC, ({"value": serialize(payment, context)} for payment in PAYMENTS))
