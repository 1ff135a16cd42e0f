"""What a table's quarantine holds: how much by what is wrong, where, and the newest of each; never the record."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sluice.iceberg import table_names, tables
from sluice.ledger.newest_rows import newest

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sluice.batch import Through
    from sluice.contract.contract import Contract

COUNTED = 200_000
SHOWN_OF_EACH = 10

_KIND = ("error_class", "field")
_PLACE = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "batch_seq")
_SPREAD = (*_KIND, "_kafka_topic", "_kafka_partition", "batch_seq")


@dataclass
class Wrong:
    """The records of one class of error and field.

    Attributes:
        where: the field; empty where it is about the whole record.
        ranges: per topic and partition `[first, end)`, within which lie all that can be replayed, and maybe others:
            not those of a batch that is not published yet.
        newest: place, batch, error and time of the newest.
    """

    error_class: str
    where: str
    records: int = 0
    ranges: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    newest: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Rejected:
    """What is in quarantine.

    Attributes:
        wrong: the most frequent first.
        by_batch: records by topic and batch.
        counted: over how many records, where not over all.
    """

    wrong: Sequence[Wrong] = ()
    by_batch: Mapping[tuple[str, int], int] = field(default_factory=dict)
    counted: int | None = None


def read(catalog: Catalog, contract: Contract, published: Mapping[str, Through] | None = None) -> Rejected:
    """Look at a table's quarantine, or at 200,000 records of it.

    Args:
        published: how far the table has come; without it nothing is said of what can be replayed.
    """
    held = tables.load(catalog, table_names.quarantine(contract))
    if held is None or held.current_snapshot() is None:
        return Rejected()
    names = (*_KIND, *_PLACE, "error", "quarantined_at")
    found = held.scan(selected_fields=names, limit=COUNTED).to_arrow()
    wanted = [("_kafka_offset", "min"), ("_kafka_offset", "max"), ([], "count_all")]
    spread = found.group_by(list(_SPREAD), use_threads=False).aggregate(wanted).to_pylist()
    by_batch = Counter[tuple[str, int]]()
    for row in spread:
        by_batch[row["_kafka_topic"], row["batch_seq"]] += row["count_all"]
    reached = {topic: through.seq for topic, through in (published or {}).items()}
    return Rejected(_wrong(spread, found, reached), dict(by_batch), COUNTED if len(found) >= COUNTED else None)


def _wrong(spread: Iterable[Mapping[str, Any]], found: pa.Table, reached: Mapping[str, int]) -> list[Wrong]:
    kinds: dict[tuple[str, str], Wrong] = {}
    for row in spread:
        kind = (row["error_class"], row["field"] or "")
        wrong = kinds.setdefault(kind, Wrong(*kind))
        wrong.records += row["count_all"]
        if row["batch_seq"] > reached.get(row["_kafka_topic"], -sys.maxsize):
            continue
        place = wrong.ranges.setdefault(row["_kafka_topic"], {})
        first, end = row["_kafka_offset_min"], row["_kafka_offset_max"] + 1
        was = place.get(row["_kafka_partition"], [first, end])
        place[row["_kafka_partition"]] = [min(first, was[0]), max(end, was[1])]
    timed = found.rename_columns({"quarantined_at": "at"})
    for row in reversed(newest(timed, _KIND, SHOWN_OF_EACH).to_pylist()):
        kinds[row["error_class"], row["field"] or ""].newest.append(row)
    return sorted(kinds.values(), key=lambda w: (-w.records, w.error_class, w.where))
