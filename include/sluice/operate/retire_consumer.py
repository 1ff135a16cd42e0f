"""Retires a consumer of a topic: an operator decides that staging keeps no raw records for that typed table any more.

In: a table and a topic by name. Out: a preview; then one property fewer on the staging table, and a row in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.batch import PublishedOffsets
from sluice.contract.folder import Contracts
from sluice.errors import RefusedError, SluiceError
from sluice.iceberg import cursor, tables
from sluice.ledger import consumers
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.operate.operator_input import Decision


@dataclass(frozen=True)
class Retirement:
    """A consumer to retire.

    Attributes:
        staging: the topic's staging table.
        position: what is known of the consumer's offsets, for the operator.
    """

    table: str
    topic: str
    staging: Table
    position: str

    def lines(self) -> list[str]:
        """The preview as text."""
        return [
            f"{self.table} is a recorded consumer of {self.topic}. {self.position}",
            "Once retired, raw records that it has yet to publish are deleted when the topic's other tables no longer "
            "need them.",
        ]


def find_consumer(table: str, topic: str, contracts: Contracts, catalog: Catalog) -> Retirement:
    """Find a recorded consumer that may be retired.

    Raises:
        RefusedError: the topic has no such consumer, or a contract lets the table read the topic.
        NameCollisionError: the topic's staging table is that of another topic.
    """
    if table in (contracts.topics[topic].tables if topic in contracts.topics else ()):
        raise RefusedError(
            "The contract of this table reads the topic: the next plan would record it again.",
            table=table,
            topic=topic,
            next_step="Remove the contract first, or the topic from it.",
        )
    staging = tables.load_staging(catalog, topic)
    recorded = consumers.read_consumers(staging)
    if staging is None or table not in recorded:
        known = ", ".join(sorted(recorded)) or "none"
        raise RefusedError(
            "This table is not a recorded consumer of the topic.",
            table=table,
            topic=topic,
            next_step=f"Recorded consumers of the topic: {known}.",
        )
    return Retirement(table, topic, staging, _describe_position(table, topic, catalog))


def retire(found: Retirement, catalog: Catalog, decision: Decision) -> None:
    """Remove the consumer from the staging table, and record the decision in the ledger.

    Raises:
        RefusedError: no reason is given.
    """
    if not decision.why.strip():
        raise RefusedError("No reason is given.", next_step="Say why it is retired: the ledger records it.")
    row = LedgerRow(found.topic, LedgerState.RETIRED, table=found.table, who=decision.who, why=decision.why)
    # The row first: if this is killed in between, the consumer is still there and can be retired again.
    Ledger(catalog).append([row], run_id=decision.run_id)
    consumers.remove_consumer(catalog, found.staging, found.table)


def _describe_position(table: str, topic: str, catalog: Catalog) -> str:
    try:
        existing = tables.load(catalog, tuple(table.split(".")))
        if existing is None:
            return "There is no table of that name."
        position: PublishedOffsets | None = cursor.read_table_cursor(existing).get(topic)
    except SluiceError as error:
        return f"Its offsets can't be read: {error.message}"
    return f"It has published up to batch {position.seq}." if position else "It has published nothing of it."
