"""Settle: read the snapshots back, close what is done in the ledger, and say per table what the run came to.

Runs on the Airflow worker, without a JVM. Whatever the Spark application reported, the tables decide.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from sluice.batch import PUBLISHED_THROUGH, RUN_ID, STEP, TOPIC, Batch, Through, batches_of
from sluice.contract.folder import Group
from sluice.errors import CursorUnknownError, SluiceError, TableDamagedError
from sluice.iceberg import availability, cursor, refs, snapshots, table_names, tables
from sluice.ingest import outcome as ingest_outcome
from sluice.ingest.outcome import ENDED, REPORTED, Outcome
from sluice.ledger import offsets_table as ledgers
from sluice.ledger import quality_table, slices, unfinished_rollback
from sluice.ledger.accepted_gaps import with_gaps
from sluice.ledger.offsets_table import Ledger, Row, State

log = logging.getLogger(__name__)


def settle(group: Group, catalog: Catalog, promised: Mapping[str, Any], *, run_id: str) -> dict[str, dict[str, Any]]:
    """Close the batches that all their tables hold, and tell each table's outcome.

    Args:
        promised: what `expected` made of the run's plan.

    Returns:
        Per table the fields of `Outcome`.
    """
    ledger = Ledger(catalog)
    through: dict[str, Mapping[str, Through]] = {}
    # Of each table what is needed later, and not the table: the metadata of 1,440 snapshots takes 10 MB here.
    places: dict[str, dict[str, dict[int, int]]] = {}
    floor: dict[str, int] = {}
    for seqs_by_topic in promised["tables"].values():
        for topic, seqs in seqs_by_topic.items():
            if seqs:
                floor[topic] = min(floor.get(topic, seqs[0] - 1), seqs[0] - 1)
    floor, rows = _from_the_last_closed(ledger, floor)
    words = ledger.gaps(floor) if floor else []
    torn: dict[str, SluiceError] = {}  # planning has told of these
    known = {at: with_gaps(batch, words) for at, batch in ledgers.batches(rows, torn).items()}
    outcomes: dict[str, Outcome] = {}
    untold: list[Row] = []
    # An application writes its rows once, at its end: with any of them, it came that far.
    reported = any(r.run_id == run_id and r.state in REPORTED for r in rows)
    for contract in group.contracts:
        name = contract.table
        outcome = outcomes[name] = Outcome(name, warnings=promised["warnings"].get(name, []))
        try:
            table = availability.alone(catalog, partial(tables.load, catalog, table_names.typed(contract)), table=name)
            unfinished_rollback.catch_up(catalog, ledger, contract, table)
            through[name] = cursor.published(table, partial(ledger.remembered, name))
        except SluiceError as error:
            outcome.state, outcome.error = "stopped", str(error)
            continue
        mine = [r for r in rows if r.table == name]
        ingest_outcome._judge(
            outcome, promised, through[name], known, [r for r in mine if r.run_id == run_id], reported
        )
        untold += _untold(outcome, promised["tables"].get(name, {}), floor, table, mine, run_id)
        reached = {t: x.seq for t, x in through[name].items()}
        _tidy(catalog, ledger, table_names.typed(contract), table, reached, contract.topics)
        places[name] = {topic: _snapshots(table, topic, floor[topic]) for topic in contract.topics if topic in floor}
        outcome.snapshot_id = _durable(table)
        outcome.location = table.location() if table else None
        if contract.expectations:
            outcome.expectations = quality_table.summary(quality_table.of_run(catalog, name, run_id))
    for name in promised["stops"].keys() - outcomes.keys():  # a template: it stands for tables that can't be named
        outcomes[name] = Outcome(name, "stopped", error=promised["stops"][name])
    done = _settled(_feeds(group, promised), catalog, ledger, floor, known, rows, through, places)
    ledger.append([*untold, *done], run_id=run_id)
    return {name: asdict(outcome) | {"red": outcome.red} for name, outcome in outcomes.items()}


def _durable(table: Table | None) -> int | None:
    """The last snapshot that carries offsets; None where there is none left, and only the ledger could tell."""
    try:
        carrier = cursor.carrier(table, PUBLISHED_THROUGH) if table else None
    except CursorUnknownError:
        return None
    return carrier.snapshot_id if carrier else None


def _from_the_last_closed(ledger: Ledger, floor: Mapping[str, int]) -> tuple[dict[str, int], list[Row]]:
    """Per topic the batch after which there is something to close, and the ledger's rows of what comes after it.

    Args:
        floor: the batch before the first that this run promised. Where nobody closed it, an earlier run did not come to
            its settle, and what that left open is closed as well.
    """
    rows = ledger.rows({topic: max(seq - 1, 0) for topic, seq in floor.items()})
    told = {(r.topic, r.batch_seq) for r in rows}
    closed = {(r.topic, r.batch_seq) for r in rows if r.state == State.SETTLED}
    left = {t: ledger.last_settled(t, seq) for t, seq in floor.items() if (t, seq) in told - closed}
    found = {**floor, **left}
    rows = [r for r in rows if r.topic not in left] + ledger.rows(left)
    return found, [r for r in rows if r.batch_seq and r.batch_seq > found[r.topic]]


def _feeds(group: Group, promised: Mapping[str, Any]) -> dict[str, set[str]]:
    """Per topic the tables that must hold a batch before it is closed.

    Those that were promised are among them, though their contract can't be read any more, or went to another group.
    """
    feeds: dict[str, set[str]] = {}
    for contract in group.contracts:
        for topic in contract.topics:
            feeds.setdefault(topic, set()).add(contract.table)
    for name, topics in promised["tables"].items():
        for topic in topics:
            feeds.setdefault(topic, set()).add(name)
    return feeds


def _untold(
    outcome: Outcome,
    promised: Mapping[str, list[int]],
    floor: Mapping[str, int],
    table: Table | None,
    mine: list[Row],
    run_id: str,
) -> list[Row]:
    """What an application that was killed left untold: the batches that landed all the same, and that it failed.

    Args:
        floor: per topic the last batch that was closed.
        mine: the ledger's rows of the table.
    """
    out: list[Row] = []
    told = {(r.topic, r.batch_seq, (r.snapshots or {}).get(r.table or "")) for r in mine if r.state == State.PUBLISHED}
    for topic, seqs in promised.items():
        # Those of earlier runs as well that nobody told of; what comes later is another run's to tell.
        found = _snapshots(table, topic, floor[topic]) if seqs and table else {}
        for seq, snapshot_id in sorted(found.items()):
            snapshot = table.snapshot_by_id(snapshot_id) if table else None
            is_told = (topic, seq, snapshot_id) in told or (topic, seq, None) in told
            if table and snapshot and floor[topic] < seq <= seqs[-1] and not is_told:
                place, at = {outcome.table: snapshot_id}, snapshots.landed_at(table.metadata, snapshot)
                whose = snapshots.summary(snapshot).get(RUN_ID)
                about = {"table": outcome.table, "snapshots": place, "run_id": whose, "at": at}
                out.append(Row(topic, State.PUBLISHED, batch_seq=seq, **about))  # type: ignore[arg-type]
    if outcome.error == ENDED:
        topic, seq = next((t, seqs[0]) for t, seqs in promised.items() if seqs and t not in outcome.batches)
        # What was refused before is so still, and says more.
        known = [r for r in mine if (r.topic, r.batch_seq) == (topic, seq) and r.state in (State.BLOCKED, State.FAILED)]
        if not any(r.state == State.BLOCKED or r.run_id == run_id for r in known):
            out.append(Row(topic, State.FAILED, batch_seq=seq, table=outcome.table, error=ENDED))
    return out


def _settled(
    feeds: Mapping[str, set[str]],
    catalog: Catalog,
    ledger: Ledger,
    floor: Mapping[str, int],
    known: Mapping[tuple[str, int], Batch],
    rows: list[Row],
    through: Mapping[str, Mapping[str, Through]],
    landed: Mapping[str, Mapping[str, Mapping[int, int]]],
) -> list[Row]:
    """The rows that close each batch which every table of its topic holds; anew where it stands elsewhere by now.

    Args:
        landed: per table and topic, of `_snapshots`.
    """
    closed = {(r.topic, r.batch_seq): (r.snapshots or {}).items() for r in rows if r.state == State.SETTLED}
    out: list[Row] = []
    for topic, after in floor.items():
        reached = min((through[n][topic].seq if topic in through.get(n, {}) else 0) for n in feeds[topic])
        places = {n: landed.get(n, {}).get(topic, {}) for n in sorted(feeds[topic])}
        try:
            staging = tables.load(catalog, table_names.staging(topic))
        except TableDamagedError:  # planning has told of it
            continue
        staged = {seq: s.snapshot_id for seq, (_, s) in cursor.staged_batches(staging, after).items()}
        places[".".join(table_names.staging(topic))] = staged
        if staging is not None and staged:
            _tidy(catalog, ledger, table_names.staging(topic), staging, {topic: max(staged)}, [topic])
        for (t, seq), batch in sorted(known.items()):
            snapshots = {n: found[seq] for n, found in places.items() if seq in found}
            is_closed = (t, seq) in closed and snapshots.items() <= closed[t, seq]
            if t == topic and seq <= reached and not is_closed:
                out += ledgers.plan_rows(batch, State.SETTLED, snapshots)
    return out


def _snapshots(table: Table | None, topic: str, after: int) -> dict[int, int]:
    """Batch number → the snapshot of main that published it."""
    found: dict[int, int] = {}
    if table is not None:
        for snapshot in snapshots.ancestors(table.metadata):
            properties = snapshots.summary(snapshot)
            # A replay applies an old batch once more; it says nothing of where the table stands.
            if properties.get(TOPIC) == topic and properties.get(STEP) == "publish":
                brought = batches_of(properties)
                if brought[-1].seq <= after:
                    break
                for batch in brought:
                    found.setdefault(batch.seq, snapshot.snapshot_id)
    return found


def _tidy(
    catalog: Catalog,
    ledger: Ledger,
    identifier: Identifier,
    table: Table | None,
    reached: Mapping[str, int],
    topics: Sequence[str],
) -> None:
    """Drop the branches of finished batches and of abandoned slices, and put the tag where main's offsets are."""
    if table is None:
        return
    stale = {name for name in table.metadata.refs if refs.is_finished(name, reached)}
    stale |= slices.abandoned(table, ledger, topics, datetime.now(UTC))
    try:
        if stale:
            refs.drop_branches(catalog, identifier, stale)
        refs.heal_tag(catalog, table)
    except CommitFailedException as error:  # somebody else is at work on the table; the next run tidies
        log.info("%s: left branches and tag for the next run: %s", ".".join(identifier), error)
