"""What the examples' producers share: the topic is created, and gets the records that it lacks."""

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec


def send(topic: str, records: Iterable[Mapping[str, Any]]) -> None:
    """Send the records that the topic lacks, so that a second run sends nothing.

    Args:
        topic: It has one partition.
        records: The arguments of `Producer.produce`: value, and key and headers if the record has some.
    """
    kafka = {"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"]}
    admin, partition = AdminClient(kafka), TopicPartition(topic, 0)
    if topic in admin.list_topics(timeout=10).topics:
        sent = admin.list_offsets({partition: OffsetSpec.latest()})[partition].result().offset
    else:
        admin.create_topics([NewTopic(topic, 1)])[topic].result()
        sent = 0
    producer, lacking = Producer(kafka), list(records)[sent:]
    for record in lacking:
        producer.produce(topic, **record)
    if producer.flush(30):
        sys.exit("Kafka did not take all records")
    print(f"{len(lacking)} records sent to {topic}")
