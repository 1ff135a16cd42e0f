"""Sends prices of products as JSON. The last one comes late, after its successor."""

import json
import os
import sys

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

TOPIC = "examples.prices"
PRICES = [
    ("lamp", {"price": "40.00", "since": "2026-01-01T00:00:00Z"}),
    ("desk", {"price": "300.00", "since": "2026-01-01T00:00:00Z"}),
    ("lamp", {"price": "45.00", "since": "2026-06-01T00:00:00Z"}),
    ("desk", {"price": "280.00", "since": "2026-09-01T00:00:00Z"}),
    ("lamp", {"price": "35.00", "since": "2026-03-01T00:00:00Z"}),  # between the two prices before
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
records = PRICES[sent:]
producer = Producer(kafka)
for product, price in records:
    producer.produce(TOPIC, key=product, value=json.dumps(price))
if producer.flush(30):
    sys.exit("Kafka did not take all records")
print(f"{len(records)} records sent to {TOPIC}")
