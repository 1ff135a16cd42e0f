"""Which records a review is about: those that were set apart since it began, where they lie, and a few of them.

Never their values: what is told of a record is what the quarantine's `error` says, which has none.
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
from sluice.iceberg import range_scan, table_names, tables
from sluice.iceberg.filters import And, Or, above, equal
from sluice.offsets import OffsetRange, Ranges

SAMPLE = 5
LONGEST = 400
_PLACE = ("_kafka_topic", "_kafka_partition", "_kafka_offset")


@dataclass(frozen=True)
class Affected:
    """Records that were set apart.

    Attributes:
        counts: how many, by error and field.
        spans: per topic and partition from the first to behind the last of them.
        sample: a few of them in words, of each kind of error as far as there is room.
    """

    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    spans: Mapping[str, Ranges] = field(default_factory=dict)
    sample: Sequence[str] = ()

    @property
    def total(self) -> int:
        """How many records."""
        return sum(self.counts.values())


def set_apart(catalog: Catalog, contract: Contract, since: datetime) -> Affected:
    """What went to the table's quarantine since a moment, by batches that are blocked as well."""
    held = tables.load(catalog, table_names.quarantine(contract))
    if held is None or held.current_snapshot() is None:
        return Affected()
    wanted = above("quarantined_at", since.isoformat())
    rows = held.scan(row_filter=wanted, selected_fields=("error_class", "field", *_PLACE)).to_arrow()
    kinds = rows.group_by(["error_class", "field"]).aggregate([([], "count_all")]).to_pylist()
    counts = Counter({(r["error_class"], r["field"] or ""): r["count_all"] for r in kinds})
    ends = rows.group_by(list(_PLACE[:2])).aggregate([(_PLACE[2], "min"), (_PLACE[2], "max")])
    spans: dict[str, dict[int, OffsetRange]] = {}
    for r in ends.sort_by([(name, "ascending") for name in _PLACE[:2]]).to_pylist():
        at = OffsetRange(r[f"{_PLACE[2]}_min"], r[f"{_PLACE[2]}_max"] + 1)
        spans.setdefault(r["_kafka_topic"], {})[r["_kafka_partition"]] = at
    return Affected(dict(counts), spans, _told(held, _chosen(rows)))


def _chosen(rows: pa.Table) -> list[tuple[str, int, int]]:
    """The places of the newest record of each kind of error, then of further ones."""
    rows = rows.sort_by([(_PLACE[2], "descending"), (_PLACE[1], "ascending"), (_PLACE[0], "ascending")])
    first = rows.group_by(["error_class", "field"], use_threads=False).aggregate([(n, "first") for n in _PLACE])
    places = list(zip(*(first[f"{n}_first"].to_pylist() for n in _PLACE), strict=True))
    places += zip(*(rows.slice(0, SAMPLE)[n].to_pylist() for n in _PLACE), strict=True)
    return list(dict.fromkeys(places))[:SAMPLE]


def _told(held: Table, places: Sequence[tuple[str, int, int]]) -> list[str]:
    if not places:
        return []
    wanted = reduce(Or, (reduce(And, map(equal, _PLACE, each)) for each in places))
    fields = (*_PLACE, "error_class", "field", "error")
    # A record that was staged twice may lie there twice.
    found = {
        tuple(r[n] for n in _PLACE): kind(r["error_class"], r["field"]) + (f": {r['error']}" if r["error"] else "")
        for r in held.scan(row_filter=wanted, selected_fields=fields).to_arrow().to_pylist()
    }
    return [f"{place(*each)}: {found[each]}"[:LONGEST] for each in places if each in found]


def kind(error: str, name: str | None) -> str:
    """A kind of error in words."""
    return f"{error} in field {name}" if name else error


def place(topic: str, partition: int, offset: int) -> str:
    """A record's coordinates in words."""
    return f"{topic}, partition {partition}, offset {offset}"


def newest(table: Table, ranges: Mapping[str, Mapping[int, tuple[int, int]]]) -> list[str]:
    """The places of the last few rows that were published of these ranges."""
    found: list[tuple[int, str, int]] = []
    for topic, each in ranges.items():
        ends = {p: OffsetRange(max(start, end - SAMPLE), end) for p, (start, end) in each.items()}
        rows = range_scan.rows(table, Batch(topic, "", 0, ends, {}), _PLACE)
        found += [(r[_PLACE[2]], topic, r[_PLACE[1]]) for r in rows.to_pylist()]
    return [place(topic, p, offset) for offset, topic, p in sorted(found, reverse=True)[:SAMPLE]]


def plain(lines: Iterable[str]) -> list[str]:
    """The lines without anything that is not printed: what comes from records or their schemas may hold any of it."""
    return ["".join(c if c.isprintable() else ascii(c)[1:-1] for c in line) for line in lines]
