"""The operator's commands: `gap accept`, `rollback` and `backfill plan`.

In: arguments and the contracts. Out: a preview; with `--yes`, the change.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from sluice import dag_ids
from sluice.errors import RefusedError
from sluice.operate import operator_input
from sluice.operate.operator_input import Decision

if TYPE_CHECKING:
    from sluice.contract.folder import Contracts

UNCHANGED = "Nothing was changed. Add --yes to apply it."


def add_commands(commands: Any, contracts: Callable[[], Contracts]) -> list[argparse.ArgumentParser]:
    """Add the commands; returns their parsers."""
    gap = commands.add_parser("gap", help="offsets that Kafka lost before they were read").add_subparsers(
        required=True, metavar="COMMAND"
    )
    accept = gap.add_parser("accept", help="skip them permanently, so that the topic continues after them")
    accept.add_argument("name", metavar="TABLE_OR_TOPIC", help="table or topic name; a table wins if both exist")
    accept.add_argument(
        "--ranges",
        type=_ranges,
        metavar="JSON",
        help='exactly these: {"0": [start, end]}; default: all that is lost now',
    )
    accept.set_defaults(run=partial(_gap_accept, contracts))
    back = commands.add_parser("rollback", help="roll a typed table back to a snapshot, and its offsets with it")
    back.add_argument("table", metavar="TABLE")
    to = back.add_mutually_exclusive_group(required=True)
    to.add_argument("--to-snapshot", type=int, metavar="ID", help="one of main's ancestors")
    to.add_argument("--before-run", metavar="RUN_ID", help="undo this run's commits and all later ones")
    back.add_argument(
        "--accept-loss",
        default="",
        metavar="TABLE",
        help="repeat the table's name to accept that rows missing in staging are lost",
    )
    back.set_defaults(run=partial(_rollback, contracts))
    add_decision(accept)
    add_decision(back)
    plan = commands.add_parser("backfill", help="replay history, or a range, into a table").add_subparsers(
        required=True, metavar="COMMAND"
    )
    shown = plan.add_parser("plan", help=f"show what DAG {dag_ids.BACKFILL} would do")
    shown.add_argument("table", metavar="TABLE")
    shown.add_argument("--topic", default="", metavar="TOPIC", help="if the table reads several")
    shown.add_argument("--ranges", type=_ranges, metavar="JSON", help='offsets: {"0": [start, end]}')
    shown.add_argument("--since", default="", metavar="TIME", help="from this time; default: the beginning")
    shown.add_argument(
        "--until", default="", metavar="TIME", help="to this time; default: the first offset of live ingestion"
    )
    shown.add_argument("--source", default="kafka", choices=["kafka", "staging", "quarantine"])
    shown.set_defaults(run=partial(_backfill_plan, contracts))
    return [accept, back, shown]


def add_decision(command: argparse.ArgumentParser) -> None:
    """Add the options of a command that changes something: the reason, and that it is to be done."""
    command.add_argument("--why", required=True, metavar="REASON", help="recorded in the ledger with your name")
    command.add_argument("--yes", action="store_true", help="apply it; without it, only show what would be done")


def _ranges(text: str) -> dict[int, tuple[int, int]]:
    try:
        return operator_input.parse_ranges_json(text)
    except RefusedError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _gap_accept(contracts: Callable[[], Contracts], given: argparse.Namespace) -> int:
    from sluice.iceberg import availability
    from sluice.kafka import broker as kafka_broker
    from sluice.operate import accept_gap
    from sluice.plan import resolve_topics
    from sluice.plan.model import PlanInputs

    known = contracts()
    client = kafka_broker.connect(given.patience)
    catalog = availability.open_catalog(given.patience)
    user = operator_input.current_user()
    with availability.translate_catalog_errors():
        known = resolve_topics.resolve(known, catalog, client)
        found = accept_gap.accept_gaps(
            given.name,
            given.ranges,
            PlanInputs(known, catalog, client),
            Decision(user, given.why, f"gap accept by {user}"),
            dry_run=not given.yes,
        )
    for gap in found:
        print(f"{'Accepted gap' if given.yes else 'Would skip permanently'}: {gap}")
    print("The next run continues after the gap." if given.yes else UNCHANGED)
    return 0


def _rollback(contracts: Callable[[], Contracts], given: argparse.Namespace) -> int:
    from sluice.iceberg import availability
    from sluice.ledger.offsets_table import Ledger
    from sluice.operate import rollback
    from sluice.operate.rollback_target import RestorePoint
    from sluice.plan import resolve_topics

    known = contracts()
    catalog = availability.open_catalog(given.patience)
    user = operator_input.current_user()
    with availability.translate_catalog_errors():
        known = resolve_topics.resolve(known, catalog, None)
        ledger = Ledger(catalog)
        point = RestorePoint(given.to_snapshot, given.before_run)
        found = rollback.preview_rollback(given.table, known, catalog, ledger, point)
        print("\n".join(found.lines()))
        if given.yes:
            decision = Decision(user, given.why, f"rollback by {user}")
            rollback.roll_back(found, catalog, ledger, decision, accept_loss=given.accept_loss)
    print("Rolled back. The next run publishes the batches marked `republish`." if given.yes else UNCHANGED)
    return 0


def _backfill_plan(contracts: Callable[[], Contracts], given: argparse.Namespace) -> int:
    from sluice.backfill import backfill_plan
    from sluice.backfill.ranges import Request, parse_time
    from sluice.iceberg import availability
    from sluice.kafka import broker as kafka_broker
    from sluice.ledger import offsets_table
    from sluice.ledger.offsets_table import Ledger
    from sluice.ledger.slices import Origin
    from sluice.plan import resolve_topics
    from sluice.plan.model import PlanInputs

    known = contracts()
    request = Request(
        given.table,
        given.ranges or {},
        parse_time(given.since, "since"),
        parse_time(given.until, "until"),
        Origin(given.source),
        given.topic,
    )
    client = kafka_broker.connect(given.patience) if request.needs_kafka else kafka_broker.make_admin_client()
    catalog = availability.open_catalog(given.patience)
    existing = offsets_table.load_ledger_table(catalog)
    with availability.translate_catalog_errors():
        known = resolve_topics.resolve(known, catalog, client if request.needs_kafka else None)
        ledger = Ledger(catalog, existing) if existing else None
        found = backfill_plan.plan_backfill(request, PlanInputs(known, catalog, client, ledger))
    print("\n".join(found.lines()))
    print(f"Nothing was changed. Start it with DAG {dag_ids.BACKFILL}.")
    return 0
