"""Finds the records that a review concerns: those quarantined since it began, with a sample of them.

In: a table and a time. Out: counts, offset ranges and sample lines. A sample never shows a record's values: it consists
of the quarantine's `error` texts, which contain none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.batch import Batch
from sluice.contract.contract import Contract
from sluice.iceberg import range_scan, tables
from sluice.iceberg.filters import And, Or, above, equal
from sluice.offsets import OffsetRange, Ranges

SAMPLE_SIZE = 5
MAX_LINE = 400
_POSITION = ("_kafka_topic", "_kafka_partition", "_kafka_offset")


@dataclass(frozen=True)
class QuarantinedRecords:
    """Quarantined records of one table.

    Attributes:
        counts: how many, by error and field.
        ranges: per topic and partition, from the first of them to past the last.
        sample: a line each for a few of them, of each kind of error as far as there is room.
    """

    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    ranges: Mapping[str, Ranges] = field(default_factory=dict)
    sample: Sequence[str] = ()

    @property
    def total(self) -> int:
        """How many records."""
        return sum(self.counts.values())


def quarantined_since(catalog: Catalog, contract: Contract, since: datetime) -> QuarantinedRecords:
    """The records that were quarantined since a time, those of blocked batches included."""
    quarantine = tables.load_quarantine(catalog, contract)
    if quarantine is None or quarantine.current_snapshot() is None:
        return QuarantinedRecords()
    recent = above("quarantined_at", since.isoformat())
    rows = quarantine.scan(row_filter=recent, selected_fields=("error_class", "field", *_POSITION)).to_arrow()
    kinds = rows.group_by(["error_class", "field"]).aggregate([([], "count_all")]).to_pylist()
    counts = Counter({(r["error_class"], r["field"] or ""): r["count_all"] for r in kinds})
    ends = rows.group_by(list(_POSITION[:2])).aggregate([(_POSITION[2], "min"), (_POSITION[2], "max")])
    ranges: dict[str, dict[int, OffsetRange]] = {}
    for r in ends.sort_by([(name, "ascending") for name in _POSITION[:2]]).to_pylist():
        span = OffsetRange(r[f"{_POSITION[2]}_min"], r[f"{_POSITION[2]}_max"] + 1)
        ranges.setdefault(r["_kafka_topic"], {})[r["_kafka_partition"]] = span
    return QuarantinedRecords(dict(counts), ranges, _describe_sample(quarantine, _choose_sample(rows)))


def _choose_sample(rows: pa.Table) -> list[tuple[str, int, int]]:
    """The positions of the newest record of each kind of error, then of other new records."""
    rows = rows.sort_by([(_POSITION[2], "descending"), (_POSITION[1], "ascending"), (_POSITION[0], "ascending")])
    first = rows.group_by(["error_class", "field"], use_threads=False).aggregate([(n, "first") for n in _POSITION])
    positions = list(zip(*(first[f"{n}_first"].to_pylist() for n in _POSITION), strict=True))
    positions += zip(*(rows.slice(0, SAMPLE_SIZE)[n].to_pylist() for n in _POSITION), strict=True)
    return list(dict.fromkeys(positions))[:SAMPLE_SIZE]


def _describe_sample(quarantine: Table, positions: Sequence[tuple[str, int, int]]) -> list[str]:
    if not positions:
        return []
    wanted = reduce(Or, (reduce(And, map(equal, _POSITION, each)) for each in positions))
    fields = (*_POSITION, "error_class", "field", "error")
    # A record that was staged twice may be there twice: keyed by position, one is left.
    found = {
        tuple(r[n] for n in _POSITION): describe_error(r["error_class"], r["field"])
        + (f": {r['error']}" if r["error"] else "")
        for r in quarantine.scan(row_filter=wanted, selected_fields=fields).to_arrow().to_pylist()
    }
    return [f"{describe_position(*each)}: {found[each]}"[:MAX_LINE] for each in positions if each in found]


def describe_error(error: str, name: str | None) -> str:
    """An error class and its field as text."""
    return f"{error} in field {name}" if name else error


def describe_position(topic: str, partition: int, offset: int) -> str:
    """A record's coordinates as text."""
    return f"{topic}, partition {partition}, offset {offset}"


def newest_published(table: Table, ranges: Mapping[str, Mapping[int, tuple[int, int]]]) -> list[str]:
    """The positions of the last rows that were published from these ranges, as text."""
    found: list[tuple[int, str, int]] = []
    for topic, each in ranges.items():
        ends = {p: OffsetRange(max(start, end - SAMPLE_SIZE), end) for p, (start, end) in each.items()}
        rows = range_scan.read_slice_records(table, Batch(topic, "", 0, ends, {}), _POSITION)
        found += [(r[_POSITION[2]], topic, r[_POSITION[1]]) for r in rows.to_pylist()]
    return [describe_position(topic, p, offset) for offset, topic, p in sorted(found, reverse=True)[:SAMPLE_SIZE]]


def printable_lines(lines: Iterable[str]) -> list[str]:
    """The lines with unprintable characters escaped: text from records and schemas may hold any."""
    return ["".join(c if c.isprintable() else ascii(c)[1:-1] for c in line) for line in lines]
