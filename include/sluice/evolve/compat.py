"""Access to PyIceberg for which it has no public API; `tests/unit/evolve/test_compat.py` fails once it has one."""

from __future__ import annotations

from pyiceberg.table import Transaction
from pyiceberg.table.update import TableRequirement, TableUpdate


def staged_commit(transaction: Transaction) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
    """The updates and requirements that a transaction has staged, to commit them together with other requirements.

    `Transaction.commit_transaction` takes no requirements of ours, and commits again on a new head by itself.
    No public API as of PyIceberg 0.12.0.
    """
    return transaction._updates, transaction._requirements
