"""What a backfill came to: the table is asked first, the ledger says why a slice is not in it. No JVM."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from sluice.contract.folder import Contracts
from sluice.iceberg import refs, snapshots, table_names, tables
from sluice.ledger import slices
from sluice.ledger.offsets_table import Ledger, State
from sluice.offsets import encode_ranges

log = logging.getLogger(__name__)

NOT_THERE = "it is not in the table: the Spark application ended before it reported, or the table was rolled back"
ENDS = (State.REPLAYED, State.BLOCKED, State.FAILED)


def outcome(contracts: Contracts, catalog: Catalog, promised: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Per slice: its number and ranges, the snapshot that brought it or None, records, rejected, what is told of it.

    Args:
        promised: what `Backfill.promised` gave.
    """
    identifier = table_names.typed(contracts.table(promised["table"]))
    table = catalog.load_table(identifier)
    known = slices.rows(Ledger(catalog), promised["topic"])
    pieces = {seq: b for seq, b in slices.planned(known).items() if seq in promised["slices"]}
    ends = {r.batch_seq: r for r in known if r.state in ENDS and r.table == promised["table"]}
    out = []
    for seq in promised["slices"]:
        piece = pieces.get(seq)
        snapshot_id = slices.landed_as(table, promised["table"], piece, known) if piece else None
        end = ends.get(seq)
        if snapshot_id is not None:
            told = end.why if end and end.state == State.REPLAYED else "landed"
        else:
            # A slice that landed and was rolled back since is not there either.
            told = (end and end.error) or NOT_THERE
        out.append(
            {
                "slice": seq,
                "ranges": encode_ranges(piece.ranges) if piece else None,
                "snapshot_id": snapshot_id,
                "records": end.records if end else None,
                "rejected": end.rejected if end else None,
                "told": told,
            }
        )
    for left in filter(None, (table, tables.load(catalog, table_names.staging(promised["topic"])))):
        try:
            refs.drop_branches(catalog, left.name(), slices.leftovers(left, pieces.values()))
        except CommitFailedException as error:
            log.info("%s: left branches behind: %s", ".".join(left.name()), error)
    return out


def news(
    contracts: Contracts, catalog: Catalog, promised: Mapping[str, Any], found: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """What the slices brought that changed the table, as settle tells it of batches; None where none did.

    Args:
        found: the `outcome`.
    """
    table = catalog.load_table(table_names.typed(contracts.table(promised["table"])))
    mine = [each for each in found if each["snapshot_id"] is not None and _changed(table, each["snapshot_id"])]
    if not mine:
        return None
    ids = [each["snapshot_id"] for each in mine]
    line = (s.snapshot_id for s in snapshots.ancestors(table.metadata))
    counts = {name: [each[name] for each in mine] for name in ("records", "rejected")}
    return {
        "table": promised["table"],
        "location": table.location(),
        "backfill": True,
        "batches": {promised["topic"]: [each["slice"] for each in mine]},
        "ranges": {promised["topic"]: [each["ranges"] for each in mine]},
        "gaps": {},
        "snapshot_id": next((each for each in line if each in ids), ids[-1]),
        "snapshot_ids": ids,
        **{name: None if None in each else sum(each) for name, each in counts.items()},
    }


def _changed(table: Table, snapshot_id: int) -> bool:
    """Whether the snapshot that a slice made added or took away rows; of one that expired it is not known."""
    snapshot = table.snapshot_by_id(snapshot_id)
    told = snapshots.summary(snapshot) if snapshot else {"added-records": "1"}
    return any(int(told.get(name, "0")) for name in ("added-records", "deleted-records", "added-position-deletes"))
