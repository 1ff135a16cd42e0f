"""Rebuilds the ledger from the snapshots of staging and typed tables. In: contracts, the catalog. Out: all its rows.

Where snapshots and ledger differ, snapshots win. Rows about what no snapshot records stay: measurements, batches that
are planned and not staged, batches whose snapshots have expired, accepted gaps, and errors.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue

from sluice.batch import STEP
from sluice.contract.folder import Contracts
from sluice.errors import CatalogUnavailableError, LedgerError
from sluice.iceberg import compat, own_table, table_names
from sluice.ledger import slices
from sluice.ledger.accepted_gaps import missing_gap_rows
from sluice.ledger.ledger_rows import (
    SCHEMA,
    BatchKey,
    LedgerRow,
    LedgerState,
    batches_from_rows,
    plan_rows,
    row_from_record,
    rows_to_arrow,
)
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.recorded_batches import (
    RecoveredBatch,
    RecoveredState,
    load_typed_tables,
    read_batches,
    staged_rows,
)

log = logging.getLogger(__name__)

ATTEMPTS = 5
_BATCH_STATES = (LedgerState.PLANNED, LedgerState.STAGED, LedgerState.PUBLISHED, LedgerState.SETTLED)


def rebuild(contracts: Contracts, catalog: Catalog, *, run_id: str) -> list[str]:
    """Replace the ledger's content.

    Returns:
        What was done, one sentence each.

    Raises:
        CatalogUnavailableError: another writer changed the ledger during each attempt.
        LedgerError: the snapshots of two tables contradict each other.
    """
    for _ in range(ATTEMPTS):
        old = _read_old_ledger(catalog)
        recovered = read_batches(contracts, catalog)
        kept, dropped = _keep_unrecorded_rows(old.rows, recovered)
        rows = _merge_with_snapshots(contracts, recovered, old.rows, run_id)
        rows += [
            row for each in recovered.batches.values() if each.staged for row in missing_gap_rows(each.batch, kept)
        ]
        for name, table in load_typed_tables(contracts, catalog, []):
            rows += slices.recover_slice_rows(name, table, kept)
        rows = sorted([*rows, *kept], key=_order)
        try:
            _replace(catalog, old.ledger, rows, run_id)
        except CommitFailedException as error:
            log.info("the ledger changed during the rebuild, reading it again: %s", error)
            continue
        return [
            *old.notes,
            *_report(recovered, kept, dropped),
            f"The ledger has {len(rows)} rows now; it had {len(old.rows)}.",
        ]
    raise CatalogUnavailableError(
        f"Other writers changed the ledger during each of {ATTEMPTS} attempts.",
        next_step="Try again while no run is active.",
    )


class _OldLedger(NamedTuple):
    """The ledger before the rebuild: None if it does not exist; the rows that can be read; notes for the report."""

    ledger: Ledger | None
    rows: list[LedgerRow]
    notes: list[str]


def _read_old_ledger(catalog: Catalog) -> _OldLedger:
    try:
        ledger = Ledger(catalog, own_table.add_missing_columns(catalog.load_table(table_names.LEDGER), SCHEMA))
    except (NoSuchTableError, NoSuchNamespaceError):
        return _OldLedger(None, [], ["There was no ledger."])
    except FileNotFoundError as error:
        catalog.drop_table(table_names.LEDGER)
        note = f"The ledger's metadata file is missing ({error}); its entry in the catalog was dropped."
        return _OldLedger(None, [], [note])
    if ledger.table.metadata.current_snapshot_id is None:
        return _OldLedger(ledger, [], ["The ledger was empty."])
    try:
        rows = [row_from_record(record) for record in ledger.table.scan().to_arrow().to_pylist()]
    except (FileNotFoundError, TypeError, KeyError, ValueError, pa.ArrowInvalid) as error:
        note = f"The old ledger can't be read ({type(error).__name__}: {error}); none of its rows were kept."
        return _OldLedger(ledger, [], [note])
    return _OldLedger(ledger, rows, [])


def _merge_with_snapshots(
    contracts: Contracts, recovered: RecoveredState, old: Iterable[LedgerRow], who: str
) -> list[LedgerRow]:
    """The rows of all batches that snapshots record: old rows that agree with them, new rows for what is missing."""
    old_by_batch: dict[BatchKey, list[LedgerRow]] = {}
    for row in sorted(old, key=_order):
        if row.batch_seq is not None and row.state in _BATCH_STATES:
            old_by_batch.setdefault((row.topic, row.batch_seq), []).append(row)
    rows: list[LedgerRow] = []
    for (topic, seq), batch in sorted(recovered.batches.items()):
        tables_of_topic = contracts.topics[topic].tables if topic in contracts.topics else ()
        is_settled = bool(tables_of_topic) and all(
            recovered.published.get(name, {}).get(topic, 0) >= seq for name in tables_of_topic
        )
        without_batch = {name for name, published in recovered.published.items() if published.get(topic, 0) < seq}
        fresh = _rows_from_snapshots(batch, who, is_settled=is_settled)
        rows += _merge_batch(batch, fresh, old_by_batch.get((topic, seq), ()), without_batch)
    return rows


def _rows_from_snapshots(recovered: RecoveredBatch, who: str, *, is_settled: bool) -> list[LedgerRow]:
    """A batch's rows as its snapshots alone give them."""
    batch, rows = recovered.batch, list[LedgerRow]()
    held_by = {name: snapshot.snapshot_id for name, snapshot in recovered.published.items()}
    if recovered.staged:
        staging = ".".join(table_names.staging(batch.topic))
        rows += staged_rows(batch, staging, recovered.staged, who=who)
        held_by[staging] = recovered.staged.snapshot_id
    for name, snapshot in sorted(recovered.published.items()):
        rows.append(
            LedgerRow(
                batch.topic,
                LedgerState.PUBLISHED,
                batch.topic_id,
                batch.seq,
                table=name,
                snapshots={name: snapshot.snapshot_id},
                records=snapshot.records,
                who=who,
                run_id=snapshot.run_id,
                at=snapshot.at,
            )
        )
    if is_settled:
        settled_at = max(s.at for s in (recovered.staged, *recovered.published.values()) if s)
        rows += [replace(row, at=settled_at) for row in plan_rows(batch, LedgerState.SETTLED, held_by)]
    return rows


