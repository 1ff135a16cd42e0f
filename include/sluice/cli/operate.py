"""The operator's commands: `gap accept`, `rollback` and `backfill plan`. Without `--yes` they only tell."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from sluice.errors import RefusedError
from sluice.operate import operator_input

if TYPE_CHECKING:
    from sluice.contract.folder import Contracts

UNCHANGED = "Nothing was changed. Add --yes to do it."


def add(commands: Any, contracts: Callable[[], Contracts]) -> list[argparse.ArgumentParser]:
    """Add the commands; returns their parsers."""
    gap = commands.add_parser("gap", help="offsets that Kafka lost before they were read").add_subparsers(
        required=True, metavar="COMMAND"
    )
    accept = gap.add_parser("accept", help="give them up by name, so that the topic goes on behind them")
    accept.add_argument("name", metavar="TABLE_OR_TOPIC", help="what both are called means the table and its topics")
    accept.add_argument(
        "--ranges", type=_ranges, metavar="JSON", help='exactly these: {"0": [start, end]}; default: what is lost now'
    )
    accept.set_defaults(run=partial(_gap_accept, contracts))
    back = commands.add_parser("rollback", help="take a typed table back to a snapshot, its offsets with it")
    back.add_argument("table", metavar="TABLE")
    to = back.add_mutually_exclusive_group(required=True)
    to.add_argument("--to-snapshot", type=int, metavar="ID", help="one of main's ancestors")
    to.add_argument("--before-run", metavar="RUN_ID", help="undo this run's commits, and what came after them")
    back.add_argument(
        "--accept-loss", default="", metavar="TABLE", help="the table's name again, to lose what staging has lost"
    )
    back.set_defaults(run=partial(_rollback, contracts))
    for each in (accept, back):
        each.add_argument("--why", required=True, metavar="REASON", help="kept in the ledger, with your name")
        each.add_argument("--yes", action="store_true", help="do it; without it, only tell what would be done")
    plan = commands.add_parser("backfill", help="bring history, or a range again, into a table").add_subparsers(
        required=True, metavar="COMMAND"
    )
    shown = plan.add_parser("plan", help="show what DAG backfill would do")
    shown.add_argument("table", metavar="TABLE")
    shown.add_argument("--topic", default="", metavar="TOPIC", help="where several feed the table")
    shown.add_argument("--ranges", type=_ranges, metavar="JSON", help='offsets: {"0": [start, end]}')
    shown.add_argument("--since", default="", metavar="TIME", help="from this moment; default: the beginning")
    shown.add_argument("--until", default="", metavar="TIME", help="to it; default: where the live feed began")
    shown.add_argument("--source", default="kafka", choices=["kafka", "staging", "quarantine"])
    shown.set_defaults(run=partial(_backfill_plan, contracts))
    return [accept, back, shown]


def _ranges(text: str) -> dict[int, tuple[int, int]]:
    try:
        return operator_input.read(text)
    except RefusedError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _gap_accept(contracts: Callable[[], Contracts], given: argparse.Namespace) -> int:
    from sluice.iceberg import availability
    from sluice.kafka import broker as kafka_broker
    from sluice.operate import accept_gap
    from sluice.plan import resolve_topics

    known = contracts()
    client = kafka_broker.open_broker(given.patience)
    catalog = availability.open_catalog(given.patience)
    user = operator_input.user()
    with availability.catalog_errors():
        known = resolve_topics.resolve(known, catalog, client)
        found = accept_gap.accept(
            given.name,
            given.ranges,
            known,
            catalog,
            client,
            who=user,
            why=given.why,
            run_id=f"gap accept by {user}",
            dry_run=not given.yes,
        )
    for gap in found:
        print(f"{'Given up' if given.yes else 'Would be given up for good'}: {gap}")
    print("The next run goes on behind it." if given.yes else UNCHANGED)
    return 0


def _rollback(contracts: Callable[[], Contracts], given: argparse.Namespace) -> int:
    from sluice.iceberg import availability
    from sluice.ledger.offsets_table import Ledger
    from sluice.operate import rollback
    from sluice.plan import resolve_topics

    known = contracts()
    catalog = availability.open_catalog(given.patience)
    user = operator_input.user()
    with availability.catalog_errors():
        known = resolve_topics.resolve(known, catalog, None)
        ledger = Ledger(catalog)
        found = rollback.look(
            given.table, known, catalog, ledger, snapshot_id=given.to_snapshot, before_run=given.before_run
        )
        print("\n".join(found.lines()))
        if given.yes:
            rollback.roll_back(
                found,
                catalog,
                ledger,
                who=user,
                why=given.why,
                run_id=f"rollback by {user}",
                accept_loss=given.accept_loss,
            )
    print("Rolled back; the next run publishes again what is marked so." if given.yes else UNCHANGED)
    return 0


def _backfill_plan(contracts: Callable[[], Contracts], given: argparse.Namespace) -> int:
    from sluice.backfill import plan
    from sluice.backfill.ranges import Request, moment
    from sluice.iceberg import availability
    from sluice.kafka import broker as kafka_broker
    from sluice.ledger import offsets_table
    from sluice.ledger.offsets_table import Ledger
    from sluice.ledger.slices import Origin
    from sluice.plan import resolve_topics

    known = contracts()
    request = Request(
        given.table,
        given.ranges or {},
        moment(given.since, "since"),
        moment(given.until, "until"),
        Origin(given.source),
        given.topic,
    )
    client = kafka_broker.open_broker(given.patience) if request.needs_kafka else kafka_broker.admin()
    catalog = availability.open_catalog(given.patience)
    existing = offsets_table.existing_ledger_table(catalog)
    with availability.catalog_errors():
        known = resolve_topics.resolve(known, catalog, client if request.needs_kafka else None)
        found = plan.look(request, known, catalog, client, Ledger(catalog, existing) if existing else None)
    print("\n".join(found.lines()))
    print("Nothing was changed. DAG backfill does it.")
    return 0
