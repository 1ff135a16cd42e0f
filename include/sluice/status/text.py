"""`status` for people, within 100 columns, and for programs, as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from sluice.offsets import OffsetRange
from sluice.status.model import PartitionStatus, SnapshotStatus, Status, TableStatus, TopicStatus

if TYPE_CHECKING:
    from sluice.status.timeline import Standing

WIDTH = 100
_UNKNOWN = "?"
_PLAIN = frozenset((str, int, float, bool, type(None)))
_NAME = 36
_HEAD = ("TABLE", "READ TO", "KAFKA END", "LAG", "BEHIND", "SNAPSHOT", "OPEN", "REJECTED", "FRESH")


def as_json(status: Status) -> dict[str, Any]:
    """Everything, in JSON's own types; times in UTC as ISO 8601, ranges as `[start, end)`."""
    tables = [{**plain(t), "lag_records": t.lag_records, "warnings": t.warnings} for t in status.tables]
    unavailable = [str(e) for e in status.errors]
    return {"at": plain(status.at), "tables": tables, "unavailable": unavailable, "broken": status.broken}


def plain(value: Any) -> Any:
    """A value in JSON's own types; of a dataclass its fields. Of a thousand tables it is called 200,000 times."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if names := _fields(kind):
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


@cache
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind)) if is_dataclass(kind) else ()


def as_text(status: Status, *, details: bool) -> str:
    """One line per table, and what needs attention; or a paragraph per table with its partitions."""
    parts = [_warning("not available", str(error)) for error in status.errors]
    if details:
        parts += [_details(table) for table in status.tables]
    else:
        parts.append(_summary(status.tables))
        parts += [w for table in status.tables for w in _attention(table, prefix=f"{table.table}: ")]
    parts += [_warning("no contract reads it any more", f"{name}; nobody trims it") for name in status.unclaimed]
    return "\n".join(part for part in parts if part)


def grid(rows: Iterable[Sequence[str]], *, left: Iterable[int] = (0,), indent: str = "") -> str:
    """Columns as wide as they must be; numbers to the right, the columns in `left` to the left."""
    lines = list(rows)
    widths = [max(len(row[i]) for row in lines) for i in range(len(lines[0]))]
    texts = set(left)

    def cell(row: Sequence[str], i: int) -> str:
        return row[i].ljust(widths[i]) if i in texts else row[i].rjust(widths[i])

    return "\n".join((indent + "  ".join(cell(row, i) for i in range(len(widths)))).rstrip() for row in lines)


def duration(seconds: float | None) -> str:
    """`4s`, `12m`, `3h`, `2d`: the greatest unit that fits."""
    if seconds is None:
        return _UNKNOWN
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size or (size == 60 and seconds >= 120):
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def ranges_text(ranges: Mapping[int, OffsetRange]) -> str:
    """`0: [0, 10)  1: [4, 9)`, each partition with something to read."""
    return "  ".join(f"{p}: [{r.start}, {r.end})" for p, r in sorted(ranges.items())) or "no offsets"


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _summary(tables: Sequence[TableStatus]) -> str:
    if not tables:
        return "No table is known: the folder of contracts names none, or none but by patterns of topics."
    rows = [_HEAD]
    for t in tables:
        lines = [line for topic in t.topics for line in topic.partitions]
        rows.append(
            (
                t.table if len(t.table) <= _NAME else "…" + t.table[1 - _NAME :],
                _total(lines, "published"),
                _total(lines, "end"),
                _number(t.lag_records),
                duration(t.freshness_now_seconds),
                f"{duration(t.snapshot.age_seconds)} ago" if t.snapshot else "none",
                str(len(t.open_batches)),
                _number(t.quarantined),
                {None: "-", True: "yes", False: "NO"}[t.freshness_kept],
            )
        )
    return grid(rows)


def _total(lines: Sequence[PartitionStatus], name: str) -> str:
    values = [getattr(line, name) for line in lines]
    known = [v for v in values if v is not None]
    return f"{sum(known):,}" if known else "-" if name == "published" else _UNKNOWN


def _details(table: TableStatus) -> str:
    out = [f"{table.table}  ({table.mode}, group {table.group}, owner {table.owner})"]
    if table.exists is False:
        out.append("  the table does not exist yet; the first run creates it")
    for topic in table.topics:
        out += _topic_lines(topic)
    out += _snapshot_lines(table.snapshot)
    for batch in table.open_batches:
        waits = "planned, not staged" if batch.state == "planned" else "staged, not published"
        out += _wrapped(f"{batch.topic} batch {batch.batch} is {waits}: {ranges_text(batch.ranges)}", "open       ")
    if not table.open_batches:
        out.append("  open        no batch")
    for piece in table.slices:
        kept = f"; kept as branch {piece.branch}" if piece.branch else ""
        at = f" at {moment(piece.at)}" if piece.at else ""
        told = f"{piece.topic} slice {piece.number} {piece.state}{at}: {ranges_text(piece.ranges)}{kept}"
        told += f"; {piece.error}" if piece.error else ""
        out += _wrapped(told, "backfill   ")
    out.append(f"  quarantine  {_number(table.quarantined)} records")
    if (found := table.expectations) is not None:
        counts = f"{found.held} hold, {len(found.failed)} fail, {found.not_judged} not judged"
        where = f"{found.topic} batch {found.batch} at {moment(found.at)}"
        out += _wrapped(f"{counts}: {where}", "expected   ")
        out += [line for told in found.failed for line in _wrapped(told, "           ")]
    for done in table.maintenance:
        of = f" of {done.of}" if done.of else ""
        out += _wrapped(f"{done.action}{of} at {moment(done.at)}: {done.told}", "maintained ")
    if table.freshness_promised_seconds is not None:
        kept = {None: "unknown", True: "kept", False: "BROKEN: older records are unread"}[table.freshness_kept]
        promised, now = duration(table.freshness_promised_seconds), duration(table.freshness_now_seconds)
        out.append(f"  freshness   promised {promised}, now {now}: {kept}")
    return "\n".join(out + _attention(table) + [""])


def standing_text(table: str, asked: datetime, found: Standing | None) -> str:
    """What readers of a table saw at a moment."""
    if found is None:
        return f"{table} had no snapshot at {moment(asked)}, or its own history no longer reaches back to it."
    until = moment(found.until) if found.until else "now"
    out = [
        f"{table} at {moment(asked)}",
        f"  snapshot    {found.snapshot_id}, seen by readers from {moment(found.since)} until {until}",
    ]
    for topic, through in sorted(found.through.items()):
        offsets = "  ".join(f"{p}: {end}" for p, end in sorted(through.next_offsets.items()))
        out += _wrapped(f"{topic}: batch {through.seq}, up to but without {offsets}", "offsets    ")
    if not found.through:
        out.append("  offsets     none")
    counts = ", ".join(f"{value:,} {words}" for words, value in found.totals.items())
    return "\n".join([*out, f"  holds       {counts or 'nothing that it tells'}"])


def moment(at: datetime) -> str:
    """A moment in UTC, to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _topic_lines(topic: TopicStatus) -> list[str]:
    behind = f", {duration(topic.lag_seconds)} behind" if topic.lag_seconds is not None else ""
    reached = f"batch {topic.batch} published" if topic.batch else "nothing published"
    staged = f", {topic.staged_batch} staged" if topic.staged_batch else ""
    out = [f"  topic       {topic.topic}: {reached}{staged}; lag {_number(topic.lag_records)} offsets{behind}"]
    if topic.partitions:
        rows = [["PARTITION", "KAFKA BEGINS", "STAGED TO", "PUBLISHED TO", "KAFKA ENDS", "LAG"]]
        rows += [
            [str(p.partition), *map(_number, (p.low, p.staged, p.published, p.end, p.lag))] for p in topic.partitions
        ]
        out.append(grid(rows, left=(), indent=" " * 14))
    for gap in topic.given_up:
        by = f"by {gap.who or 'somebody'} at {gap.at.astimezone(UTC):%Y-%m-%d %H:%M} UTC: {gap.why or 'no reason'}"
        out += _wrapped(f"{gap.partition}: [{gap.offsets.start}, {gap.offsets.end}) {by}", "given up   ")
    clocks = [f"{n} {moment(c)}" for n, c in (("Kafka", topic.stream_clock), ("table", topic.table_clock)) if c]
    if clocks:
        out.append(f"              newest record: {', '.join(clocks)}")
    return out