def _merge_batch(
    recovered: RecoveredBatch, fresh: Iterable[LedgerRow], old: Iterable[LedgerRow], without_batch: set[str]
) -> list[LedgerRow]:
    """One batch's rows: old rows that no snapshot contradicts, and fresh rows without an old one.

    Args:
        recovered: the batch.
        fresh: the rows that its snapshots give.
        old: the ledger's rows of the batch, oldest first.
        without_batch: the tables that do not hold the batch, by their cursor.
    """
    ranges = {(r.partition, r.start_offset, r.end_offset) for r in plan_rows(recovered.batch)}
    by_key: dict[tuple[object, ...], list[LedgerRow]] = {}
    for row in old:
        # Rebuilds by early versions wrote `staged` rows per partition, with the ranges alone.
        per_partition = row.state == LedgerState.STAGED and row.partition is not None
        has_same_range = row.partition is None or (row.partition, row.start_offset, row.end_offset) in ranges
        is_same_topic = row.topic_id in (None, recovered.batch.topic_id)
        if is_same_topic and has_same_range and not (per_partition and recovered.staged):
            by_key.setdefault((row.state, row.partition, row.table), []).append(row)
    merged: list[LedgerRow] = []
    for row in fresh:
        known = by_key.pop((row.state, row.partition, row.table), [])
        snapshot = recovered.staged if row.state == LedgerState.STAGED else recovered.published.get(row.table or "")
        merged += _merge_row(row, known, snapshot.committed if snapshot else None) if known else [row]
    for rows in by_key.values():  # no snapshot records these any more
        merged += [r for r in rows if r.state != LedgerState.SETTLED or not without_batch & set(r.snapshots or ())]
    return merged


def _merge_row(fresh: LedgerRow, old: list[LedgerRow], committed: datetime | None) -> list[LedgerRow]:
    """The old rows that correspond to a fresh one; and the fresh one if none of them is about the same commit.

    Args:
        fresh: a row that a snapshot gives.
        old: rows of the same state, partition and table, oldest first.
        committed: when the snapshot was committed; None for rows of ranges.
    """
    if committed is None:
        return [_correct(row, fresh) for row in old]
    held_by = (fresh.snapshots or {}).items()
    if any(held_by <= (row.snapshots or {}).items() for row in old):
        return [_correct(row, fresh) if held_by <= (row.snapshots or {}).items() else row for row in old]
    # Rows from before the commit are about an earlier commit, which was rolled back: they stay as history.
    history = [row for row in old if row.at < committed]
    return [*history, _correct(old[-1], fresh) if len(history) < len(old) else fresh]


