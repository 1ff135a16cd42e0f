"""Settle: close finished batches in the ledger, and derive each table's outcome, from the tables' snapshots.

Runs on the Airflow worker, without a JVM. The tables decide, whatever the Spark application reported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from sluice.batch import PUBLISHED_THROUGH, RUN_ID, STEP, TOPIC, PublishedOffsets, batches_from_summary
from sluice.contract.contract import Contract
from sluice.contract.folder import Group
from sluice.errors import CursorUnknownError, NameCollisionError, SluiceError, TableDamagedError
from sluice.iceberg import active_contract, availability, cursor, refs, snapshots, table_names, tables
from sluice.ingest.outcome import APPLICATION_ENDED, Outcome, RunRecord, derive_outcome
from sluice.ledger import ledger_rows, quality_table, slices, unfinished_rollback
from sluice.ledger.accepted_gaps import add_accepted_gaps
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger

log = logging.getLogger(__name__)


def settle(group: Group, catalog: Catalog, plan: Mapping[str, Any], *, run_id: str) -> dict[str, dict[str, Any]]:
    """Close the batches that all their tables hold, and derive each table's outcome.

    Args:
        plan: the run's plan, from `outcome.summarize_plan`. Of a continuous run, that of the first round.

    Returns:
        Per table the fields of `Outcome`.
    """
    if group.settings.is_continuous:
        plan = _add_later_rounds(group, catalog, plan, run_id)
    settlement = _Settlement(group, catalog, plan, run_id)
    outcomes = {contract.table: settlement.settle_table(contract) for contract in group.contracts}
    for contract in group.contracts:
        if contract.expectations and contract.table in settlement.offsets:
            results = quality_table.read_run_results(catalog, contract.table, run_id)
            outcomes[contract.table].expectations = quality_table.summarize_results(results)
    for name in plan["stops"].keys() - outcomes.keys():  # a template whose tables are not known
        outcomes[name] = Outcome(name, "stopped", error=plan["stops"][name])
    settlement.write_ledger()
    return {name: asdict(outcome) | {"red": outcome.red} for name, outcome in outcomes.items()}


def settle_round(group: Group, catalog: Catalog, plan: Mapping[str, Any], *, run_id: str) -> None:
    """Close the batches of one round of a continuous run; the outcomes are derived once, when the run has ended.

    Only tables of topics with work are read: a group may have many, and a round every two seconds.
    """
    settlement = _Settlement(group, catalog, plan, run_id)
    for contract in group.contracts:
        if settlement.floor.keys() & {*contract.topics}:
            with suppress(SluiceError):  # planning reports it, and the table's batches stay open
                settlement.read_table(contract)
    settlement.write_ledger()


def _add_later_rounds(group: Group, catalog: Catalog, plan: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """The plan of a continuous run, with the batches that its later rounds have planned."""
    planned = Ledger(catalog).planned_batches(run_id)
    batches = {name: dict(seqs) for name, seqs in plan["tables"].items()}
    for contract in group.contracts:
        topics = batches.setdefault(contract.table, {})
        for topic in contract.topics:
            topics[topic] = sorted({*topics.get(topic, ()), *planned.get(topic, ())})
    return {**plan, "tables": batches}


class _Settlement:
    """One run of a group while it is settled.

    Attributes:
        floor: per topic the number of the last batch that is closed.
        rows: the ledger's rows after that.
    """

    def __init__(self, group: Group, catalog: Catalog, plan: Mapping[str, Any], run_id: str) -> None:
        self.group, self.catalog, self.plan, self.run_id = group, catalog, plan, run_id
        self.ledger = Ledger(catalog)
        self.floor, self.rows = _read_open_rows(self.ledger, _batches_before(plan))
        gaps = self.ledger.gaps(self.floor) if self.floor else []
        batches, _ = ledger_rows.split_batches(self.rows)  # planning reports topics with contradictory rows
        self.batches = {at: add_accepted_gaps(batch, gaps) for at, batch in batches.items()}
        self.run = RunRecord(plan, self.batches, [r for r in self.rows if r.run_id == run_id])
        self.offsets: dict[str, Mapping[str, PublishedOffsets]] = {}
        # By table, topic and batch. The tables are not kept: metadata with 1,440 snapshots takes 10 MB.
        self.snapshots: dict[str, dict[str, dict[int, int]]] = {}
        self.unreported: list[LedgerRow] = []

    def settle_table(self, contract: Contract) -> Outcome:
        """Read the table as `read_table` does, and derive its outcome."""
        outcome = Outcome(contract.table, warnings=self.plan["warnings"].get(contract.table, []))
        try:
            table = self.read_table(contract)
        except SluiceError as error:
            outcome.state, outcome.error = "stopped", str(error)
            return outcome
        derive_outcome(outcome, self.run, self.offsets[contract.table])
        self.unreported += self._unreported_failure(outcome)
        outcome.snapshot_id = _last_commit(table)
        outcome.location = table.location() if table else None
        if table and outcome.batches:
            outcome.contract = active_contract.describe_promise(table, contract)
        return outcome

    def read_table(self, contract: Contract) -> Table | None:
        """Note what the table holds and what the application did not report; clean up branches and tag.

        Raises:
            SluiceError: the table can't be read, or its offsets are unknown.
        """
        name, identifier = contract.table, table_names.typed(contract)
        load = partial(tables.load, self.catalog, identifier)
        table = availability.isolate_table_failure(self.catalog, load, table=name)
        unfinished_rollback.finish_pending_rollback(self.catalog, self.ledger, contract, table)
        self.offsets[name] = offsets = cursor.read_table_cursor(table)
        self.snapshots[name] = {
            topic: _publish_snapshots(table, topic, self.floor[topic])
            for topic in contract.topics
            if topic in self.floor
        }
        self.unreported += self._unreported_batches(name, table)
        if table is not None:
            self._clean_up_refs(table, identifier, {t: x.seq for t, x in offsets.items()}, contract.topics)
        return table

    def write_ledger(self) -> None:
        """Write what the application did not report, and the batches that are closed, in one commit."""
        self.ledger.append([*self.unreported, *self._settled_rows()], run_id=self.run_id)

    def _unreported_batches(self, name: str, table: Table | None) -> list[LedgerRow]:
        """Rows for batches that the table holds and no run reported. Batches after the plan's are another run's."""
        if table is None:
            return []
        out: list[LedgerRow] = []
        reported = {
            (r.topic, r.batch_seq, (r.snapshots or {}).get(name))
            for r in self.rows
            if r.table == name and r.state == LedgerState.PUBLISHED
        }
        for topic, seqs in self.plan["tables"].get(name, {}).items():
            found = _publish_snapshots(table, topic, self.floor[topic]) if seqs else {}
            for seq, snapshot_id in sorted(found.items()):
                snapshot = table.snapshot_by_id(snapshot_id)
                is_reported = (topic, seq, snapshot_id) in reported or (topic, seq, None) in reported
                if snapshot and self.floor[topic] < seq <= seqs[-1] and not is_reported:
                    values: dict[str, Any] = {
                        "table": name,
                        "snapshots": {name: snapshot_id},
                        "run_id": snapshots.summary(snapshot).get(RUN_ID),
                        "at": snapshots.visible_at(table.metadata, snapshot),
                    }
                    out.append(LedgerRow(topic, LedgerState.PUBLISHED, batch_seq=seq, **values))
        return out

    def _unreported_failure(self, outcome: Outcome) -> list[LedgerRow]:
        """A row for the first batch that an application left unpublished when it was killed."""
        if outcome.error != APPLICATION_ENDED:
            return []
        planned = self.plan["tables"].get(outcome.table, {})
        topic, seq = next((t, seqs[0]) for t, seqs in planned.items() if seqs and t not in outcome.batches)
        for row in self.rows:
            if (row.table, row.topic, row.batch_seq) == (outcome.table, topic, seq):
                failed_now = row.state == LedgerState.FAILED and row.run_id == self.run_id
                if row.state == LedgerState.BLOCKED or failed_now:  # still true, and says more
                    return []
        return [LedgerRow(topic, LedgerState.FAILED, batch_seq=seq, table=outcome.table, error=APPLICATION_ENDED)]

    def _settled_rows(self) -> list[LedgerRow]:
        """Rows that close the batches which all tables of their topic hold; also if their snapshots changed since."""
        closed = {
            (r.topic, r.batch_seq): (r.snapshots or {}).items() for r in self.rows if r.state == LedgerState.SETTLED
        }
        tables_of = self._tables_by_topic()
        out: list[LedgerRow] = []
        for topic, after in self.floor.items():
            names = sorted(tables_of[topic])
            published = min(self.offsets[n][topic].seq if topic in self.offsets.get(n, {}) else 0 for n in names)
            found = {n: self.snapshots.get(n, {}).get(topic, {}) for n in names}
            identifier = table_names.staging(topic)
            try:
                staging = tables.load_staging(self.catalog, topic)
            except (TableDamagedError, NameCollisionError):  # planning has reported it
                continue
            staged = {seq: s.snapshot_id for seq, (_, s) in cursor.read_staged_batches(staging, after).items()}
            found[".".join(identifier)] = staged
            if staging is not None and staged:
                self._clean_up_refs(staging, identifier, {topic: max(staged)}, [topic])
            for (t, seq), batch in sorted(self.batches.items()):
                places = {n: by_seq[seq] for n, by_seq in found.items() if seq in by_seq}
                is_closed = (t, seq) in closed and places.items() <= closed[t, seq]
                if t == topic and seq <= published and not is_closed:
                    out += ledger_rows.plan_rows(batch, LedgerState.SETTLED, places)
        return out

    def _tables_by_topic(self) -> dict[str, set[str]]:
        """Per topic the tables that must hold a batch before it is closed.

        The plan's tables are among them, though their contract may be unreadable now, or in another group.
        """
        found: dict[str, set[str]] = {}
        for contract in self.group.contracts:
            for topic in contract.topics:
                found.setdefault(topic, set()).add(contract.table)
        for name, topics in self.plan["tables"].items():
            for topic in topics:
                found.setdefault(topic, set()).add(name)
        return found

    def _clean_up_refs(
        self, table: Table, identifier: Identifier, published: Mapping[str, int], topics: Sequence[str]
    ) -> None:
        """Drop the branches of finished batches and abandoned slices, and move the cursor tag to main's offsets."""
        stale = {name for name in table.metadata.refs if refs.is_finished_branch(name, published)}
        stale |= slices.find_abandoned_branches(table, self.ledger, topics, datetime.now(UTC))
        try:
            if stale:
                refs.drop_branches(self.catalog, identifier, stale)
            refs.repair_cursor_tag(self.catalog, table)
        except CommitFailedException as error:  # a concurrent commit; the next run cleans up
            log.info("%s: branches and tag are left for the next run: %s", ".".join(identifier), error)


