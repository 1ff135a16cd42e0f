"""Tolerated batches: blocked batches that an operator decided to publish, whose bad records stay quarantined.

In: the ledger's `tolerated` rows. Out: batch numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sluice.batch import Batch
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger


def tolerated_numbers(ledger: Ledger, table: str, batches: Sequence[Batch]) -> frozenset[int]:
    """The numbers of those batches of one topic that an operator tolerated for a table."""
    known = read_tolerated(ledger, table, {batches[0].topic: batches[0].seq - 1})
    return frozenset(each.seq for each in batches if (each.topic, each.topic_id, each.seq) in known)


def read_tolerated(ledger: Ledger, table: str, after: Mapping[str, int]) -> set[tuple[str, str | None, int | None]]:
    """Topic, topic id and number of each batch that an operator tolerated for a table.

    Of a topic that was created again, the same number is another batch.

    Args:
        after: per topic, only batches above this number.
    """
    rows = ledger.rows(after, (LedgerState.TOLERATED,))
    return {(row.topic, row.topic_id, row.batch_seq) for row in rows if row.table == table}


def tolerated_row(batch: LedgerRow, *, who: str, why: str) -> LedgerRow:
    """The row that tolerates a blocked batch.

    Args:
        batch: the row that says it is blocked.
    """
    return LedgerRow(
        batch.topic, LedgerState.TOLERATED, batch.topic_id, batch.batch_seq, table=batch.table, who=who, why=why
    )
