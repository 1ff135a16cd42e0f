"""Sample: what a contract makes of some records, from a file or from the topic's end. Nothing is written anywhere.

`python -m sluice contract test`. The records go through the same decoder and the same expectations as a batch does, in
a Spark session of this process without a catalog.
"""

from __future__ import annotations

import base64
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice import timestamps
from sluice.batch import Batch
from sluice.contract.contract import Contract
from sluice.contract.values import KAFKA_COLUMNS
from sluice.errors import BrokerUnavailableError, ConfigError, SluiceError, TerminalError
from sluice.formats.decode import decode
from sluice.formats.internal_columns import DELETE, DETAIL, ERROR, FIELD, IGNORE, OP, STAGED
from sluice.ingest import expectations, librdkafka_source, session
from sluice.kafka import broker, login
from sluice.ledger.quality_table import Result
from sluice.offsets import OffsetRange, Ranges

_HEADER = T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])
RAW = T.StructType(
    [
        T.StructField("batch_seq", T.LongType()),
        T.StructField("_kafka_partition", T.IntegerType()),
        T.StructField("_kafka_offset", T.LongType()),
        T.StructField("_kafka_timestamp", T.TimestampType()),
        T.StructField("key", T.BinaryType()),
        T.StructField("value", T.BinaryType()),
        T.StructField("headers", T.ArrayType(_HEADER)),
    ]
)
AS_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
SLICE = -1
"""The number that the sample bears: as a slice of a backfill, it is no batch whose size or age could be judged."""

READ_S = 30.0
FIELDS = frozenset({"key", "value", "key_base64", "value_base64", "headers"})
Raw = tuple[Any, ...]


@dataclass(frozen=True)
class Fate:
    """What becomes of one record: a `row`, `deleted`, `ignored`, or `rejected` with class, field and detail.

    Attributes:
        row: Its columns as JSON: moments in UTC, bytes in base64, decimals with all their digits.
    """

    partition: int
    offset: int
    what: str
    row: str
    error: str | None = None
    field: str | None = None
    detail: str | None = None

    def __str__(self) -> str:
        at = f"{self.partition}:{self.offset}"
        if self.error:
            about = ", ".join(part for part in (self.field and f"field {self.field}", self.detail) if part)
            return f"{at}  rejected: {self.error}" + (f" ({about})" if about else "")
        return f"{at}  {self.what}: {self.row}"


def test(
    contract: Contract, topic: str, records: Iterable[Raw], spark: SparkSession
) -> tuple[list[Fate], list[Result]]:
    """Send records through decoder and expectations.

    Args:
        records: rows of `RAW`.
    """
    rows = list(records)
    staged = spark.createDataFrame(rows, RAW)
    marked = expectations.marked(decode(staged, contract, topic), contract).persist()
    try:
        names = [c for c in marked.columns if not c.startswith(("_kafka_", "_sluice_"))]
        row = F.to_json(F.struct(*names), AS_JSON)
        told = marked.select(*KAFKA_COLUMNS[1:3], OP, ERROR, FIELD, DETAIL, row.alias("row"))
        fates = [_fate(each) for each in told.orderBy(*KAFKA_COLUMNS[1:3]).collect()]
        if not contract.expectations:
            return fates, []
        span = Batch(topic, "", SLICE, {0: OffsetRange(0, len(rows))}, {})
        return fates, expectations.look(contract, [span], marked.withColumn(STAGED["batch_seq"], F.lit(SLICE)))
    finally:
        marked.unpersist()


def _fate(found: Row) -> Fate:
    what = "rejected" if found[ERROR] else {DELETE: "deleted", IGNORE: "ignored"}.get(found[OP], "row")
    place = found["_kafka_partition"], found["_kafka_offset"]
    return Fate(*place, what, found["row"], found[ERROR], found[FIELD], found[DETAIL])


def from_file(path: Path) -> list[Raw]:
    """Records from a file: a JSON object per line, with `key` and `value`; a line's number is the record's offset.

    A value that is text stands for its UTF-8, null for none, anything else for its JSON; bytes come as `value_base64`
    and `key_base64`.

    Raises:
        ConfigError: a line that is none, by its number.
    """
    records: list[Raw] = []
    try:
        lines = path.read_text("utf-8").split("\n")  # a text may hold what else Python takes for the end of a line
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            if not isinstance(found, dict) or not found.keys() & {"value", "value_base64"} or found.keys() - FIELDS:
                raise ValueError("it must be an object with `value`, and perhaps `key` and `headers`")
            headers = [(name, _bytes(value)) for name, value in (found.get("headers") or {}).items()]
            key, value = (_given(found, name) for name in ("key", "value"))
        except (ValueError, AttributeError) as error:
            raise ConfigError(
                f"Line {number} of {path} is no record: {error}.",
                way_out='Write {"key": "k1", "value": {…}} on each line; docs/contracts.md tells the rest.',
            ) from error
        records.append((SLICE, 0, number, datetime.now(UTC), key, value, headers))
    return records


