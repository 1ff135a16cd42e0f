"""Write the ledger anew from the staging and typed tables' snapshots.

The tables win: what they tell and the ledger lacks is added, what they tell otherwise is corrected. What no table can
tell is kept: what a run measured, batches that were planned and not staged, batches whose snapshots have expired, and
why something was refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from datetime import datetime

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue

from sluice.batch import STEP
from sluice.contract.folder import Contracts
from sluice.errors import CatalogUnavailableError, LedgerError
from sluice.iceberg import own_table, table_names, tables
from sluice.ledger import slices
from sluice.ledger.accepted_gaps import untold
from sluice.ledger.from_snapshots import BatchKey, Told, by_batch, typed_tables
from sluice.ledger.offsets_table import SCHEMA, SPEC, Ledger, Row, State, batches, plan_rows, staged_rows

log = logging.getLogger(__name__)

ATTEMPTS = 5
_OF_BATCHES = (State.PLANNED, State.STAGED, State.PUBLISHED, State.SETTLED)


def rebuild(contracts: Contracts, catalog: Catalog, *, run_id: str) -> list[str]:
    """Replace the ledger's content.

    Returns:
        What was done, in sentences.

    Raises:
        CatalogUnavailableError: the ledger was written to again and again meanwhile.
        LedgerError: a table's snapshots contradict each other.
    """
    for _ in range(ATTEMPTS):
        ledger, old, notes = _old(catalog)
        told, reached, unknown = by_batch(contracts, catalog)
        kept, dropped = _keep(old, told)
        rows = _rows(contracts, told, reached, old, run_id)
        rows += [row for each in told.values() if each.staged for row in untold(each.batch, kept)]
        for name, found in typed_tables(contracts, catalog, []):
            rows += slices.rebuilt(name, found, kept)
        rows = sorted([*rows, *kept], key=_order)
        try:
            _replace(catalog, ledger, rows, run_id)
        except CommitFailedException as error:
            log.info("the ledger moved on meanwhile, reading again: %s", error)
            continue
        return [
            *notes,
            *_report(told, kept, dropped, unknown),
            f"The ledger has {len(rows)} rows now; it had {len(old)}.",
        ]
    raise CatalogUnavailableError(
        "The ledger was written to each time before it could be replaced.",
        way_out="Try again when no run is under way.",
    )


def _old(catalog: Catalog) -> tuple[Ledger | None, list[Row], list[str]]:
    """The ledger as it is, its rows as far as they can be read, and what to say of it."""
    try:
        ledger = Ledger(catalog, own_table.widened(catalog.load_table(table_names.LEDGER), SCHEMA))
    except (NoSuchTableError, NoSuchNamespaceError):
        return None, [], ["There was no ledger."]
    except FileNotFoundError as error:
        catalog.drop_table(table_names.LEDGER)
        return None, [], [f"The ledger's metadata is gone ({error}); its entry in the catalog was dropped."]
    if ledger.table.metadata.current_snapshot_id is None:
        return ledger, [], ["The ledger was empty."]
    try:
        records = ledger.table.scan().to_arrow().to_pylist()
        rows = [Row(**{**r, "snapshots": dict(r["snapshots"] or []), "state": State(r["state"])}) for r in records]
    except (FileNotFoundError, TypeError, KeyError, ValueError, pa.ArrowInvalid) as error:
        return ledger, [], [f"The old ledger can't be read ({type(error).__name__}: {error}); nothing of it was kept."]
    return ledger, rows, []


def _rows(
    contracts: Contracts,
    told: Mapping[BatchKey, Told],
    reached: Mapping[str, Mapping[str, int]],
    old: Iterable[Row],
    who: str,
) -> list[Row]:
    """The rows of all batches that the tables tell of: the old ones where they are sound, new ones where they lack."""
    before: dict[BatchKey, list[Row]] = {}
    for row in sorted(old, key=_order):
        if row.batch_seq is not None and row.state in _OF_BATCHES:
            before.setdefault((row.topic, row.batch_seq), []).append(row)
    rows: list[Row] = []
    for (topic, seq), each in sorted(told.items()):
        feeds = contracts.topics[topic].tables if topic in contracts.topics else ()
        settled = bool(feeds) and all(reached.get(name, {}).get(topic, 0) >= seq for name in feeds)
        lost = {name for name, through in reached.items() if through.get(topic, 0) < seq}
        rows += _merged(each, _fresh(each, who, settled=settled), before.get((topic, seq), ()), lost)
    return rows


def _fresh(each: Told, who: str, *, settled: bool) -> list[Row]:
    """A batch as nothing but the tables tell of it."""
    batch, rows = each.batch, []
    places = {name: s.snapshot_id for name, s in each.published.items()}
    if each.staged:
        place = {".".join(table_names.staging(batch.topic)): each.staged.snapshot_id}
        rows += staged_rows(
            batch, place, at=each.staged.at, records=each.staged.records, run_id=each.staged.run_id, who=who
        )
        places |= place
    for name, brought in sorted(each.published.items()):
        rows.append(
            Row(
                batch.topic,
                State.PUBLISHED,
                batch.topic_id,
                batch.seq,
                table=name,
                snapshots={name: brought.snapshot_id},
                records=brought.records,
                who=who,
                run_id=brought.run_id,
                at=brought.at,
            )
        )
    if settled:
        last = max(s.at for s in (each.staged, *each.published.values()) if s)
        rows += [replace(row, at=last) for row in plan_rows(batch, State.SETTLED, places)]
    return rows


def _merged(each: Told, fresh: Iterable[Row], old: Iterable[Row], lost: set[str]) -> list[Row]:
    """The batch's rows: of the old ones those that no snapshot contradicts, of the fresh ones those that are missing.

    Args:
        lost: the tables that do not hold the batch, by their own cursor.
    """
    ranges = {(r.partition, r.start_offset, r.end_offset) for r in plan_rows(each.batch)}
    by_key: dict[tuple[object, ...], list[Row]] = {}
    for row in old:
        spread = row.state == State.STAGED and row.partition is not None  # as rebuilds once wrote it: the ranges alone
        sound = row.partition is None or (row.partition, row.start_offset, row.end_offset) in ranges
        if row.topic_id in (None, each.batch.topic_id) and sound and not (spread and each.staged):
            by_key.setdefault((row.state, row.partition, row.table), []).append(row)
    out: list[Row] = []
    for row in fresh:
        known = by_key.pop((row.state, row.partition, row.table), [])
        brought = each.staged if row.state == State.STAGED else each.published.get(row.table or "")
        out += _standing(row, known, brought.committed if brought else None) if known else [row]
    for rows in by_key.values():  # of what no snapshot tells any more
        out += [r for r in rows if r.state != State.SETTLED or not lost & set(r.snapshots or ())]
    return out


def _standing(fresh: Row, old: list[Row], committed: datetime | None) -> list[Row]:
    """The old rows of what a fresh one tells, and the fresh one where none of them is about the same commit.

    Args:
        old: oldest first.
        committed: when that commit was made; None for rows of ranges, which are about none.
    """
    if committed is None:
        return [_corrected(row, fresh) for row in old]
    places = (fresh.snapshots or {}).items()
    if any(places <= (row.snapshots or {}).items() for row in old):
        return [_corrected(row, fresh) if places <= (row.snapshots or {}).items() else row for row in old]
    # What was written before the commit is about an earlier one, which was rolled back since: that is history.
    history = [row for row in old if row.at < committed]
    return [*history, _corrected(old[-1], fresh) if len(history) < len(old) else fresh]


def _corrected(old: Row, fresh: Row) -> Row:
    """An old row with what the snapshot tells. How many records were published it does not: some were rejected."""
    snapshots = {**(old.snapshots or {}), **(fresh.snapshots or {})} or None
    records = fresh.records if fresh.state == State.STAGED or old.records is None else old.records
    return replace(old, topic_id=fresh.topic_id, snapshots=snapshots, records=records)


def _order(row: Row) -> tuple[object, ...]:
    return row.at, row.topic, row.batch_seq or 0, list(State).index(row.state), row.partition or 0


def _keep(old: Iterable[Row], told: Mapping[BatchKey, Told]) -> tuple[list[Row], list[str]]:
    """The old rows of what no table tells; and the batches, not kept, about which the ledger contradicts itself."""
    by_batch: dict[BatchKey, list[Row]] = {}
    kept: list[Row] = []
    for row in old:
        if row.state in (State.BLOCKED, State.FAILED, State.RETRIED) or row.batch_seq is None:
            kept.append(row)
        elif (row.topic, row.batch_seq) not in told:
            by_batch.setdefault((row.topic, row.batch_seq), []).append(row)
    dropped = []
    for (topic, seq), rows in sorted(by_batch.items()):
        try:
            batches(rows)
            kept += rows
        except LedgerError:
            dropped.append(f"{topic} batch {seq}")
    return kept, dropped


def _replace(catalog: Catalog, ledger: Ledger | None, rows: list[Row], run_id: str) -> None:
    """Write the rows over what the ledger holds, in one commit that is refused when somebody else's came first."""
    fresh = ledger or Ledger(catalog)
    if ledger is None and not rows:
        return
    # By names and types: the catalog gave the fields ids of its own.
    if not fresh.table.schema().as_arrow().equals(SCHEMA.as_arrow()):
        # A ledger of another shape can't take the rows; everything in it that matters has been read.
        catalog.drop_table(table_names.LEDGER)
        fresh = Ledger(catalog, tables.ensure(catalog, table_names.LEDGER, SCHEMA, SPEC))
    records = [{**asdict(r), "snapshots": sorted((r.snapshots or {}).items())} for r in rows]
    records = [{**r, "run_id": r["run_id"] or run_id} for r in records]
    data = pa.Table.from_pylist(records, schema=fresh.table.schema().as_arrow())
    table = fresh.table
    own_table.commit_once(table)
    summary = {"sluice.run-id": run_id, STEP: "rebuild"}
    try:
        if table.metadata.current_snapshot_id is None:
            table.append(data, snapshot_properties=summary)
        else:
            table.overwrite(data, overwrite_filter=AlwaysTrue(), snapshot_properties=summary)
    except FileNotFoundError:
        # Its own manifests are gone, so that nothing can be laid over them.
        catalog.drop_table(table_names.LEDGER)
        tables.ensure(catalog, table_names.LEDGER, SCHEMA, SPEC).append(data, snapshot_properties=summary)


