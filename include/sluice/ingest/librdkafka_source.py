"""Read offset ranges by librdkafka, in Arrow batches, where Spark's own source of Kafka fails.

That one makes microseconds of each record's timestamp as it reads, and ends with "long overflow" at one beyond the year
294247, such as a producer's nanoseconds taken for milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.batch import Batch
from sluice.kafka import java_settings, login

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, Message

OVERFLOW = "java.lang.ArithmeticException: long overflow"
"""What Spark's source says then, somewhere in its error."""
SETTINGS = {
    "group.id": "sluice-stage",  # never joined, and nothing is committed to it
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # a record that vanishes while we read fails the read
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 16 << 10,
}
TIMEOUT_S = 60.0
AT_ONCE, WAIT_S = 10_000, 0.2  # so many are taken together, or what has come after so long
SCHEMA = (
    "partition int, offset long, timestamp long, timestampType int, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)


def load(spark: SparkSession, config: Mapping[str, Any], batch: Batch) -> DataFrame:
    """The batch's records with the columns of Spark's source that staging takes, one task for each partition.

    Args:
        config: librdkafka's settings; the executors get them with the text of files.

    Returns:
        A record's `timestamp` is null where it is beyond what a timestamp holds.
    """
    topic, ranges = batch.topic, [(p, r.start, r.end) for p, r in batch.to_read.items()]
    settings = {**java_settings.as_text(config), **SETTINGS}

    def read(asked: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from confluent_kafka import Consumer

        consumer = Consumer(login.trusting(settings))
        try:
            for row in (row for rows in asked for row in rows.to_pylist()):
                yield from _records(consumer, topic, **row)
        finally:
            consumer.close()

    asked = spark.createDataFrame(ranges, "partition int, start long, end long")
    found = asked.repartition(len(ranges), "partition").mapInArrow(read, SCHEMA)
    moment = F.timestamp_micros(F.try_multiply(F.col("timestamp"), F.lit(1000).cast("long")))
    return found.withColumn("timestamp", moment)


def harmless() -> frozenset[int]:
    """Codes of what Kafka tells beside records: a partition's end, and that no right to the group is there.

    The client looks for the group's coordinator though none is joined, and who may read a topic needs no right to one.
    """
    from confluent_kafka import KafkaError

    return frozenset({KafkaError._PARTITION_EOF, KafkaError.GROUP_AUTHORIZATION_FAILED})


def _records(consumer: Consumer, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """What one range holds.

    Raises:
        KafkaException: Kafka says so.
        TimeoutError: nothing came for `TIMEOUT_S`.
    """
    from confluent_kafka import KafkaException, TopicPartition

    consumer.assign([TopicPartition(topic, partition, start)])
    reached, until = start, time.monotonic() + TIMEOUT_S
    while reached < end:
        messages = consumer.consume(AT_ONCE, WAIT_S)
        if messages:
            until = time.monotonic() + TIMEOUT_S
        elif time.monotonic() > until:
            raise TimeoutError(f"{topic}, partition {partition}: Kafka sent nothing from offset {reached} on")
        for each in messages:
            error, offset = each.error(), each.offset() or 0
            if error is not None and error.code() not in harmless():
                raise KafkaException(error)
            reached = max(reached, offset + (error is None))
        yield _batch([m for m in messages if m.error() is None and (m.offset() or 0) < end])


def _batch(messages: list[Message]) -> pa.RecordBatch:
    import pyarrow as pa

    columns = {
        "partition": pa.array([m.partition() for m in messages], pa.int32()),
        "offset": pa.array([m.offset() for m in messages], pa.int64()),
        "timestamp": pa.array([m.timestamp()[1] for m in messages], pa.int64()),
        # Java counts them from -1, for none.
        "timestampType": pa.array([m.timestamp()[0] - 1 for m in messages], pa.int32()),
        "key": pa.array([m.key() for m in messages], pa.binary()),
        "value": pa.array([m.value() for m in messages], pa.binary()),
        "headers": pa.array(
            [m.headers() or None for m in messages],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    }
    return pa.RecordBatch.from_pydict(columns)
