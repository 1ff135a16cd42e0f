"""Tolerated batches: blocked batches that an operator decided to publish, whose bad records stay quarantined.

In: the ledger's `tolerated` rows. Out: batch numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.batch import Batch
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger


def tolerated_numbers(ledger: Ledger, table: str, batches: Sequence[Batch]) -> frozenset[int]:
    """The numbers of those batches of one topic that an operator tolerated for a table."""
    first = batches[0]
    rows = ledger.rows({first.topic: first.seq - 1}, (LedgerState.TOLERATED,))
    # Of a topic that was created again, the same number is another batch.
    theirs = (row for row in rows if (row.table, row.topic_id) == (table, first.topic_id))
    return frozenset(row.batch_seq for row in theirs if row.batch_seq is not None)


def tolerated_row(batch: LedgerRow, *, who: str, why: str) -> LedgerRow:
    """The row that tolerates a blocked batch.

    Args:
        batch: the row that says it is blocked.
    """
    return LedgerRow(
        batch.topic, LedgerState.TOLERATED, batch.topic_id, batch.batch_seq, table=batch.table, who=who, why=why
    )