def _snapshot_lines(snapshot: SnapshotStatus | None) -> list[str]:
    if snapshot is None:
        return ["  snapshot    none that carries offsets"]
    what = f"{snapshot.topic} batch {snapshot.batch}, " if snapshot.batch else ""
    out = [
        f"  snapshot    {snapshot.snapshot_id}, {duration(snapshot.age_seconds)} ago: {what}"
        f"{_number(snapshot.records)} rows added"
    ]
    return out + (_wrapped(ranges_text(snapshot.ranges), "           ") if snapshot.batch else [])


def _attention(table: TableStatus, prefix: str = "") -> list[str]:
    out = [_warning(f"{prefix}stopped", problem) for problem in table.problems]
    out += [_warning(f"{prefix}at risk", warning) for warning in table.warnings]
    out += [_warning(f"{prefix}schema", table.schema)] if table.schema else []
    cured = [] if prefix or table.refusals or not table.last_error else [table.last_error]
    for last in (*table.refusals, *cured):
        state = f"{prefix}{last.state}" + ("" if last.open else ", since cured")
        where = f"{last.topic} batch {last.batch} at {moment(last.at)}"
        out.append(_warning(state, f"{where}: {last.error or 'no reason given'}"))
    if prefix and table.freshness_kept is False:
        late = sum(n for t in table.topics for n in (t.late or {}).values())
        promised = duration(table.freshness_promised_seconds)
        out.append(_warning(f"{prefix}late", f"{late:,} unread offsets are older than the promised {promised}."))
    return out


def _warning(what: str, text: str) -> str:
    return textwrap.fill(f"! {what}: {text}", WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _wrapped(text: str, label: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"  {label} ", subsequent_indent=" " * (len(label) + 3), break_on_hyphens=False
    )
