"""The status as text of at most 100 columns for the command line, and as JSON types for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from sluice.dag_ids import ingest_dag
from sluice.offsets import OffsetRange
from sluice.status.model import PartitionStatus, SnapshotStatus, Status, TableStatus, TopicStatus

if TYPE_CHECKING:
    from sluice.status.record_trace import RecordTrace
    from sluice.status.timeline import TableAsOf

WIDTH = 100
_UNKNOWN = "?"
_PLAIN = frozenset((str, int, float, bool, type(None)))
_NAME = 36
_HEAD = ("TABLE", "COMMITTED", "LOG END", "LAG", "FRESHNESS", "COMMIT", "OPEN", "QUARANTINED", "OK")


def as_json(status: Status) -> dict[str, Any]:
    """Convert a status to JSON types: times as ISO 8601 in UTC, ranges as `[start, end)`."""
    tables = [{**to_json_types(t), "lag_records": t.lag_records, "warnings": t.warnings} for t in status.tables]
    unavailable = [str(e) for e in status.errors]
    return {"at": to_json_types(status.at), "tables": tables, "unavailable": unavailable, "broken": status.broken}


def to_json_types(value: Any) -> Any:
    """Convert a value to JSON types; a dataclass becomes a dict of its fields."""
    kind: Any = type(value)  # this function is called 200,000 times for a thousand tables
    if kind in _PLAIN:
        return value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if names := _fields(kind):
        return {name: to_json_types(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(k): to_json_types(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_types(v) for v in value]
    return value


@cache
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind)) if is_dataclass(kind) else ()


def as_text(status: Status, *, details: bool) -> str:
    """Format one line per table and what needs attention, or a paragraph per table with its partitions."""
    parts = [_warning("not available", str(error)) for error in status.errors]
    if details:
        parts += [_table_details(table) for table in status.tables]
    else:
        parts.append(_summary(status.tables))
        parts += [w for table in status.tables for w in _attention_lines(table, prefix=f"{table.table}: ")]
    parts += [_warning("no contract reads it", f"{name}; its records are never trimmed") for name in status.unclaimed]
    return "\n".join(part for part in parts if part)


def format_grid(rows: Iterable[Sequence[str]], *, left: Iterable[int] = (0,), indent: str = "") -> str:
    """Align columns to the right, those in `left` to the left."""
    lines = list(rows)
    widths = [max(len(row[i]) for row in lines) for i in range(len(lines[0]))]
    texts = set(left)

    def cell(row: Sequence[str], i: int) -> str:
        return row[i].ljust(widths[i]) if i in texts else row[i].rjust(widths[i])

    return "\n".join((indent + "  ".join(cell(row, i) for i in range(len(widths)))).rstrip() for row in lines)


def duration(seconds: float | None) -> str:
    """`4s`, `12m`, `3h`, `2d`: in the greatest unit that fits."""
    if seconds is None:
        return _UNKNOWN
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size or (size == 60 and seconds >= 120):
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def ranges_text(ranges: Mapping[int, OffsetRange]) -> str:
    """`0: [0, 10)  1: [4, 9)`."""
    return "  ".join(f"{p}: [{r.start}, {r.end})" for p, r in sorted(ranges.items())) or "no offsets"


def _format_number(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def counted(count: int | None, noun: str) -> str:
    """`1 row`, `1,234 rows`, `? rows`."""
    return f"{_format_number(count)} {noun}{'' if count == 1 else 's'}"


def late_text(table: TableStatus) -> str:
    """What is late in a table. Per partition: the newest records of all partitions together may hide a late one."""
    late = sum(n for topic in table.topics for n in (topic.late or {}).values())
    are = "is" if late == 1 else "are"
    target = duration(table.freshness_promised_seconds)
    return f"{counted(late, 'unread offset')} {are} older than the freshness target of {target}."


def awaited_problems(table: TableStatus) -> list[str]:
    """The problems that a topic does not exist yet: doctor does not count them as failures either."""
    return [t.problem for t in table.topics if t.awaited and t.problem]


def _summary(tables: Sequence[TableStatus]) -> str:
    if not tables:
        return (
            "No tables. The contracts folder has no contract, or only topic patterns, which need Kafka or the catalog."
        )
    rows = [_HEAD]
    for t in tables:
        lines = [line for topic in t.topics for line in topic.partitions]
        rows.append(
            (
                t.table if len(t.table) <= _NAME else "…" + t.table[1 - _NAME :],
                _sum_offsets(lines, "published"),
                _sum_offsets(lines, "end"),
                _format_number(t.lag_records),
                duration(t.freshness_now_seconds),
                f"{duration(t.snapshot.age_seconds)} ago" if t.snapshot else "none",
                str(len(t.open_batches)),
                _format_number(t.quarantined),
                {None: "-", True: "yes", False: "NO"}[t.freshness_kept],
            )
        )
    return format_grid(rows)


def _sum_offsets(lines: Sequence[PartitionStatus], name: str) -> str:
    values = [getattr(line, name) for line in lines]
    known = [v for v in values if v is not None]
    return f"{sum(known):,}" if known else "-" if name == "published" else _UNKNOWN


def _table_details(table: TableStatus) -> str:
    out = [f"{table.table}  ({table.mode}, group {table.group}, owner {table.owner})"]
    if table.exists is False:
        out.append(f"  the table does not exist yet; the first run of DAG {ingest_dag(table.group)} creates it")
    for topic in table.topics:
        out += _topic_lines(topic)
    out += _snapshot_lines(table.snapshot)
    if "records" in table.totals:
        deleted = table.totals.get("deleted records")
        marked = f"; delete files mark {deleted:,} as deleted" if deleted else ""
        out.append(f"  rows        {table.totals['records']:,} in data files{marked}")
    for batch in table.open_batches:
        waits = "planned, not staged" if batch.state == "planned" else "staged, not published"
        out += _wrapped(f"{batch.topic} batch {batch.batch} is {waits}: {ranges_text(batch.ranges)}", "open       ")
    if not table.open_batches:
        out.append("  open        no batch")
    for piece in table.slices:
        branch = f"; kept on branch {piece.branch}" if piece.branch else ""
        at = f" at {utc_text(piece.at)}" if piece.at else ""
        text = f"{piece.topic} slice {piece.number} {piece.state}{at}: {ranges_text(piece.ranges)}{branch}"
        text += f"; {piece.error}" if piece.error else ""
        out += _wrapped(text, "backfill   ")
    out.append(f"  quarantine  {counted(table.quarantined, 'record')}")
    if (found := table.expectations) is not None:
        counts = f"{found.held} passed, {len(found.failed)} failed, {found.not_judged} not evaluated"
        where = f"{found.topic} batch {found.batch} at {utc_text(found.at)}"
        out += _wrapped(f"{counts}: {where}", "expected   ")
        out += [line for failure in found.failed for line in _wrapped(failure, "           ")]
    for done in table.maintenance:
        target = f" of {done.of}" if done.of else ""
        out += _wrapped(f"{done.action}{target} at {utc_text(done.at)}: {done.told}", "maintained ")
    if table.freshness_promised_seconds is not None:
        state = {None: "unknown", True: "on target", False: "LATE: older records are unread"}[table.freshness_kept]
        target, now = duration(table.freshness_promised_seconds), duration(table.freshness_now_seconds)
        out.append(f"  freshness   target {target}, now {now}: {state}")
    return "\n".join(out + _attention_lines(table) + [""])


def record_trace_lines(table: str, found: RecordTrace | None) -> list[str]:
    """Format what became of a record."""
    if found is None:
        return [f"{table} has no row of this key, and no delete of it."]
    facts = (f"  {label:<12}{words}" for label, words in record_trace_facts(found))
    return [record_trace_heading(found), *facts]


def record_trace_heading(found: RecordTrace) -> str:
    """Say which record it is, and where."""
    at = found.record
    return f"{at.topic} partition {at.partition} offset {at.offset}: {found.place}"


def record_trace_facts(found: RecordTrace) -> list[tuple[str, str]]:
    """Return what became of a record, as labels and words."""
    facts = []
    if found.kafka:
        facts.append(("Kafka", f"has offsets {found.kafka.start} to {found.kafka.end - 1} of this partition"))
    if found.batch is not None:
        facts.append(("batch", f"{found.batch}, planned {_when(found.planned_at)} by {found.planned_by}"))
        raw = "" if found.raw else "not "
        facts.append(("staged", f"{_when(found.staged_at)}; the raw record is {raw}in staging"))
    if found.published_at:
        facts.append(("published", f"{_when(found.published_at)} by {found.published_by}"))
        facts.append(("snapshot", f"{found.snapshot_id} of {found.table}"))
    if found.timestamp and found.delay_seconds is not None:
        facts.append(("arrival", _arrival_text(found, found.timestamp, found.delay_seconds)))
    if found.error_class:
        facts.append(("quarantine", f"{found.error_class}, field {found.field or '-'}: {found.error}"))
    elif found.error:
        facts.append(("error", found.error))
    if found.why:
        facts.append(("gap", found.why))
    return facts


def _arrival_text(found: RecordTrace, timestamp: datetime, delay: float) -> str:
    published = "its batch was published" if found.published_at else "it is not published"
    text = f"{published} {duration(delay)} after the record's Kafka timestamp, {utc_text(timestamp)}"
    if found.late is None:
        return f"{text}; the contract has no freshness target"
    return (
        f"{text}: {'late, beyond' if found.late else 'in time, within'} the target of {duration(found.target_seconds)}"
    )


def _when(time: datetime | None) -> str:
    return utc_text(time) if time else "at a time that the ledger lacks"


def table_as_of_text(table: str, asked: datetime, found: TableAsOf | None) -> str:
    """Format a table as readers saw it at a time."""
    if found is None:
        return f"{table} had no snapshot at {utc_text(asked)}, or its snapshot log no longer reaches back that far."
    until = utc_text(found.until) if found.until else "now"
    out = [
        f"{table} at {utc_text(asked)}",
        f"  snapshot    {found.snapshot_id}, current from {utc_text(found.since)} until {until}",
    ]
    for topic, through in sorted(found.through.items()):
        offsets = "  ".join(f"{p}: {end}" for p, end in sorted(through.next_offsets.items()))
        out += _wrapped(f"{topic}: batch {through.seq}, end offsets (exclusive) {offsets}", "offsets    ")
    if not found.through:
        out.append("  offsets     none")
    counts = ", ".join(f"{value:,} {name}" for name, value in found.totals.items())
    return "\n".join([*out, f"  totals      {counts or 'unknown'}"])


def utc_text(at: datetime) -> str:
    """Format a time in UTC, to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _topic_lines(topic: TopicStatus) -> list[str]:
    behind = f", {duration(topic.lag_seconds)} behind" if topic.lag_seconds is not None else ""
    published = f"batch {topic.batch} published" if topic.batch else "nothing published"
    staged = f", batch {topic.staged_batch} staged" if (topic.staged_batch or 0) > (topic.batch or 0) else ""
    out = [f"  topic       {topic.topic}: {published}{staged}; lag {counted(topic.lag_records, 'offset')}{behind}"]
    if topic.partitions:
        rows = [["PARTITION", "LOG START", "STAGED", "COMMITTED", "LOG END", "LAG"]]
        rows += [
            [str(p.partition), *map(_format_number, (p.low, p.staged, p.published, p.end, p.lag))]
            for p in topic.partitions
        ]
        out.append(format_grid(rows, left=(), indent=" " * 14))
    for gap in topic.given_up:
        by = f"by {gap.who or 'unknown'} at {gap.at.astimezone(UTC):%Y-%m-%d %H:%M} UTC: {gap.why or 'no reason given'}"
        out += _wrapped(f"{gap.partition}: [{gap.offsets.start}, {gap.offsets.end}) {by}", "skipped    ")
    clocks = [f"{n} {utc_text(c)}" for n, c in (("Kafka", topic.stream_clock), ("table", topic.table_clock)) if c]
    if clocks:
        out.append(f"              newest record: {', '.join(clocks)}")
    return out


