"""Summarizes a table's quarantine: counts by error class, field and time, offsets to replay, and the newest errors."""

from __future__ import annotations

import base64
import dataclasses
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.iceberg import table_names, tables
from sluice.iceberg.filters import And, one_of
from sluice.iceberg.sql_literals import sql_literal
from sluice.ledger.newest_rows import take_newest

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from sluice.batch import PublishedOffsets
    from sluice.contract.contract import Contract

MAX_COUNTED = 200_000
NEWEST_PER_GROUP = 10
BARS = 40
"""Parts of equal length into which the time of all records of a quarantine is divided."""
SQL_ROWS = 100
MAX_SHOWN = 200
MAX_TOPICS_IN_SQL = 5
LABELS = {
    ("malformed", False): "cannot be parsed (malformed)",
    ("malformed", True): "type mismatch (malformed)",
    ("misfit", True): "missing or invalid value (misfit)",
}
"""Error class, and whether it names a field, to the words that pages show."""

_GROUP_COLUMNS = ("error_class", "field")
_COORDINATES = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "batch_seq")
_PAYLOAD = ("key", "value", "headers")
_WAITING = "waiting"
_COUNT_COLUMNS = (*_GROUP_COLUMNS, _WAITING, "_kafka_topic", "_kafka_partition", "batch_seq")


@dataclass
class ErrorGroup:
    """The quarantined records with one error class and field, of published batches or of those that wait.

    Attributes:
        field: empty where the error is about the whole record.
        ranges: per topic and partition `[first, end)`, which covers all records, and maybe others. Empty if they can't
            be replayed: those of a batch that is not published yet, and all if the table's offsets are unknown.
        newest: Kafka coordinates, batch, error and time of the newest records; key and value, as `shown`, if asked for.
        waiting: whether the batch of these records is not published yet; a run publishes it, without a replay.
        by_time: how many records were quarantined in each part of the quarantine's time.
        batches: per topic the lowest and the highest number of the records' batches.
        sql: a query for the records, with their keys and values.
    """

    error_class: str
    field: str
    records: int = 0
    ranges: dict[str, dict[int, list[int]]] = dataclasses.field(default_factory=dict)
    newest: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    waiting: bool = False
    by_time: list[int] = dataclasses.field(default_factory=list)
    batches: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    sql: str = ""

    @property
    def label(self) -> str:
        """The error in words; the class itself where there are none."""
        return LABELS.get((self.error_class, bool(self.field)), self.error_class)


@dataclass(frozen=True)
class QuarantineSummary:
    """The records in a table's quarantine.

    Attributes:
        groups: those of unpublished batches first, then the most frequent errors.
        by_batch: counts by topic and batch.
        counted: the size of the sample, where not all records were counted.
        first, last: when the oldest and the newest of the records were quarantined.
    """

    groups: Sequence[ErrorGroup] = ()
    by_batch: Mapping[tuple[str, int], int] = dataclasses.field(default_factory=dict)
    counted: int | None = None
    first: datetime | None = None
    last: datetime | None = None

    def part_begin(self, part: int) -> datetime | None:
        """When a part of `ErrorGroup.by_time` begins."""
        return self.first + (self.last - self.first) * part / BARS if self.first and self.last else None


