"""Reads the ledger's rows of the last days or weeks, for the timelines. Out: Arrow, one staged row per batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract.contract import Contract
from sluice.iceberg import scan as iceberg_scan
from sluice.iceberg import table_names, tables
from sluice.iceberg.filters import And, Or, above, one_of
from sluice.ledger.ledger_rows import LedgerState

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import DataScan

MAX_FILTER_TOPICS = 20


def read_rows(
    catalog: Catalog, since: datetime, contracts: Sequence[Contract] | None, states: Iterable[LedgerState]
) -> pa.Table | None:
    """Read the ledger's rows with these states since a time, newest first; None without a ledger."""
    scan = _scan(catalog, since, contracts, states)
    return None if scan is None else _select(scan.to_arrow(), contracts)


def read_parts(
    catalog: Catalog, since: datetime, contracts: Sequence[Contract] | None, states: Iterable[LedgerState]
) -> Iterator[pa.Table]:
    """Read the same rows file by file, each newest first, so that they are never in memory together."""
    scan = _scan(catalog, since, contracts, states)
    for file in scan.plan_files() if scan is not None else ():
        yield _select(iceberg_scan.read_tasks(scan, [file]), contracts)  # type: ignore[arg-type]


def _scan(
    catalog: Catalog, since: datetime, contracts: Sequence[Contract] | None, states: Iterable[LedgerState]
) -> DataScan | None:
    ledger = tables.load(catalog, table_names.LEDGER)
    if ledger is None or ledger.current_snapshot() is None:
        return None
    where = And(above("at", since.isoformat()), one_of("state", [str(s) for s in states]))
    topics = {topic for c in contracts or () for topic in c.topics}
    if 0 < len(topics) <= MAX_FILTER_TOPICS:  # the cost of a filter grows with files times topics
        own = one_of("table", sorted({c.table for c in contracts or ()}))
        where = And(Or(one_of("topic", sorted(topics)), own), where)
    return ledger.scan(row_filter=where)


def _select(rows: pa.Table, contracts: Sequence[Contract] | None) -> pa.Table:
    newest_first = rows.sort_by([("at", "descending")])
    if contracts is not None:  # before the limit applies: a topic may feed tables that the user may not see
        topics = {topic for c in contracts for topic in c.topics}
        names = pa.array([c.table for c in contracts], pa.string())
        own = pc.is_in(newest_first["table"], names)  # also of topics that the table no longer reads
        read = pc.is_in(newest_first["topic"], pa.array(sorted(topics), pa.string()))
        newest_first = newest_first.filter(pc.or_(own, pc.and_(pc.is_null(newest_first["table"]), read)))
    return _merge_staged_rows(newest_first)


def _merge_staged_rows(rows: pa.Table) -> pa.Table:
    """Keep one staged row per batch: older versions wrote one per partition."""
    staged = pc.equal(rows["state"], LedgerState.STAGED)
    if not pc.any(pc.and_(staged, pc.is_valid(rows["partition"]))).as_py():
        return rows
    best: dict[tuple[str, int], int] = {}
    spread: set[int] = set()
    columns = (rows[name].to_pylist() for name in ("state", "topic", "batch_seq", "partition"))
    for n, (state, topic, seq, partition) in enumerate(zip(*columns, strict=True)):
        if state == LedgerState.STAGED and partition is not None:
            spread.add(n)
            best.setdefault((topic, seq), n)
        elif state == LedgerState.STAGED:  # written by the run itself: it has more fields
            best[topic, seq] = n
    kept = sorted({*range(len(rows))} - spread | {*best.values()})
    whole = pc.if_else(staged, pa.scalar(None, rows["partition"].type), rows["partition"])
    return rows.set_column(rows.column_names.index("partition"), "partition", whole).take(pa.array(kept, pa.int64()))
