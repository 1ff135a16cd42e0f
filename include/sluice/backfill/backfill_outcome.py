"""The outcome of a backfill: the table's snapshots say whether a slice is in it, the ledger why not. No JVM."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from sluice.contract.folder import Contracts
from sluice.iceberg import active_contract, refs, snapshots, table_names, tables
from sluice.ledger import slices
from sluice.ledger.error_causes import is_terminal
from sluice.ledger.ledger_rows import LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.offsets import encode_ranges

log = logging.getLogger(__name__)

MISSING = "it is not in the table: the Spark application ended before it reported, or the table was rolled back"
END_STATES = (LedgerState.REPLAYED, LedgerState.BLOCKED, LedgerState.FAILED)


def collect_outcome(contracts: Contracts, catalog: Catalog, promised: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Per slice its number, ranges, snapshot (None if it is not in the table), records, rejected records, and a text.

    Branches that its writers left are dropped.

    Args:
        contracts: all contracts.
        catalog: where the table is.
        promised: as of `BackfillPlan.to_xcom`.
    """
    identifier = table_names.typed(contracts.table(promised["table"]))
    table = catalog.load_table(identifier)
    known = slices.read_slice_rows(Ledger(catalog), promised["topic"])
    pieces = {seq: b for seq, b in slices.planned_slices(known).items() if seq in promised["slices"]}
    ends = {r.batch_seq: r for r in known if r.state in END_STATES and r.table == promised["table"]}
    out = []
    for seq in promised["slices"]:
        piece = pieces.get(seq)
        snapshot_id = slices.find_replay_snapshot_id(table, promised["table"], piece, known) if piece else None
        end = ends.get(seq)
        if snapshot_id is not None:
            text = end.why if end and end.state == LedgerState.REPLAYED else "replayed"
        else:
            # This includes a slice that was replayed and rolled back since.
            text = (end and end.error) or MISSING
        out.append(
            {
                "slice": seq,
                "ranges": encode_ranges(piece.ranges) if piece else None,
                "snapshot_id": snapshot_id,
                "records": end.records if end else None,
                "rejected": end.rejected if end else None,
                "told": text,
            }
        )
    for each in filter(None, (table, tables.load_staging(catalog, promised["topic"]))):
        try:
            refs.drop_branches(catalog, each.name(), slices.find_slice_branches(each, pieces.values()))
        except CommitFailedException as error:
            log.info("%s: branches of the backfill were not dropped: %s", ".".join(each.name()), error)
    return out


class Progress(NamedTuple):
    """The slices that are not in their table.

    Attributes:
        untried: those that this run has not tried yet.
        failed: those that it has tried.
    """

    untried: list[int]
    failed: list[int]


def read_progress(
    contracts: Contracts, catalog: Catalog, asked: tuple[str, str, Sequence[int]], run_id: str
) -> Progress:
    """Read which slices are not in their table.

    Args:
        contracts: all contracts.
        catalog: where the table is.
        asked: table, topic and the slices' numbers.
        run_id: the backfill's run.
    """
    name, topic, numbers = asked
    table = catalog.load_table(table_names.typed(contracts.table(name)))
    known = slices.read_slice_rows(Ledger(catalog), topic)
    planned = slices.planned_slices(known)
    there = {
        seq
        for seq in numbers
        if seq in planned and slices.find_replay_snapshot_id(table, name, planned[seq], known) is not None
    }
    tried = {r.batch_seq for r in known if (r.table, r.run_id) == (name, run_id) and r.state in END_STATES}
    missing = [seq for seq in numbers if seq not in there]
    return Progress([s for s in missing if s not in tried], [s for s in missing if s in tried])


def needs_action(catalog: Catalog, work: Mapping[str, Any], since: datetime) -> bool:
    """Whether the ledger says that another try of some slices would fail too.

    Args:
        catalog: where the ledger is.
        work: table, topic, slices and run id.
        since: only a result after this time counts: an earlier one is another try's.
    """
    last = {
        row.batch_seq: row
        for row in slices.read_slice_rows(Ledger(catalog), work["topic"])
        if (row.table, row.run_id) == (work["table"], work["run_id"])
        and row.batch_seq in work["slices"]
        and row.state in END_STATES
        and row.at >= since
    }
    failed = [row for row in last.values() if row.state == LedgerState.FAILED]
    retried = any(not is_terminal(row.exception) for row in failed)
    return not retried and (bool(failed) or any(row.state == LedgerState.BLOCKED for row in last.values()))


def asset_event(
    contracts: Contracts, catalog: Catalog, promised: Mapping[str, Any], found: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """The asset event of the slices that changed the table, in the same form as for batches; None where none did.

    Args:
        contracts: all contracts.
        catalog: where the table is.
        promised: as of `BackfillPlan.to_xcom`.
        found: as of `collect_outcome`.
    """
    contract = contracts.table(promised["table"])
    table = catalog.load_table(table_names.typed(contract))
    mine = [each for each in found if each["snapshot_id"] is not None and _changed_rows(table, each["snapshot_id"])]
    if not mine:
        return None
    ids = [each["snapshot_id"] for each in mine]
    newest_first = (s.snapshot_id for s in snapshots.ancestors(table.metadata))
    counts = {name: [each[name] for each in mine] for name in ("records", "rejected")}
    return {
        "table": promised["table"],
        "location": table.location(),
        "contract": active_contract.describe_promise(table, contract),
        "backfill": True,
        "batches": {promised["topic"]: [each["slice"] for each in mine]},
        "ranges": {promised["topic"]: [each["ranges"] for each in mine]},
        "gaps": {},
        "snapshot_id": next((each for each in newest_first if each in ids), ids[-1]),
        "snapshot_ids": ids,
        **{name: None if None in each else sum(each) for name, each in counts.items()},
    }


def _changed_rows(table: Table, snapshot_id: int) -> bool:
    """Whether the snapshot of a slice added or removed rows; assumed for one that has expired."""
    snapshot = table.snapshot_by_id(snapshot_id)
    return snapshot is None or snapshots.changed_rows(snapshot)
