"""Sends events of several types to one topic, as JSON."""

import json
import os
import sys

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

TOPIC = "examples.events"
EVENTS = [
    {"id": 1, "type": "signup", "data": {"user": "ann", "plan": "free"}},
    {"id": 2, "type": "purchase", "data": {"user": "ann", "total": "12.50"}},
    {"id": 3, "type": "signup", "data": {"user": "bob", "plan": "pro"}},
    {"id": 4, "type": "review", "data": {"user": "ann", "stars": 5}},
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
records = EVENTS[sent:]
producer = Producer(kafka)
for event in records:
    producer.produce(TOPIC, json.dumps(event))
if producer.flush(30):
    sys.exit("Kafka did not take all records")
print(f"{len(records)} records sent to {TOPIC}")
