"""`sluice cost`: what tables cost by what was measured, and what another cadence or retention would cost.

In: the contracts, the catalog and the price file. Out: text or JSON.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sluice.cli import output
from sluice.cli.arguments import add_command, add_json, add_patience, add_table, open_tables, positive_int
from sluice.errors import RefusedError

if TYPE_CHECKING:
    from sluice.usage.estimate import Estimate
    from sluice.usage.prices import Prices
    from sluice.usage.table_costs import Used


def add_commands(commands: Any) -> None:
    """Add the command."""
    cost = add_command(
        commands,
        "cost",
        _cost,
        "what tables cost: CPU time, files and storage, in money too; what another cadence would cost",
        ["", "shop.orders --days 30", "shop.orders --what-if every=1m"],
    )
    add_table(cost, optional=True, about="one table, by day and step; all tables without it")
    cost.add_argument("--days", type=positive_int, default=7, metavar="N", help="look so many days back (default 7)")
    cost.add_argument(
        "--what-if",
        metavar="NAME=VALUE",
        help="estimate another every, staging_retention, snapshot_age or file_size, from the runs of these days",
    )
    add_json(cost)
    add_patience(cost)


def _cost(given: argparse.Namespace) -> int:
    from sluice.usage import estimate, overview, prices

    if given.what_if and not given.table:
        raise RefusedError("--what-if needs a table.", next_step="Name it: sluice cost TABLE --what-if every=1m.")
    tariff = prices.load_prices()
    with open_tables(given.patience) as (catalog, contracts):
        if not given.table:
            found = overview.read_all(catalog, contracts, given.days)
            facts = {name: overview.DayFacts.of(used, tariff) for name, used in sorted(found.items())}
            output.show(given, {"days": given.days, "tables": facts}, lambda: _print_all(found, tariff, given.days))
            return 0
        table = overview.read_table(catalog, contracts.table(given.table), contracts, given.days)
    if given.what_if:
        made = estimate.estimate(given.table, given.what_if, table.runs, table.held)
        money = made.monthly_price(tariff) if tariff else None
        output.show(given, {"estimate": made, "per_month": money}, lambda: _print_estimate(made, tariff))
        return 0
    output.show(given, table.facts(tariff), lambda: _print_table(table, tariff))
    return 0


def _print_all(found: dict[str, Used], tariff: Prices | None, days: int) -> None:
    if not found:
        print(f"No costs were recorded in the last {days} days.")
        return
    head = ["TABLE", "RECORDS", "CPU S", "BYTES ADDED", "FILES"] + ([tariff.currency] if tariff else [])
    rows = [
        [name, f"{u.records:,}", f"{u.cpu_seconds:,.1f}", f"{u.written_bytes + u.staged_bytes:,.0f}", f"{u.files:,.0f}"]
        + ([tariff.text(u.price(tariff)).rpartition(" ")[0]] if tariff else [])
        for name, u in sorted(found.items(), key=lambda each: -each[1].cpu_seconds)
    ]
    output.print_table(head, rows, right=range(1, len(head)))


def _print_table(table: Any, tariff: Prices | None) -> None:
    if not table.runs:
        print(f"No costs of {table.name} were recorded in the last {table.days} days.")
    else:
        steps = sorted({step for used in table.by_day.values() for step in used.cpu})
        head = ["DAY", "RECORDS", "CPU S", *(f"{step.upper()} S" for step in steps), "FILES"]
        head += [tariff.currency] if tariff else []
        rows = []
        for day, used in table.by_day.items():
            cells = [str(day), f"{used.records:,}", f"{used.cpu_seconds:,.1f}"]
            cells += [f"{used.cpu.get(step, 0.0):,.1f}" for step in steps] + [f"{used.files:,.0f}"]
            rows.append(cells + ([tariff.text(used.price(tariff)).rpartition(" ")[0]] if tariff else []))
        output.print_table(head, rows, right=range(1, len(head)))
    for each in table.held:
        month = f", {tariff.text(tariff.storage_month(each.stored))} a month" if tariff else ""
        print(f"{each.kind} {each.table}: {each.live:,} bytes live, {each.older:,} in older snapshots{month}")
    if table.orphans is not None:
        print(f"orphan files at the last clean-up: {table.orphans:,}")


def _print_estimate(made: Estimate, tariff: Prices | None) -> None:
    print(f"{made.table}, {made.assumption}: an estimate from {made.basis}")
    rows = [[f.name, _figure(f.now), _figure(f.then), f.how] for f in made.figures]
    output.print_table(["", "NOW", "THEN", "BECAUSE"], rows, right=[1, 2])
    if tariff and any(f.unit for f in made.figures):
        now, then = made.monthly_price(tariff)
        print(f"of these, a month: {tariff.text(now)} now, {tariff.text(then)} then")
    print(f"how sure: {made.sure}, because {made.why}" if made.sure == "low" else f"how sure: {made.sure} ({made.why})")
    output.print_lines(f"not included: {each}" for each in made.left_out)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == 0 or abs(value) >= 100 else f"{value:,.3g}"
