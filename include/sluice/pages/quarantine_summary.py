"""Summarizes a table's quarantine: counts by error class and field, offsets to replay, and the newest errors."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sluice.iceberg import tables
from sluice.iceberg.filters import And, one_of
from sluice.ledger.newest_rows import take_newest

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sluice.batch import PublishedOffsets
    from sluice.contract.contract import Contract

MAX_COUNTED = 200_000
NEWEST_PER_GROUP = 10
LABELS = {
    ("malformed", False): "cannot be parsed (malformed)",
    ("malformed", True): "type mismatch (malformed)",
    ("misfit", True): "missing or invalid value (misfit)",
}
"""Error class, and whether it names a field, to the words that pages show."""

_GROUP_COLUMNS = ("error_class", "field")
_COORDINATES = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "batch_seq")
_PAYLOAD = ("key", "value", "headers")
_COUNT_COLUMNS = (*_GROUP_COLUMNS, "_kafka_topic", "_kafka_partition", "batch_seq")


@dataclass
class ErrorGroup:
    """The quarantined records with one error class and field.

    Attributes:
        field: empty where the error is about the whole record.
        ranges: per topic and partition `[first, end)`, which covers all records that can be replayed, and maybe
            others. Records of a batch that is not published yet are left out.
        newest: Kafka coordinates, batch, error and time of the newest records.
    """

    error_class: str
    field: str
    records: int = 0
    ranges: dict[str, dict[int, list[int]]] = dataclasses.field(default_factory=dict)
    newest: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def label(self) -> str:
        """The error in words; the class itself where there are none."""
        return LABELS.get((self.error_class, bool(self.field)), self.error_class)


@dataclass(frozen=True)
class QuarantineSummary:
    """The records in a table's quarantine.

    Attributes:
        groups: the most frequent errors first.
        by_batch: counts by topic and batch.
        counted: the size of the sample, where not all records were counted.
    """

    groups: Sequence[ErrorGroup] = ()
    by_batch: Mapping[tuple[str, int], int] = dataclasses.field(default_factory=dict)
    counted: int | None = None


def read_quarantine(
    catalog: Catalog, contract: Contract, published: Mapping[str, PublishedOffsets] | None = None
) -> QuarantineSummary:
    """Summarize a table's quarantine, or a sample of 200,000 records of it.

    Args:
        published: the table's offsets per topic; without them, records of unpublished batches are not left out.
    """
    table = tables.load_quarantine(catalog, contract)
    if table is None or table.current_snapshot() is None:
        return QuarantineSummary()
    names = (*_GROUP_COLUMNS, *_COORDINATES, "error", "quarantined_at")
    found = table.scan(selected_fields=names, limit=MAX_COUNTED).to_arrow()
    wanted = [("_kafka_offset", "min"), ("_kafka_offset", "max"), ([], "count_all")]
    counts = found.group_by(list(_COUNT_COLUMNS), use_threads=False).aggregate(wanted).to_pylist()
    by_batch = Counter[tuple[str, int]]()
    for row in counts:
        by_batch[row["_kafka_topic"], row["batch_seq"]] += row["count_all"]
    last_batches = {topic: through.seq for topic, through in (published or {}).items()}
    return QuarantineSummary(
        _group_errors(counts, found, last_batches), dict(by_batch), MAX_COUNTED if len(found) >= MAX_COUNTED else None
    )


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
    if not with_values or not chosen:
        return chosen
    # A record may be in quarantine several times, by another batch each.
    wanted = {tuple(row[name] for name in _COORDINATES) for row in chosen}
    keys = ("_kafka_topic", "batch_seq", "_kafka_offset")
    where = reduce(And, (one_of(name, {row[name] for row in chosen}) for name in keys))
    found = table.scan(row_filter=where, selected_fields=(*_COORDINATES, *_PAYLOAD)).to_arrow().to_pylist()
    values = {at: row for row in found if (at := tuple(row[name] for name in _COORDINATES)) in wanted}
    return [{**row, **values.get(tuple(row[name] for name in _COORDINATES), {})} for row in chosen]


def _group_errors(
    counts: Iterable[Mapping[str, Any]], found: pa.Table, last_batches: Mapping[str, int]
) -> list[ErrorGroup]:
    groups: dict[tuple[str, str], ErrorGroup] = {}
    for row in counts:
        key = (row["error_class"], row["field"] or "")
        group = groups.setdefault(key, ErrorGroup(*key))
        group.records += row["count_all"]
        if row["batch_seq"] > last_batches.get(row["_kafka_topic"], -sys.maxsize):
            continue
        ranges = group.ranges.setdefault(row["_kafka_topic"], {})
        first, end = row["_kafka_offset_min"], row["_kafka_offset_max"] + 1
        known = ranges.get(row["_kafka_partition"], [first, end])
        ranges[row["_kafka_partition"]] = [min(first, known[0]), max(end, known[1])]
    dated = found.rename_columns({"quarantined_at": "at"})
    for row in reversed(take_newest(dated, _GROUP_COLUMNS, NEWEST_PER_GROUP).to_pylist()):
        groups[row["error_class"], row["field"] or ""].newest.append(row)
    return sorted(groups.values(), key=lambda g: (-g.records, g.error_class, g.field))
