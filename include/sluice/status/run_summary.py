"""What a run left of a table: offsets, lag, rows, last snapshot, quarantine and steps, as names and values.

In: the table's contract, its topics in Kafka, and ledger rows. Out: texts, for the demo's report and `sluice run`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyiceberg.catalog import Catalog

from sluice.batch import PUBLISHED_THROUGH, RANGES
from sluice.contract.contract import Contract
from sluice.iceberg import cursor, snapshots, table_names, tables
from sluice.kafka.broker import TopicState
from sluice.ledger.ledger_rows import LedgerRow
from sluice.offsets import encode_offsets
from sluice.status.text import counted


def describe_table(
    catalog: Catalog, contract: Contract, topics: Mapping[str, TopicState], steps: Iterable[LedgerRow]
) -> dict[str, str]:
    """Describe an existing table.

    Args:
        catalog: where it is.
        contract: its contract.
        topics: the state of its topics, as far as Kafka answered.
        steps: the ledger's rows with the steps to list.
    """
    table = catalog.load_table(table_names.typed(contract))
    published = cursor.read_table_cursor(table)
    ends, at, lag = {}, {}, 0
    for topic, state in topics.items():
        last = {p: marks.end for p, marks in state.watermarks.items()}
        own = dict(published[topic].next_offsets) if topic in published else {}
        ends[topic], at[topic] = encode_offsets(last), encode_offsets(own)
        lag += sum(last.values()) - sum(own.get(p, 0) for p in last)
    carrier = cursor.find_offset_snapshot(table, PUBLISHED_THROUGH)
    quarantine = tables.load_quarantine(catalog, contract)
    ranges = snapshots.summary(carrier).get(RANGES) if carrier else None
    return {
        "log end offsets": _by_topic(ends),
        "committed offsets": _by_topic(at),
        "lag": counted(lag, "offset"),
        "rows": f"{table.scan().count():,}",
        "snapshot": f"{carrier.snapshot_id} has offsets {ranges}" if carrier else "none",
        "quarantined": f"{quarantine.scan().count() if quarantine else 0:,}",
        "steps": ", ".join(f"batch {r.batch_seq} {r.state} in {r.seconds or 0:.1f} s" for r in steps) or "none",
    }


def _by_topic(texts: Mapping[str, str]) -> str:
    """One text, without its topic if there is only one."""
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{topic} {text}" for topic, text in texts.items()) or "unknown"
