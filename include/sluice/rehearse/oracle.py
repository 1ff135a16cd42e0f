"""Compares a table with an undisturbed one, row by row. In: Arrow tables. Out: how they differ, without values."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sluice.contract.values import KAFKA_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

PARTITION, OFFSET = KAFKA_COLUMNS[1:3]
Coordinates = tuple[int, int]
"""Partition and offset: a rehearsal reads one topic."""
Rows = Counter[tuple[Coordinates, str]]
"""How often each row occurs: its record's coordinates, and a hash of all its values."""
MAX_EXAMPLES = 3


def read_rows(data: pa.Table) -> Rows:
    """Return the rows of a table."""
    return Counter((_coordinates(row), _hash(row)) for row in data.to_pylist())


def _coordinates(row: Mapping[str, object]) -> Coordinates:
    return int(str(row[PARTITION])), int(str(row[OFFSET]))


def _hash(row: Mapping[str, object]) -> str:
    return hashlib.sha256(repr(sorted(row.items(), key=lambda each: each[0])).encode()).hexdigest()


def checksum(rows: Rows) -> str:
    """Return a checksum of all rows, whatever their order."""
    return hashlib.sha256(repr(sorted(rows.items())).encode()).hexdigest()[:16]


def compare_rows(found: Rows, expected: Rows) -> str:
    """Return how the rows differ; empty if they are equal."""
    lacking, more = expected - found, found - expected
    lost, left = {at for at, _ in lacking}, {at for at, _ in more}
    doubled = {at for at, digest in more if (at, digest) in expected}
    parts = (
        ("missing", lost - left),
        ("changed", lost & left),
        ("doubled", doubled),
        ("not expected", left - lost - doubled),
    )
    return "; ".join(f"{len(each):,} {name}{_examples(each)}" for name, each in parts if each)


def compare_coordinates(found: Iterable[Coordinates], expected: Iterable[Coordinates], what: str) -> str:
    """Return which records differ, or occur twice, in staging or in quarantine; empty if none do."""
    have, want = Counter(found), Counter(expected)
    lacking, more = set(want) - set(have), set(have) - set(want)
    doubled = {at for at, count in have.items() if count > 1}
    parts = (("missing in", lacking), ("not expected in", more), ("doubled in", doubled))
    return "; ".join(f"{len(each):,} {name} {what}{_examples(each)}" for name, each in parts if each)


def read_coordinates(data: pa.Table, ends: Mapping[int, int]) -> list[Coordinates]:
    """Return the coordinates of the records before these offsets."""
    rows = map(_coordinates, data.select([PARTITION, OFFSET]).to_pylist())
    return [at for at in rows if at[1] < ends.get(at[0], 0)]


def _examples(each: Iterable[Coordinates]) -> str:
    shown = sorted(each)
    more = ", …" if len(shown) > MAX_EXAMPLES else ""
    return f" ({', '.join(f'partition {p} offset {o}' for p, o in shown[:MAX_EXAMPLES])}{more})"