def read_quarantine(
    catalog: Catalog,
    contract: Contract,
    published: Mapping[str, PublishedOffsets] | None = None,
    *,
    with_values: bool = False,
) -> QuarantineSummary:
    """Summarize a table's quarantine, or a sample of 200,000 records of it.

    Args:
        catalog: where the quarantine is.
        contract: the table's.
        published: the table's offsets per topic; None if they are unknown.
        with_values: read the keys and values of the newest records too.
    """
    table = tables.load_quarantine(catalog, contract)
    if table is None or table.current_snapshot() is None:
        return QuarantineSummary()
    names = (*_GROUP_COLUMNS, *_COORDINATES, "error", "quarantined_at")
    found = _mark_waiting(table.scan(selected_fields=names, limit=MAX_COUNTED).to_arrow(), published)
    wanted = [("_kafka_offset", "min"), ("_kafka_offset", "max"), ([], "count_all")]
    counts = found.group_by(list(_COUNT_COLUMNS), use_threads=False).aggregate(wanted).to_pylist()
    by_batch = Counter[tuple[str, int]]()
    for row in counts:
        by_batch[row["_kafka_topic"], row["batch_seq"]] += row["count_all"]
    groups = _group_errors(counts, found, replayable=published is not None)
    first, last = _count_by_time(groups, found)
    counted = MAX_COUNTED if len(found) >= MAX_COUNTED else None
    for key, group in groups.items():
        # Of a sample, the batches of the other records are not known.
        group.sql = error_query(contract, *key[:2], {} if counted else group.batches)
    if with_values:
        newest = [row for group in groups.values() for row in group.newest]
        for row, payload in zip(newest, _read_payloads(table, newest), strict=True):
            row |= {name: shown(payload.get(name)) for name in ("key", "value")}
    ordered = sorted(groups.values(), key=lambda g: (not g.waiting, -g.records, g.error_class, g.field))
    return QuarantineSummary(ordered, dict(by_batch), counted, first, last)


def error_query(
    contract: Contract, error_class: str, field: str, batches: Mapping[str, tuple[int, int]] = MappingProxyType({})
) -> str:
    """A Spark SQL query for the newest quarantined records with an error class and field.

    Args:
        batches: per topic the first and the last batch to look at; empty, or of many topics: all.
    """
    name = table_names.spark_name(table_names.catalog_name(), table_names.quarantine(contract))
    of_field = f"= {sql_literal(field)}" if field else "IS NULL"
    parts = [
        f"_kafka_topic = {sql_literal(topic)} AND batch_seq BETWEEN {first} AND {last}"
        for topic, (first, last) in sorted(batches.items())
    ]
    where = f"\n  AND ({' OR '.join(parts)})" if 0 < len(parts) <= MAX_TOPICS_IN_SQL else ""
    # A quarantine without raw records has no keys and values to show.
    values = "" if contract.drops_raw_records else f",\n  {_as_text('key')},\n  {_as_text('value')}"
    return (
        f"SELECT _kafka_topic, _kafka_partition, _kafka_offset, batch_seq, quarantined_at, error{values}\n"
        f"FROM {name}\n"
        f"WHERE error_class = {sql_literal(error_class)} AND field {of_field}{where}\n"
        f"ORDER BY quarantined_at DESC LIMIT {SQL_ROWS}"
    )


def _as_text(column: str) -> str:
    """UTF-8 text as it is, other bytes as base64."""
    return f"coalesce(try_validate_utf8(CAST({column} AS STRING)), concat('base64 ', base64({column}))) AS {column}"


def _count_by_time(
    groups: Mapping[tuple[str, str, bool], ErrorGroup], found: pa.Table
) -> tuple[datetime | None, datetime | None]:
    """Count each group's records by time, and return the first and the last time."""
    ends = pc.min_max(found["quarantined_at"])
    first, last = ends["min"].as_py(), ends["max"].as_py()
    if first is None or first == last:
        return first, last
    since = pc.cast(pc.subtract(found["quarantined_at"], ends["min"]), pa.int64())
    width = pc.cast(pc.subtract(ends["max"], ends["min"]), pa.int64()).as_py() // BARS + 1
    parts = found.append_column("part", pc.divide(since, width))
    for row in parts.group_by([*_GROUP_COLUMNS, _WAITING, "part"]).aggregate([([], "count_all")]).to_pylist():
        group = groups[_group_key(row)]
        group.by_time = group.by_time or [0] * BARS
        group.by_time[row["part"]] += row["count_all"]
    return first, last


def _mark_waiting(found: pa.Table, published: Mapping[str, PublishedOffsets] | None) -> pa.Table:
    """Add a column that says whether a record's batch is not published yet."""
    last = {topic: through.seq for topic, through in (published or {}).items()}
    batches = zip(found["_kafka_topic"].to_pylist(), found["batch_seq"].to_pylist(), strict=True)
    waiting = [published is not None and seq > last.get(topic, -sys.maxsize) for topic, seq in batches]
    return found.append_column(_WAITING, pa.array(waiting, pa.bool_()))