def _correct(old: LedgerRow, fresh: LedgerRow) -> LedgerRow:
    """An old row with the snapshot's figures; published records stay: a snapshot does not count quarantined ones."""
    snapshots = {**(old.snapshots or {}), **(fresh.snapshots or {})} or None
    records = fresh.records if fresh.state == LedgerState.STAGED or old.records is None else old.records
    return replace(old, topic_id=fresh.topic_id, snapshots=snapshots, records=records)


def _order(row: LedgerRow) -> tuple[object, ...]:
    return row.at, row.topic, row.batch_seq or 0, list(LedgerState).index(row.state), row.partition or 0


def _keep_unrecorded_rows(old: Iterable[LedgerRow], recovered: RecoveredState) -> tuple[list[LedgerRow], list[str]]:
    """The old rows that no snapshot can give; and the names of batches that are dropped for contradictory rows."""
    by_batch: dict[BatchKey, list[LedgerRow]] = {}
    kept: list[LedgerRow] = []
    for row in old:
        is_error = row.state in (LedgerState.BLOCKED, LedgerState.FAILED, LedgerState.RETRIED)
        if is_error or row.batch_seq is None:
            kept.append(row)
        elif (row.topic, row.batch_seq) not in recovered.batches:
            by_batch.setdefault((row.topic, row.batch_seq), []).append(row)
    dropped = []
    for (topic, seq), rows in sorted(by_batch.items()):
        try:
            batches_from_rows(rows)
            kept += rows
        except LedgerError:
            dropped.append(f"{topic} batch {seq}")
    return kept, dropped


def _replace(catalog: Catalog, ledger: Ledger | None, rows: list[LedgerRow], run_id: str) -> None:
    """Overwrite the ledger with these rows in one commit, if nobody else changed it.

    Raises:
        CommitFailedException: another writer came first.
    """
    is_new = ledger is None
    ledger = ledger or Ledger(catalog)
    if is_new and not rows:
        return
    # Compared in Arrow, by names and types: the catalog assigns field ids of its own.
    if not ledger.table.schema().as_arrow().equals(SCHEMA.as_arrow()):
        # A table with another schema cannot take the rows; its own rows were read before.
        catalog.drop_table(table_names.LEDGER)
        ledger = Ledger(catalog)
    data = rows_to_arrow(rows, ledger.table.schema().as_arrow(), run_id)
    table = compat.without_commit_retries(ledger.table)
    summary = {"sluice.run-id": run_id, STEP: "rebuild"}
    try:
        if table.metadata.current_snapshot_id is None:
            table.append(data, snapshot_properties=summary)
        else:
            table.overwrite(data, overwrite_filter=AlwaysTrue(), snapshot_properties=summary)
    except FileNotFoundError:
        # The ledger's manifests are missing, so its rows cannot be overwritten.
        catalog.drop_table(table_names.LEDGER)
        compat.without_commit_retries(Ledger(catalog).table).append(data, snapshot_properties=summary)


def _report(recovered: RecoveredState, kept: list[LedgerRow], dropped: list[str]) -> list[str]:
    lines = []
    for topic in sorted({topic for topic, _ in recovered.batches}):
        batches = [batch for (name, _), batch in recovered.batches.items() if name == topic]
        staged = sum(1 for batch in batches if batch.staged)
        by_table: dict[str, int] = {}
        for batch in batches:
            for name in batch.published:
                by_table[name] = by_table.get(name, 0) + 1
        published = ", ".join(f"{count} in {name}" for name, count in sorted(by_table.items())) or "none"
        lines.append(f"{topic}: {staged} batches in staging's snapshots; published: {published}.")
    only = sorted({(r.topic, r.batch_seq) for r in kept if r.partition is not None and r.batch_seq is not None})
    if only:
        lines.append("Kept, because only the ledger has them: " + ", ".join(f"{t} batch {s}" for t, s in only) + ".")
    errors = sum(1 for r in kept if r.state in (LedgerState.BLOCKED, LedgerState.FAILED))
    if errors:
        lines.append(f"Kept rows of blocked or failed steps: {errors}.")
    if dropped:
        lines.append(
            "Dropped, because their rows contradict each other and no snapshot has them: " + ", ".join(dropped) + "."
        )
    return lines + [f"Could not be read: {problem}" for problem in recovered.problems]
