"""What a comparison found, as a sentence, as lines, and as JSON. In: counts and examples."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict

MAX_LISTED_COLUMNS = 20


class _Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Commit(_Fact):
    """A commit that added rows.

    Attributes:
        newest: the newest value of the time column in its files; None if their metrics do not say.
    """

    at: datetime
    newest: datetime | None = None


class Side(_Fact):
    """One of the two tables.

    Attributes:
        snapshot_id: what was read; None: a view, or no Iceberg table: it was read once.
        rows: those that were compared.
        commits: the last ones that added rows, oldest first.
    """

    name: str
    snapshot_id: int | None
    rows: int
    commits: tuple[Commit, ...] = ()

    @property
    def interval(self) -> float | None:
        """Median seconds between commits."""
        times = [commit.at for commit in self.commits]
        gaps = [(b - a).total_seconds() for a, b in pairwise(times)]
        return median(gaps) if gaps else None

    @property
    def delay(self) -> float | None:
        """Median seconds from the newest value of a commit to the commit."""
        delays = [(commit.at - commit.newest).total_seconds() for commit in self.commits if commit.newest]
        return median(delays) if delays else None


class ComparedColumn(_Fact):
    """A compared column that is not of the key.

    Attributes:
        different: rows in which its values differ.
        examples: the key, and both values as text.
    """

    name: str
    tolerance: str | None = None
    different: int = 0
    examples: tuple[tuple[str, str | None, str | None], ...] = ()


class Keys(_Fact):
    """Keys that only one table has, or that one has more than once.

    Attributes:
        count: how many keys.
        examples: keys as text; of duplicates with the number of rows in each table.
    """

    count: int = 0
    examples: tuple[str, ...] = ()


class Comparison(_Fact):
    """What a comparison found.

    Attributes:
        ours: Sluice's table.
        theirs: the other one.
        key: the columns that identify a row.
        window: which rows were compared, in words; empty: all.
        only_ours: keys that the other table lacks.
        only_theirs: keys that Sluice's table lacks.
        duplicates: keys with more than one row, and not the same rows in both tables.
        different: keys whose values differ.
        not_compared: columns, and why they were not compared.
        buckets: buckets of keys whose hashes differ, and all buckets.
    """

    ours: Side
    theirs: Side
    run_id: str
    at: datetime
    key: tuple[str, ...]
    window: str
    columns: tuple[ComparedColumn, ...]
    only_ours: Keys = Keys()
    only_theirs: Keys = Keys()
    duplicates: Keys = Keys()
    different: int = 0
    not_compared: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    buckets: tuple[int, int] = (0, 0)
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether no difference was found."""
        return not (self.only_ours.count or self.only_theirs.count or self.duplicates.count or self.different)

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if self.equal:
            return f"equal: {self.ours.rows:,} rows, {len(self.key) + len(self.columns)} columns"
        parts = [
            _count(self.only_ours.count, "key is", "keys are", f"missing in {self.theirs.name}"),
            _count(self.only_theirs.count, "key is", "keys are", f"missing in {self.ours.name}"),
            _count(self.duplicates.count, "key has", "keys have", "duplicates"),
            _count(self.different, "row has", "rows have", f"other values ({self._by_column()})"),
        ]
        return f"different: {', '.join(filter(None, parts))}"

    def _by_column(self) -> str:
        found = sorted((c for c in self.columns if c.different), key=lambda c: -c.different)
        more = [f"{len(found) - 5} more columns"] if len(found) > 5 else []
        return ", ".join([*(f"{c.name}: {c.different:,}" for c in found[:5]), *more])

    def lines(self) -> Iterator[str]:
        """The result for a log or a terminal, the verdict first."""
        yield self.verdict
        for side in (self.ours, self.theirs):
            where = f"snapshot {side.snapshot_id}" if side.snapshot_id is not None else "read once"
            yield f"  {side.name}: {side.rows:,} rows, {where}{_freshness(side)}"
        yield f"  rows are identified by {', '.join(self.key)}{f'; only {self.window}' if self.window else ''}"
        for keys, what in (
            (self.only_ours, f"missing in {self.theirs.name}"),
            (self.only_theirs, f"missing in {self.ours.name}"),
            (self.duplicates, "duplicates"),
        ):
            if keys.count:
                yield f"  {what}: {'; '.join(keys.examples)}{' …' if keys.count > len(keys.examples) else ''}"
        for column in [c for c in self.columns if c.different][:MAX_LISTED_COLUMNS]:
            yield f"  {column.name} differs in {column.different:,} rows"
            for key, one, another in column.examples:
                yield f"    {key}: {_value(one)} here, {_value(another)} in {self.theirs.name}"
        for reason, names in self.reasons().items():
            yield f"  not compared: {', '.join(names)}: {reason}"
        yield from (f"  {note}" for note in self.notes)

    def reasons(self) -> dict[str, list[str]]:
        """The columns that were not compared, by the reason."""
        found: dict[str, list[str]] = {}
        for name, reason in self.not_compared:
            found.setdefault(reason, []).append(name)
        return found

    def evidence(self) -> dict[str, Any]:
        """The facts without keys and values, for `sluice.pilot`."""
        return {
            "with": self.theirs.name,
            "window": self.window,
            "key": list(self.key),
            "columns": len(self.columns),
            "not_compared": [name for name, _ in self.not_compared],
            "only_ours": self.only_ours.count,
            "only_theirs": self.only_theirs.count,
            "duplicates": self.duplicates.count,
            "different": {c.name: c.different for c in self.columns if c.different},
            "seconds": round(self.seconds, 1),
            **{
                name: {
                    "rows": side.rows,
                    "snapshot_id": side.snapshot_id,
                    "interval_seconds": side.interval,
                    "delay_seconds": side.delay,
                }
                for name, side in (("ours", self.ours), ("theirs", self.theirs))
            },
        }


def _count(number: int, one: str, many: str, what: str) -> str:
    return f"{number:,} {one if number == 1 else many} {what}" if number else ""


def _freshness(side: Side) -> str:
    text = "" if side.interval is None else f", a commit every {side.interval:,.0f} s"
    return text + ("" if side.delay is None else f", {side.delay:,.0f} s after its newest value")


def _value(text: str | None) -> str:
    return "NULL" if text is None else repr(text)
