"""Sends support tickets with personal data as JSON. One of them does not fit its contract."""

import json
import os
import sys

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

TOPIC = "examples.tickets"
ANN = {"email": "ann@example.com", "name": "Ann Berg", "country": "NO"}
BOB = {"email": "bob@example.com", "name": "Bob Rossi", "country": "IT"}
TICKETS = [
    {"id": 1, **ANN, "message": "My parcel went to Harbour Street 5."},
    {"id": 2, **BOB, "message": "Please call me."},
    {"id": 3, **ANN, "message": "It has arrived."},
    {"id": "four", **BOB, "message": "This one has no number."},
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
records = TICKETS[sent:]
producer = Producer(kafka)
for ticket in records:
    producer.produce(TOPIC, json.dumps(ticket))
if producer.flush(30):
    sys.exit("Kafka did not take all records")
print(f"{len(records)} records sent to {TOPIC}")
