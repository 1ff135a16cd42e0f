"""Renames a typed table with all that Sluice keeps for it: its quarantine, its deletes table, its place as a consumer.

In: two names. Out: a preview; then one rename per table. Each step may be repeated: a command that was killed is run
again. The contract is changed by hand, afterwards. No JVM.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.typedef import Identifier

from sluice.contract.folder import Contracts
from sluice.errors import RefusedError
from sluice.iceberg import cursor, table_names, tables
from sluice.ledger import consumers
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.operate.operator_input import Decision


@dataclass(frozen=True)
class Renaming:
    """What a renaming does.

    Attributes:
        old: the typed table's name, by which the ledger and the history of pages know it.
        new: its new name.
        moves: the tables that are still to be renamed, the typed table first.
        topics: those that feed it.
    """

    old: str
    new: str
    moves: tuple[tuple[Identifier, Identifier], ...]
    topics: tuple[str, ...]

    def lines(self) -> list[str]:
        """The preview as text."""
        return [
            *(f"rename    {'.'.join(old)} to {'.'.join(new)}" for old, new in self.moves),
            *(f"consumer  {self.new} of topic {topic}, in place of {self.old}" for topic in self.topics),
        ]


def preview_renaming(old: str, new: str, contracts: Contracts, catalog: Catalog) -> Renaming:
    """Find what is to be renamed, changing nothing.

    Args:
        old: the typed table's name; after a killed command the table may have the new one.
        new: its new name, such as `shop.sales`, in a namespace that exists.
        contracts: a contract must name one of the two.
        catalog: where the tables are.

    Raises:
        RefusedError: there is no such table, both names exist, or a contract has another table of the new name.
        ContractError: no contract names the table.
    """
    pairs = list(zip(_names(old), _names(new), strict=True))
    there = [(tables.load(catalog, a), tables.load(catalog, b)) for a, b in pairs]
    if doubled := [b for (_, b), (one, other) in zip(pairs, there, strict=True) if one and other]:
        raise RefusedError(
            f"{'.'.join(doubled[0])} exists already.",
            table=old,
            next_step="Take another name, or rename or drop that table. If a run created it because the contract was "
            "changed first: it is empty, drop it.",
        )
    typed = there[0][0] or there[0][1]
    if typed is None:
        raise RefusedError("The table does not exist.", table=old)
    if {old, new} <= contracts.tables.keys():
        raise RefusedError("Contracts name both tables.", table=old, next_step=f"Remove the one that names {new}.")
    contract = contracts.table(new if new in contracts.tables else old)
    topics = {*contract.topics, *cursor.read_table_cursor(typed)}
    moves = tuple(pair for pair, (one, _) in zip(pairs, there, strict=True) if one)
    return Renaming(old, new, moves, tuple(sorted(topics)))


def rename(found: Renaming, catalog: Catalog, decision: Decision) -> None:
    """Rename the tables, and record the decision in the ledger, under the old name.

    Raises:
        RefusedError: a table of a new name was created meanwhile. What was renamed before stays so: run it again.
    """
    for topic in found.topics:
        if staging := tables.load_staging(catalog, topic):
            consumers.record_renaming(catalog, staging, found.old, found.new)
            consumers.record_consumers(catalog, catalog.load_table(staging.name()), [found.new])
    # The typed table is the last one, so that a command that was killed finds it under the old name.
    for old, new in reversed(found.moves):
        try:
            table = catalog.rename_table(old, new)
        except TableAlreadyExistsError as error:
            raise RefusedError(
                f"{'.'.join(new)} exists already.",
                table=found.old,
                next_step="Pause the group's DAG, drop the table if it is empty, and run the command again.",
            ) from error
        if tables.OWNING_TABLE in table.properties:
            with table.transaction() as transaction:
                transaction.set_properties({tables.OWNING_TABLE: found.new})
    why = f"renamed to {found.new}: {decision.why}"
    rows = [
        LedgerRow(t, LedgerState.RETIRED, table=found.old, who=decision.who, why=why)
        for t in found.topics
        if found.old in consumers.read_consumers(tables.load_staging(catalog, t))
    ]
    if rows:
        Ledger(catalog).append(rows, run_id=decision.run_id)
    for topic in found.topics:
        if staging := tables.load_staging(catalog, topic):
            consumers.remove_consumer(catalog, staging, found.old)


def _names(table: str) -> tuple[Identifier, ...]:
    """The typed table, its quarantine and its deletes table."""
    own = table_names.safe_identifier(table)
    return (tuple(table.split(".")), (table_names.QUARANTINE, own), (table_names.DELETES, own))
