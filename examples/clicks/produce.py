"""Sends clicks of two days as JSON. The last one is late: a phone without a network kept it for a day."""

import json
import os
import sys

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

TOPIC = "examples.clicks"
CLICKS = [
    {"at": "2026-11-25T22:10:00Z", "visitor": "v1", "page": "/"},
    {"at": "2026-11-25T22:11:30Z", "visitor": "v1", "page": "/shoes"},
    {"at": "2026-11-26T08:00:05Z", "visitor": "v2", "page": "/"},
    {"at": "2026-11-26T08:01:00Z", "visitor": "v2", "page": "/cart"},
    {"at": "2026-11-26T09:45:00Z", "visitor": "v3", "page": "/"},
    {"at": "2026-11-25T23:59:00Z", "visitor": "v4", "page": "/shoes"},
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
records = CLICKS[sent:]
producer = Producer(kafka)
for click in records:
    producer.produce(TOPIC, json.dumps(click))
if producer.flush(30):
    sys.exit("Kafka did not take all records")
print(f"{len(records)} records sent to {TOPIC}")
