"""The command line of the ledger: its last rows, and writing it anew from the tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from sluice.operate import operator_input

if TYPE_CHECKING:
    from sluice.contract.folder import Contracts
    from sluice.ledger.offsets_table import Row


def add(
    commands: Any, known: Callable[[], Contracts], count: Callable[[str], int]
) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Join the commands.

    Args:
        commands: what `add_subparsers` gave.
        known: loads the contracts.
        count: reads a number of rows.
    """
    ledger = commands.add_parser("ledger", help="the table sluice.offsets").add_subparsers(
        required=True, metavar="COMMAND"
    )
    rebuild = ledger.add_parser("rebuild", help="write it anew from the tables' own snapshots")
    rebuild.set_defaults(run=partial(_rebuild, known))
    show = ledger.add_parser("show", help="its last rows")
    show.add_argument("topic", nargs="?", metavar="TOPIC")
    show.add_argument("-n", type=count, default=20, metavar="ROWS", help="how many (default 20)")
    show.set_defaults(run=_show)
    return rebuild, show


def _rebuild(known: Callable[[], Contracts], given: argparse.Namespace) -> int:
    from sluice.iceberg import availability
    from sluice.ledger import rebuild
    from sluice.plan import resolve_topics

    catalog = availability.open_catalog(given.patience)
    contracts = known()
    with availability.catalog_errors():
        contracts = resolve_topics.resolve(contracts, catalog, None)
        lines = rebuild.rebuild(contracts, catalog, run_id=f"ledger rebuild by {operator_input.user()}")
    print("\n".join(lines))
    return 0


def _show(given: argparse.Namespace) -> int:
    from pyiceberg.expressions import AlwaysTrue

    from sluice.iceberg import availability
    from sluice.iceberg.filters import equal
    from sluice.ledger import offsets_table
    from sluice.ledger.offsets_table import row_of

    catalog = availability.open_catalog(given.patience)
    table = offsets_table.existing_ledger_table(catalog)
    if table is None or table.current_snapshot() is None:
        print("There is no ledger yet: no run has planned anything.")
        return 0
    with availability.catalog_errors():
        wanted = equal("topic", given.topic) if given.topic else AlwaysTrue()
        records = table.scan(row_filter=wanted).to_arrow().sort_by([("at", "ascending")]).to_pylist()
    rows = list(map(row_of, records[-given.n :]))
    print("\n".join(_lines(rows)) if rows else "No rows.")
    return 0


def _lines(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'UTC':<14}  {'TOPIC':<20} {'BATCH':>6}  {'STATE':<9}  RANGE OR TABLE"]
    for row in rows:
        where = (
            f"{row.partition}: [{row.start_offset}, {row.end_offset})" if row.partition is not None else row.table or ""
        )
        counts = f"{row.records:,} records" if row.records is not None else ""
        rejected = f", {row.rejected:,} rejected" if row.rejected else ""
        at = row.at.astimezone(UTC) if row.at else datetime.now(UTC)
        what = f"{row.topic:<20} {row.batch_seq or '':>6}  {row.state:<9}  {where:<28} {counts}{rejected}"
        lines.append(f"{at:%m-%d %H:%M:%S}  {what}".rstrip())
        if row.error:
            lines.append(f"    {row.error}")
        if row.why:
            lines.append(f"    {row.who or 'unknown'}: {row.why}")
    return lines