def _batches_before(plan: Mapping[str, Any]) -> dict[str, int]:
    """Per topic the number of the batch before the plan's first."""
    found: dict[str, int] = {}
    for seqs_by_topic in plan["tables"].values():
        for topic, seqs in seqs_by_topic.items():
            if seqs:
                found[topic] = min(found.get(topic, seqs[0] - 1), seqs[0] - 1)
    return found


def _read_open_rows(ledger: Ledger, before: Mapping[str, int]) -> tuple[dict[str, int], list[LedgerRow]]:
    """Per topic the last batch that is closed, and the ledger's rows after it.

    Args:
        before: the batch before the plan's first. If it is not closed, an earlier run was not settled, and its batches
            are closed now.
    """
    rows = ledger.rows({topic: max(seq - 1, 0) for topic, seq in before.items()})
    known = {(r.topic, r.batch_seq) for r in rows}
    closed = {(r.topic, r.batch_seq) for r in rows if r.state == LedgerState.SETTLED}
    unsettled = {t: ledger.last_settled(t, seq) for t, seq in before.items() if (t, seq) in known - closed}
    floor = {**before, **unsettled}
    rows = [r for r in rows if r.topic not in unsettled] + ledger.rows(unsettled)
    return floor, [r for r in rows if r.batch_seq and r.batch_seq > floor[r.topic]]


def _last_commit(table: Table | None) -> int | None:
    """The last snapshot that carries offsets; None if none is left and only the ledger knows the offsets."""
    try:
        carrier = cursor.find_offset_snapshot(table, PUBLISHED_THROUGH) if table else None
    except CursorUnknownError:
        return None
    return carrier.snapshot_id if carrier else None


def _publish_snapshots(table: Table | None, topic: str, after: int) -> dict[int, int]:
    """The snapshots of main that published batches after one, by batch number."""
    found: dict[int, int] = {}
    if table is not None:
        for snapshot in snapshots.ancestors(table.metadata):
            properties = snapshots.summary(snapshot)
            # A replay applies an old batch once more, and does not move the cursor.
            if properties.get(TOPIC) == topic and properties.get(STEP) == "publish":
                batches = batches_from_summary(properties)
                if batches[-1].seq <= after:
                    break
                for batch in batches:
                    found.setdefault(batch.seq, snapshot.snapshot_id)
    return found