def _given(found: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in found:
        return base64.b64decode(found[f"{name}_base64"], validate=True)
    return _bytes(found.get(name))


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()


def from_topic(topic: str, number: int, *, patience: float) -> list[Raw]:
    """The newest records of a topic, at most so many; no offset is committed, no group is joined.

    Raises:
        BrokerUnavailableError: Kafka did not answer in time.
        TopicMissingError, TopicForbiddenError: there is no such topic, or none that may be seen.
    """
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    config = broker.client_config()
    state = broker.describe(broker.admin(config), [topic])[topic]
    if isinstance(state, SluiceError):
        raise state
    left = _newest(state.watermarks, number)
    own = {"group.id": "sluice-contract-test", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({**login.trusting(config), **own, "isolation.level": "read_committed"})
    found: list[Raw] = []
    try:
        consumer.assign([TopicPartition(topic, p, r.start) for p, r in left.items()])
        until = time.monotonic() + patience + READ_S
        while left and time.monotonic() < until:
            message = consumer.poll(0.5)
            if message is None:
                continue
            partition, offset = message.partition() or 0, message.offset() or 0
            if (error := message.error()) is not None:  # the end of a partition is one, too
                if error.code() not in librdkafka_source.harmless():
                    raise KafkaException(error)
                if error.code() != KafkaError._PARTITION_EOF:
                    continue
            elif offset < state.watermarks[partition].end:
                micros = message.timestamp()[1] * 1000
                place = (SLICE, partition, offset, timestamps.moment(micros) if micros < 1 << 63 else None)
                found.append((*place, message.key(), message.value(), message.headers() or []))
                if offset + 1 < state.watermarks[partition].end:
                    continue
            left.pop(partition, None)
    except KafkaException as error:
        raise BrokerUnavailableError(f"The sample could not be read: {error}.", topic=topic) from error
    finally:
        consumer.close()
    if left:
        raise BrokerUnavailableError("The sample could not be read in time.", topic=topic)
    return sorted(found, key=lambda r: r[3] or timestamps.ENDS[1])[-number:]


def _newest(watermarks: Ranges, number: int) -> dict[int, OffsetRange]:
    """The ends of the partitions, so many offsets together: like shares, and more where others have less to give."""
    chosen = {}
    by_span = sorted((p for p, w in watermarks.items() if w.span), key=lambda p: watermarks[p].span)
    for i, p in enumerate(by_span):
        low, end = watermarks[p]
        share = math.ceil(number / (len(by_span) - i))
        chosen[p] = OffsetRange(max(low, end - share), end)
        number = max(number - chosen[p].span, 0)
    return {p: r for p, r in chosen.items() if r.span}


def local_session() -> SparkSession:
    """A Spark session of this process that knows no catalog."""
    from sluice.embedded.home import cache_folder
    from sluice.embedded.java import find_java

    os.environ.setdefault("JAVA_HOME", str(find_java(cache_folder()).home))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.Builder().appName("sluice contract test").master("local[2]")
    for name, value in {**session.DEFAULTS, "spark.sql.shuffle.partitions": "2"}.items():
        builder = builder.config(name, value)
    with suppress(ConfigError):  # JSON needs none
        builder = builder.config("spark.jars", ",".join(session.jars()))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def command(contract: Contract, file: Path | None, newest: int, topic: str, patience: float) -> int:
    """Test and print; returns the exit code: 3 where a record, or an expectation that blocks, failed."""
    chosen = topic or contract.topics[0]
    if chosen not in contract.topics:
        raise TerminalError(f"{chosen!r} does not feed {contract.table}: {', '.join(contract.topics)} do.")
    records = from_file(file) if file else from_topic(chosen, newest, patience=patience)
    if not records:
        print("There is no record to test.")
        return 0
    spark = local_session()
    try:
        fates, results = test(contract, chosen, records, spark)
    finally:
        spark.stop()
    print("\n".join(lines(fates, results)))
    failed = any(f.error for f in fates) or any(r.success is False and r.severity == "block" for r in results)
    return 3 if failed else 0


def lines(fates: Iterable[Fate], results: Iterable[Result]) -> list[str]:
    """What became of each record, of each expectation, and of all together."""
    known = list(fates)
    counts = Counter(f.what for f in known)
    verdicts = {True: "holds", False: "FAILS", None: "not judged"}
    told = [f"{r.severity:<15}  {verdicts[r.success]:<10}  {r.told}" for r in results]
    return [*map(str, known), *told, f"{len(known)} records: " + ", ".join(f"{n} {what}" for what, n in counts.items())]
