"""`sluice contract test`: runs sample records through a contract's decoder and expectations.

In: records from a file, or the newest of a topic. Out: a line per record and expectation, nothing is written. Runs the
code that a batch runs, in a local Spark session without a catalog.
"""

from __future__ import annotations

import base64
import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice import timestamps
from sluice.batch import Batch
from sluice.cli.spark import set_java
from sluice.contract.contract import Contract
from sluice.contract.values import KAFKA_COLUMNS
from sluice.errors import BrokerUnavailableError, ConfigError, TerminalError
from sluice.formats.decode import decode
from sluice.formats.internal_columns import (
    DELETE,
    DETAIL,
    ERROR,
    FIELD,
    IGNORE,
    OP,
    STAGED_COLUMNS,
    TIMESTAMP_MS,
    TO_JSON,
)
from sluice.ingest import expectations, librdkafka_source, quarantine, session
from sluice.kafka import broker, login
from sluice.ledger.quality_table import ExpectationResult
from sluice.offsets import OffsetRange, Ranges
from sluice.status.text import counted

if TYPE_CHECKING:
    from confluent_kafka import Consumer

_HEADER = T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])
RAW_SCHEMA = T.StructType(
    [
        T.StructField("batch_seq", T.LongType()),
        T.StructField("_kafka_partition", T.IntegerType()),
        T.StructField("_kafka_offset", T.LongType()),
        T.StructField("_kafka_timestamp", T.TimestampType()),
        T.StructField("key", T.BinaryType()),
        T.StructField("value", T.BinaryType()),
        T.StructField("headers", T.ArrayType(_HEADER)),
        T.StructField(TIMESTAMP_MS, T.LongType()),
    ]
)
SAMPLE_SEQ = -1
"""The sample's batch number. It is that of a backfill slice, so that batch size and freshness are not evaluated."""

READ_SECONDS = 30.0
JSON_FIELDS = frozenset({"key", "value", "key_base64", "value_base64", "headers", "timestamp"})
Raw = tuple[Any, ...]


@dataclass(frozen=True)
class SampleResult:
    """The outcome for one record.

    Attributes:
        outcome: `row`, `deleted`, `ignored`, or `quarantined`, which has an error class, field and detail.
        row: the columns as JSON: timestamps in UTC, bytes in base64, decimals with all digits.
    """

    partition: int
    offset: int
    outcome: str
    row: str
    error: str | None = None
    field: str | None = None
    detail: str | None = None

    def __str__(self) -> str:
        position = f"{self.partition}:{self.offset}"
        if self.error:
            details = ", ".join(part for part in (self.field and f"field {self.field}", self.detail) if part)
            return f"{position}  quarantined: {self.error}" + (f" ({details})" if details else "")
        return f"{position}  {self.outcome}: {self.row}"


def evaluate_sample(
    contract: Contract, topic: str, records: Iterable[Raw], spark: SparkSession
) -> tuple[list[SampleResult], list[ExpectationResult]]:
    """Run records through the decoder and the expectations.

    Args:
        records: rows of `RAW_SCHEMA`.
    """
    rows = list(records)
    staged = spark.createDataFrame(rows, RAW_SCHEMA)
    marked = expectations.mark_failing_rows(decode(staged, contract, topic, explain=True), contract).persist()
    try:
        names = [c for c in marked.columns if not c.startswith(("_kafka_", "_sluice_"))]
        row = F.to_json(F.struct(*names), TO_JSON)
        named = quarantine.name_unreadable_fields(marked, contract)
        columns = named.select(*KAFKA_COLUMNS[1:3], OP, ERROR, FIELD, DETAIL, row.alias("row"))
        found = [_sample_result(each) for each in columns.orderBy(*KAFKA_COLUMNS[1:3]).collect()]
        if not contract.expectations:
            return found, []
        span = Batch(topic, "", SAMPLE_SEQ, {0: OffsetRange(0, len(rows))}, {})
        numbered = marked.withColumn(STAGED_COLUMNS["batch_seq"], F.lit(SAMPLE_SEQ))
        return found, expectations.Evaluation(contract, numbered).evaluate([span])
    finally:
        marked.unpersist()


def _sample_result(row: Row) -> SampleResult:
    outcome = "quarantined" if row[ERROR] else {DELETE: "deleted", IGNORE: "ignored"}.get(row[OP], "row")
    position = row["_kafka_partition"], row["_kafka_offset"]
    return SampleResult(*position, outcome, row["row"], row[ERROR], row[FIELD], row[DETAIL])


