"""`sluice ledger`: shows the ledger's rows, rebuilds it from snapshots, or retires a consumer of a topic.

In: arguments and the contracts. Out: rows as text, a rebuilt ledger; a preview, or with `--yes` the change.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sluice.cli import output
from sluice.cli.arguments import (
    UNCHANGED,
    add_command,
    add_decision,
    add_group,
    add_json,
    add_patience,
    add_table,
    open_tables,
    positive_int,
)
from sluice.operate import operator_input

if TYPE_CHECKING:
    from sluice.ledger.ledger_rows import LedgerRow


def add_commands(commands: Any) -> None:
    """Add the commands."""
    ledger = add_group(commands, "ledger", "the table sluice.offsets")
    rebuild = add_command(ledger, "rebuild", _rebuild, "rebuild the ledger from the tables' snapshots", [""])
    show = add_command(ledger, "show", _show, "show the ledger's last rows", ["", "orders -n 50"])
    show.add_argument("topic", nargs="?", metavar="TOPIC")
    show.add_argument("-n", type=positive_int, default=20, metavar="ROWS", help="how many (default 20)")
    retire = add_command(
        ledger,
        "retire-consumer",
        _retire_consumer,
        "keep no raw records for a table that no longer reads a topic",
        ["shop.orders_old orders", "shop.orders_old orders --why 'replaced by shop.orders' --yes"],
    )
    add_table(retire)
    retire.add_argument("topic", metavar="TOPIC")
    add_decision(retire)
    for each in (rebuild, show, retire):
        add_json(each)
        add_patience(each)


def _rebuild(given: argparse.Namespace) -> int:
    from sluice.ledger import rebuild

    with open_tables(given.patience) as (catalog, known):
        lines = rebuild.rebuild(known, catalog, run_id=f"ledger rebuild by {operator_input.current_user()}")
    output.show(given, {"lines": lines}, lambda: output.print_lines(lines))
    return 0


def _retire_consumer(given: argparse.Namespace) -> int:
    from sluice.operate import retire_consumer
    from sluice.operate.operator_input import Decision

    user = operator_input.current_user()
    with open_tables(given.patience) as (catalog, known):
        found = retire_consumer.find_consumer(given.table, given.topic, known, catalog)
        if not given.json:
            output.print_lines(found.lines())
        if given.yes:
            retire_consumer.retire(found, catalog, Decision(user, given.why, f"retire-consumer by {user}"))
    facts = {"applied": given.yes, "table": found.table, "topic": found.topic, "lines": found.lines()}
    done = "Retired. The next expiry trims staging without it."
    output.show(given, facts, lambda: print(done if given.yes else UNCHANGED))
    return 0


def _show(given: argparse.Namespace) -> int:
    from pyiceberg.expressions import AlwaysTrue

    from sluice.iceberg import availability
    from sluice.iceberg.filters import equal
    from sluice.ledger import offsets_table
    from sluice.ledger.ledger_rows import row_from_record

    catalog = availability.open_catalog(given.patience)
    table = offsets_table.load_ledger_table(catalog)
    if table is None or table.current_snapshot() is None:
        output.show(given, {"rows": []}, lambda: print("There is no ledger yet: no run has planned anything."))
        return 0
    with availability.translate_catalog_errors():
        wanted = equal("topic", given.topic) if given.topic else AlwaysTrue()
        records = table.scan(row_filter=wanted).to_arrow().sort_by([("at", "ascending")]).to_pylist()
    rows = list(map(row_from_record, records[-given.n :]))
    output.show(given, {"rows": rows}, lambda: output.print_lines(_format_rows(rows) if rows else ["No rows."]))
    return 0


def _format_rows(rows: Sequence[LedgerRow]) -> list[str]:
    lines = [f"{'UTC':<14}  {'TOPIC':<20} {'BATCH':>6}  {'STATE':<9}  RANGE OR TABLE"]
    for row in rows:
        where = (
            f"{row.partition}: [{row.start_offset}, {row.end_offset})" if row.partition is not None else row.table or ""
        )
        counts = f"{row.records:,} records" if row.records is not None else ""
        quarantined = f", {row.rejected:,} quarantined" if row.rejected else ""
        at = row.at.astimezone(UTC) if row.at else datetime.now(UTC)
        what = f"{row.topic:<20} {row.batch_seq or '':>6}  {row.state:<9}  {where:<28} {counts}{quarantined}"
        lines.append(f"{at:%m-%d %H:%M:%S}  {what}".rstrip())
        if row.error:
            lines.append(f"    {row.error}")
        if row.why:
            lines.append(f"    {row.who or 'unknown'}: {row.why}")
    return lines