def _snapshot_lines(snapshot: SnapshotStatus | None) -> list[str]:
    if snapshot is None:
        return ["  commit      none with offsets"]
    batch = f"{snapshot.topic} batch {snapshot.batch}, " if snapshot.batch else ""
    rows = f"{counted(snapshot.records, 'row')} added, {_format_number(snapshot.removed)} removed"
    text = f"snapshot {snapshot.snapshot_id}, {duration(snapshot.age_seconds)} ago: {batch}{rows}"
    return _wrapped(text, "commit     ") + (
        _wrapped(ranges_text(snapshot.ranges), "           ") if snapshot.batch else []
    )


def _attention_lines(table: TableStatus, prefix: str = "") -> list[str]:
    awaited = awaited_problems(table)
    out = [_warning(prefix + ("new" if each in awaited else "stopped"), each) for each in table.problems]
    out += [_warning(f"{prefix}at risk", warning) for warning in table.warnings]
    out += [_warning(f"{prefix}schema", table.schema)] if table.schema else []
    resolved = [] if prefix or table.open_errors or not table.last_error else [table.last_error]
    for last in (*table.open_errors, *resolved):
        state = f"{prefix}{last.state}" + ("" if last.open else ", resolved since")
        where = f"{last.topic} batch {last.batch} at {utc_text(last.at)}"
        out.append(_warning(state, f"{where}: {last.error or 'no reason given'}"))
    if prefix and table.freshness_kept is False:
        out.append(_warning(f"{prefix}late", late_text(table)))
    return out


def _warning(label: str, text: str) -> str:
    return textwrap.fill(f"! {label}: {text}", WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _wrapped(text: str, label: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"  {label} ", subsequent_indent=" " * (len(label) + 3), break_on_hyphens=False
    )