def read_file(path: Path) -> list[Raw]:
    """Records from a file with a JSON object per line; the line number is the record's offset.

    Keys are `key`, `value`, `headers`, and `timestamp` in milliseconds since 1970 (by default now). Text is encoded as
    UTF-8, null means no value, anything else is encoded as JSON; bytes come as `key_base64` and `value_base64`.

    Raises:
        ConfigError: a line is not a record; with its number.
    """
    records: list[Raw] = []
    try:
        lines = path.read_text("utf-8").split("\n")  # not splitlines: JSON text may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            if (
                not isinstance(found, dict)
                or not found.keys() & {"value", "value_base64"}
                or found.keys() - JSON_FIELDS
            ):
                raise ValueError("it must be an object with `value` and, optionally, `key`, `headers` and `timestamp`")
            headers = [(name, _to_bytes(value)) for name, value in (found.get("headers") or {}).items()]
            key, value = (_field_bytes(found, name) for name in ("key", "value"))
            millis = found.get("timestamp", int(time.time() * 1000))
            if type(millis) is not int or not -(1 << 63) <= millis < 1 << 63:
                raise ValueError("`timestamp` must be milliseconds since 1970")
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"Line {number} of {path} is not a record: {error}.",
                next_step='Write {"key": "k1", "value": {…}} on each line; see docs/guides/draft-and-test.md.',
            ) from error
        records.append(_raw(0, number, millis, key, value, headers))
    return records


def _raw(partition: int, offset: int, millis: int, *parts: Any) -> Raw:
    """A row of `RAW_SCHEMA`; `parts` are key, value and headers."""
    at = timestamps.utc_from_kafka(millis)
    return SAMPLE_SEQ, partition, offset, at, *parts, millis if at is None else None


