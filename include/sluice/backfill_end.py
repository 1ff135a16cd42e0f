"""What a backfill came to: the table is asked first, the ledger says why a slice is not in it. No JVM."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException

from sluice import refs, slices, tables
from sluice.contracts import Contracts
from sluice.ledger import Ledger, State

log = logging.getLogger(__name__)

NOT_THERE = "it is not in the table: the Spark application ended before it reported, or the table was rolled back"
ENDS = (State.REPLAYED, State.BLOCKED, State.FAILED)


def outcome(contracts: Contracts, catalog: Catalog, promised: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Per slice: its number, the snapshot that brought it or None, records, rejected, and what is told of it.

    Args:
        promised: what `Backfill.promised` gave.
    """
    identifier = tables.typed(contracts.table(promised["table"]))
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
                "snapshot_id": snapshot_id,
                "records": end.records if end else None,
                "rejected": end.rejected if end else None,
                "told": told,
            }
        )
    for left in filter(None, (table, tables.load(catalog, tables.staging(promised["topic"])))):
        try:
            refs.drop_branches(catalog, left.name(), slices.leftovers(left, pieces.values()))
        except CommitFailedException as error:
            log.info("%s: left branches behind: %s", ".".join(left.name()), error)
    return out