def read_newest_records(
    catalog: Catalog, contract: Contract, limit: int, *, with_values: bool = False
) -> list[dict[str, Any]]:
    """Return the newest quarantined records, newest first: coordinates, batch, error, field, time.

    Args:
        catalog: where the quarantine is.
        contract: the table's.
        limit: how many records.
        with_values: read `key`, `value` and `headers` too, as bytes; of the chosen records only.
    """
    table = tables.load_quarantine(catalog, contract)
    if table is None or table.current_snapshot() is None:
        return []
    names = (*_GROUP_COLUMNS, *_COORDINATES, "error", "quarantined_at")
    positions = table.scan(selected_fields=names).to_arrow()
    order = [("quarantined_at", "descending"), *((name, "descending") for name in _COORDINATES)]
    chosen: list[dict[str, Any]] = positions.sort_by(order).slice(0, limit).to_pylist()
    if not with_values:
        return chosen
    return [{**row, **payload} for row, payload in zip(chosen, _read_payloads(table, chosen), strict=True)]


def _read_payloads(table: Table, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Read key, value and headers of each of these records; empty for one that is gone meanwhile."""
    if not rows:
        return []
    # A record may be in quarantine several times, by another batch each.
    wanted = [tuple(row[name] for name in _COORDINATES) for row in rows]
    keys = ("_kafka_topic", "batch_seq", "_kafka_offset")
    where = reduce(And, (one_of(name, {row[name] for row in rows}) for name in keys))
    found = table.scan(row_filter=where, selected_fields=(*_COORDINATES, *_PAYLOAD)).to_arrow().to_pylist()
    payloads = {tuple(row[name] for name in _COORDINATES): {name: row[name] for name in _PAYLOAD} for row in found}
    return [payloads.get(at, {}) for at in wanted]


def shown(value: bytes | None) -> str | None:
    """UTF-8 text in one short line; other bytes, and those with a NUL as the registry's wire format has, as base64."""
    if value is None:
        return None
    with suppress(UnicodeDecodeError):
        if 0 not in value:
            return one_line(value.decode())
    return one_line(f"base64 {base64.b64encode(value).decode()}")


def one_line(value: Any) -> str:
    """The first 200 characters of a value; line feeds are shown as such."""
    text = "-" if value is None else str(value).replace("\n", "\\n")
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _group_errors(
    counts: Iterable[Mapping[str, Any]], found: pa.Table, *, replayable: bool
) -> dict[tuple[str, str, bool], ErrorGroup]:
    groups: dict[tuple[str, str, bool], ErrorGroup] = {}
    for row in counts:
        key = _group_key(row)
        group = groups.setdefault(key, ErrorGroup(*key[:2], waiting=row[_WAITING]))
        group.records += row["count_all"]
        seq = row["batch_seq"]
        low, high = group.batches.get(row["_kafka_topic"], (seq, seq))
        group.batches[row["_kafka_topic"]] = min(low, seq), max(high, seq)
        if group.waiting or not replayable:
            continue
        ranges = group.ranges.setdefault(row["_kafka_topic"], {})
        first, end = row["_kafka_offset_min"], row["_kafka_offset_max"] + 1
        known = ranges.get(row["_kafka_partition"], [first, end])
        ranges[row["_kafka_partition"]] = [min(first, known[0]), max(end, known[1])]
    dated = found.rename_columns({"quarantined_at": "at"})
    for row in reversed(take_newest(dated, (*_GROUP_COLUMNS, _WAITING), NEWEST_PER_GROUP).to_pylist()):
        groups[_group_key(row)].newest.append(row)
    return groups


def _group_key(row: Mapping[str, Any]) -> tuple[str, str, bool]:
    return row["error_class"], row["field"] or "", row[_WAITING]