def _report(told: Mapping[BatchKey, Told], kept: list[Row], dropped: list[str], unknown: list[str]) -> list[str]:
    lines = []
    for topic in sorted({t for t, _ in told}):
        mine = [each for (t, _), each in told.items() if t == topic]
        staged = sum(1 for each in mine if each.staged)
        by_table: dict[str, int] = {}
        for each in mine:
            for name in each.published:
                by_table[name] = by_table.get(name, 0) + 1
        published = ", ".join(f"{n} in {name}" for name, n in sorted(by_table.items())) or "none"
        lines.append(f"{topic}: {staged} batches told by staging's snapshots; published: {published}.")
    only = sorted({(r.topic, r.batch_seq) for r in kept if r.partition is not None and r.batch_seq is not None})
    if only:
        lines.append("Kept, because only the ledger knows: " + ", ".join(f"{t} batch {s}" for t, s in only) + ".")
    refusals = sum(1 for r in kept if r.state in (State.BLOCKED, State.FAILED))
    if refusals:
        lines.append(f"Kept what the ledger tells of refusals (blocked or failed): {refusals}.")
    if dropped:
        lines.append("Dropped, because the ledger contradicted itself and no table tells: " + ", ".join(dropped) + ".")
    return lines + [f"Could not tell: {line}" for line in unknown]