def _field_bytes(found: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in found:
        return base64.b64decode(found[f"{name}_base64"], validate=True)
    return _to_bytes(found.get(name))


def _to_bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()


def read_topic(topic: str, number: int, *, patience: float) -> list[Raw]:
    """The newest records of a topic by Kafka's timestamp, the oldest of them first.

    They are among the last `number` offsets of each partition. No offset is committed, no consumer group is joined.

    Args:
        topic: the topic.
        number: how many records; where a topic has fewer, all of them.
        patience: seconds to wait for Kafka, beside those of reading.

    Raises:
        BrokerUnavailableError: Kafka did not answer in time.
        TopicMissingError, TopicForbiddenError: the topic does not exist, or access is denied.
    """
    from confluent_kafka import Consumer, KafkaException

    config = broker.librdkafka_config()
    state = broker.describe_topic(broker.make_admin_client(config), topic)
    own = {"group.id": "sluice-contract-test", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({**login.client_settings(config), **own, "isolation.level": "read_committed"})
    until = time.monotonic() + patience + READ_SECONDS
    shares = _newest_ranges(state.watermarks, number)
    try:
        found = _read_ranges(consumer, topic, shares, until)
        # None of the newest records is older than the oldest of as many others.
        oldest = found[-number].millis if len(found) >= number else timestamps.NO_TIMESTAMP
        further = _earlier_ranges(consumer, topic, state.watermarks, _Cut(shares, number, oldest))
        found = sorted(found + _read_ranges(consumer, topic, further, until), key=_Sampled.age)
    except KafkaException as error:
        raise BrokerUnavailableError(f"The sample could not be read: {error}.", topic=topic) from error
    finally:
        consumer.close()
    return [each.raw for each in found[-number:]]


class _Sampled(NamedTuple):
    millis: int
    raw: Raw

    def age(self) -> tuple[int, int, int]:
        """Sort key: by Kafka's timestamp; records without one come first."""
        return self.millis, self.raw[1], self.raw[2]


class _Cut(NamedTuple):
    """What was read of each partition, how many records are wanted, and the oldest timestamp that one may have."""

    read: Ranges
    number: int
    oldest: int


def _read_ranges(consumer: Consumer, topic: str, ranges: Ranges, until: float) -> list[_Sampled]:
    """The records of offset ranges, sorted."""
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    left = dict(ranges)
    found: list[_Sampled] = []
    consumer.assign([TopicPartition(topic, p, r.start) for p, r in left.items()])
    while left and time.monotonic() < until:
        message = consumer.poll(0.5)
        if message is None or (partition := message.partition()) not in left:
            continue
        offset = message.offset() or 0
        if (error := message.error()) is not None:  # the end of a partition is an error, too
            if error.code() not in librdkafka_source.ignorable_codes():
                raise KafkaException(error)
            if error.code() != KafkaError._PARTITION_EOF:
                continue
        elif offset < left[partition].end:
            parts = message.key(), message.value(), librdkafka_source.read_headers(message)
            millis = message.timestamp()[1]
            found.append(_Sampled(millis, _raw(partition, offset, millis, *parts)))
            if offset + 1 < left[partition].end:
                continue
        del left[partition]
    if left:
        raise BrokerUnavailableError("The sample could not be read in time.", topic=topic)
    return sorted(found, key=_Sampled.age)


def _newest_ranges(watermarks: Ranges, number: int) -> dict[int, OffsetRange]:
    """The last `number` offsets of all partitions together, in equal shares; full ones take over what others lack."""
    chosen = {}
    by_span = sorted((p for p, w in watermarks.items() if w.span), key=lambda p: watermarks[p].span)
    for i, p in enumerate(by_span):
        low, end = watermarks[p]
        share = math.ceil(number / (len(by_span) - i))
        chosen[p] = OffsetRange(max(low, end - share), end)
        number = max(number - chosen[p].span, 0)
    return {p: r for p, r in chosen.items() if r.span}


def _earlier_ranges(consumer: Consumer, topic: str, watermarks: Ranges, cut: _Cut) -> dict[int, OffsetRange]:
    """What comes before the ranges that were read, and may be among the newest: at most `number` offsets with them."""
    from confluent_kafka import TopicPartition

    firsts = {p: w.start for p, w in watermarks.items() if w.span}
    if cut.oldest >= 0 and firsts:  # a negative time has another meaning
        asked = [TopicPartition(topic, p, cut.oldest) for p in firsts]
        firsts = {each.partition: each.offset for each in consumer.offsets_for_times(asked, broker.TIMEOUT_S)}
    earlier = {}
    for p, first in firsts.items():
        low, end = watermarks[p]
        start, before = max(low, first, end - cut.number), cut.read[p].start if p in cut.read else end
        if first >= 0 and start < before:
            earlier[p] = OffsetRange(start, before)
    return earlier


def local_session() -> SparkSession:
    """A Spark session in this process, without a catalog."""
    set_java()
    builder = session.use_this_python(SparkSession.Builder().appName("sluice contract test").master("local[2]"))
    for name, value in {**session.DEFAULTS, "spark.sql.shuffle.partitions": "2"}.items():
        builder = builder.config(name, value)
    with suppress(ConfigError):  # JSON needs no jars
        builder = builder.config("spark.jars", ",".join(session.spark_jars()))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read_records(contract: Contract, file: Path | None, newest: int, topic: str, patience: float) -> list[Raw]:
    """Read the sample.

    Args:
        file: read records from there; None: the `newest` ones of the topic.
        topic: empty: the contract's first.

    Raises:
        TerminalError: the table does not read that topic.
    """
    chosen = topic or contract.topics[0]
    if chosen not in contract.topics:
        raise TerminalError(f"{contract.table} does not read {chosen!r}. Its topics: {', '.join(contract.topics)}.")
    return read_file(file) if file else read_topic(chosen, newest, patience=patience)


def run_test(
    contract: Contract, topic: str, records: Sequence[Raw]
) -> tuple[list[SampleResult], list[ExpectationResult]]:
    """Evaluate a sample in a Spark session of its own; without records, none is started."""
    if not records:
        return [], []
    spark = local_session()
    try:
        return evaluate_sample(contract, topic, records, spark)
    finally:
        spark.stop()


def report_lines(found: Sequence[SampleResult], results: Iterable[ExpectationResult]) -> list[str]:
    """The outcome of each record, of each expectation, and the totals."""
    counts = Counter(each.outcome for each in found)
    verdicts = {True: "passed", False: "FAILED", None: "not evaluated"}
    expected = [f"{r.severity:<15}  {verdicts[r.success]:<13}  {r.summary}" for r in results]
    totals = ", ".join(counted(n, "row") if outcome == "row" else f"{n:,} {outcome}" for outcome, n in counts.items())
    return [*map(str, found), *expected, f"{counted(len(found), 'record')}: {totals}"]
