"""Publishes a blocked batch once: an operator decides to go on without its bad records, which stay quarantined.

In: a table, and a `Decision`. Out: a row in the ledger for each blocked batch. The next run publishes these batches;
later ones are blocked as before.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.catalog import Catalog

from sluice.contract.folder import Contracts
from sluice.errors import RefusedError
from sluice.iceberg import cursor, table_names, tables
from sluice.ledger import tolerated_batches
from sluice.ledger.error_causes import EXPECTATIONS_FAILED
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.operate.operator_input import Decision


@dataclass(frozen=True)
class BlockedBatch:
    """The first batch of a topic that a table does not take, by the ledger's last row about it."""

    row: LedgerRow

    def __str__(self) -> str:
        row = self.row
        counts = "" if row.records is None else f": {row.rejected or 0:,} of {row.records:,} records stay quarantined"
        return f"{row.table} batch {row.batch_seq} of {row.topic}{counts}"


def find_blocked(name: str, contracts: Contracts, catalog: Catalog) -> list[BlockedBatch]:
    """The blocked batches of a table that may be published, one for each topic that has one.

    Raises:
        ContractError: no contract defines the table.
        RefusedError: no batch is blocked, an expectation blocked it, or it is tolerated already.
    """
    contract = contracts.table(name)
    table = tables.load(catalog, table_names.typed(contract))
    published = cursor.read_table_cursor(table) if table else {}
    ledger = Ledger(catalog)
    after = {topic: published[topic].seq if topic in published else 0 for topic in contract.topics}
    rows = [row for row in ledger.rows(after, (LedgerState.BLOCKED,)) if row.table == name and row.batch_seq]
    first: dict[str, LedgerRow] = {}
    for row in reversed(rows):  # the newest row of the lowest batch
        known = first.get(row.topic)
        if known is None or (row.batch_seq or 0) < (known.batch_seq or 0):
            first[row.topic] = row
    if not first:
        raise RefusedError("No batch is blocked.", table=name, next_step="`sluice status` shows what else stops it.")
    found = [each for each in first.values() if each.exception != EXPECTATIONS_FAILED]
    if not found:
        raise RefusedError(
            "An expectation of severity block failed.",
            table=name,
            next_step="Set its severity to warn or quarantine_rows in the contract; the next run publishes the batch.",
        )
    tolerated = tolerated_batches.read_tolerated(ledger, name, after)
    waiting = [each for each in found if (each.topic, each.topic_id, each.batch_seq) not in tolerated]
    if not waiting:
        raise RefusedError("It is decided already.", table=name, next_step="The next run publishes the batch.")
    return [BlockedBatch(each) for each in waiting]


def publish_blocked(found: list[BlockedBatch], catalog: Catalog, decision: Decision) -> None:
    """Record the decision; the next run publishes the batches.

    Raises:
        RefusedError: no reason is given.
    """
    if not decision.why.strip():
        raise RefusedError("No reason is given.", next_step="Say why it is published: the ledger records it.")
    rows = [tolerated_batches.tolerated_row(each.row, who=decision.who, why=decision.why) for each in found]
    Ledger(catalog).append(rows, run_id=decision.run_id)
