"""Read offset ranges with librdkafka, in Arrow batches, where Spark's own Kafka source fails.

Spark's source converts each timestamp to microseconds, and fails with "long overflow" on one beyond the year 294247,
such as a producer's nanoseconds in place of milliseconds. It takes timestamps for dates of the Julian calendar, which
moves those before 1582 by days, and those before 1900 by seconds in some time zones: `with_exact_timestamps` fails.
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
"""What the error of Spark's source contains; it has no error class (Spark 4.1)."""
UNREADABLE_HEADERS = "header names are not UTF-8"
MOVED = "SLUICE_TIMESTAMP_MOVED"
FIRST_EXACT = -2_208_902_400
"""The second day of 1900, in seconds."""
SETTINGS = {
    "group.id": "sluice-stage",  # never joined, nothing is committed
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # a record that disappears during the read fails it
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 16 << 10,
}
TIMEOUT_S = 60.0
MAX_MESSAGES, WAIT_S = 10_000, 0.2  # one `consume` call
SCHEMA = (
    "partition int, offset long, millis long, timestampType int, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)


def with_exact_timestamps(source: DataFrame) -> DataFrame:
    """Rows of Spark's source with Kafka's number as `millis`; reading one whose number was changed fails."""
    is_moved = F.col("timestamp") < F.timestamp_seconds(F.lit(FIRST_EXACT))
    millis = F.when(is_moved, F.raise_error(F.lit(MOVED)).cast("long")).otherwise(F.unix_millis("timestamp"))
    return source.withColumn("millis", millis)


def is_needed(error: Exception) -> bool:
    """Whether Spark's source failed on a timestamp."""
    return any(each in str(error) for each in (OVERFLOW, MOVED))


def read_batch(spark: SparkSession, config: Mapping[str, Any], batch: Batch) -> DataFrame:
    """Read the batch's records, with the columns of Spark's source that staging uses, in one task per partition.

    Args:
        config: librdkafka's settings; executors receive certificates as text, not as files.

    Returns:
        Rows with Kafka's number as `millis`; `timestamp` is null if a timestamp can't hold it.
    """
    topic, ranges = batch.topic, [(p, r.start, r.end) for p, r in batch.ranges_to_read.items()]
    settings = {**java_settings.inline_certificates(config), **SETTINGS}

    def read(asked: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from confluent_kafka import Consumer

        consumer = Consumer(login.client_settings(settings))
        try:
            for row in (row for rows in asked for row in rows.to_pylist()):
                yield from _records(consumer, topic, **row)
        finally:
            consumer.close()

    asked = spark.createDataFrame(ranges, "partition int, start long, end long")
    found = asked.repartition(len(ranges), "partition").mapInArrow(read, SCHEMA)
    timestamp = F.timestamp_micros(F.try_multiply(F.col("millis"), F.lit(1000).cast("long")))
    return found.withColumn("timestamp", timestamp)


def read_headers(message: Message) -> list[tuple[str, bytes | None]]:
    """A message's headers. The client can't return names that are not UTF-8: then one header says so instead."""
    try:
        headers: Any = message.headers() or []
        return list(headers)
    except SystemError:
        return [(UNREADABLE_HEADERS, None)]


def ignorable_codes() -> frozenset[int]:
    """Codes of errors that need no action: the end of a partition, and no access to the consumer group.

    The client looks up the group's coordinator though it joins none, and reading a topic needs no right to a group.
    """
    from confluent_kafka import KafkaError

    return frozenset({KafkaError._PARTITION_EOF, KafkaError.GROUP_AUTHORIZATION_FAILED})


def _records(consumer: Consumer, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the records of one range.

    Raises:
        KafkaException: Kafka reported an error.
        TimeoutError: no record arrived for `TIMEOUT_S`.
    """
    from confluent_kafka import KafkaException, TopicPartition

    consumer.assign([TopicPartition(topic, partition, start)])
    reached, until = start, time.monotonic() + TIMEOUT_S
    while reached < end:
        messages = consumer.consume(MAX_MESSAGES, WAIT_S)
        if messages:
            until = time.monotonic() + TIMEOUT_S
        elif time.monotonic() > until:
            raise TimeoutError(
                f"{topic}, partition {partition}: Kafka sent no records from offset {reached} on for {TIMEOUT_S:.0f} s"
            )
        for each in messages:
            error, offset = each.error(), each.offset() or 0
            if error is not None and error.code() not in ignorable_codes():
                raise KafkaException(error)
            reached = max(reached, offset + (error is None))
        yield _batch([m for m in messages if m.error() is None and (m.offset() or 0) < end])


def _batch(messages: list[Message]) -> pa.RecordBatch:
    import pyarrow as pa

    columns = {
        "partition": pa.array([m.partition() for m in messages], pa.int32()),
        "offset": pa.array([m.offset() for m in messages], pa.int64()),
        "millis": pa.array([m.timestamp()[1] for m in messages], pa.int64()),
        # Java's enumeration starts at -1, for none.
        "timestampType": pa.array([m.timestamp()[0] - 1 for m in messages], pa.int32()),
        "key": pa.array([m.key() for m in messages], pa.binary()),
        "value": pa.array([m.value() for m in messages], pa.binary()),
        "headers": pa.array(
            [read_headers(m) or None for m in messages],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    }
    return pa.RecordBatch.from_pydict(columns)
