"""The operator's commands: `sluice gap accept`, `sluice publish-blocked` and `sluice rollback`.

In: arguments and the contracts. Out: a preview; with `--yes`, the change.
"""

from __future__ import annotations

import argparse
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
    load_contracts,
    open_tables,
    ranges,
)
from sluice.operate import operator_input
from sluice.operate.operator_input import Decision

if TYPE_CHECKING:
    from sluice.operate.rollback import Rollback


def add_commands(commands: Any) -> None:
    """Add the commands."""
    gap = add_group(commands, "gap", "offsets that Kafka lost before they were read")
    accept = add_command(
        gap,
        "accept",
        _gap_accept,
        "skip lost offsets permanently, so that the topic continues after them",
        ["shop.orders", "shop.orders --why 'retention was too short' --yes"],
    )
    accept.add_argument("name", metavar="TABLE_OR_TOPIC", help="table or topic name; a table wins if both exist")
    accept.add_argument(
        "--ranges",
        type=ranges,
        metavar="JSON",
        help='exactly these: {"0": [start, end]}; default: all that is lost now',
    )
    back = add_command(
        commands,
        "rollback",
        _rollback,
        "roll a typed table back to a snapshot, and its offsets with it",
        ["shop.orders --before-run RUN_ID", "shop.orders --to-snapshot ID --why 'wrong contract' --yes"],
    )
    add_table(back)
    to = back.add_mutually_exclusive_group(required=True)
    to.add_argument("--to-snapshot", type=int, metavar="ID", help="one of main's ancestors")
    to.add_argument("--before-run", metavar="RUN_ID", help="undo this run's commits and all later ones")
    back.add_argument(
        "--accept-loss",
        default="",
        metavar="TABLE",
        help="repeat the table's name to accept that rows missing in staging are lost",
    )
    blocked = add_command(
        commands,
        "publish-blocked",
        _publish_blocked,
        "let the next run publish a blocked batch as it is; its bad records stay quarantined",
        ["shop.orders", "shop.orders --why 'the producer sent test records' --yes"],
    )
    add_table(blocked)
    for each in (accept, back, blocked):
        add_decision(each)
        add_json(each)
        add_patience(each)


def _gap_accept(given: argparse.Namespace) -> int:
    from sluice.iceberg import availability
    from sluice.kafka import broker as kafka_broker
    from sluice.operate import accept_gap
    from sluice.plan import resolve_topics
    from sluice.plan.model import PlanInputs

    known = load_contracts()
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

    def text() -> None:
        for gap in found:
            print(f"{'Accepted gap' if given.yes else 'Would skip permanently'}: {gap}")
        print("The next run continues after the gap." if given.yes else UNCHANGED)

    output.show(given, {"applied": given.yes, "gaps": found}, text)
    return 0


def _publish_blocked(given: argparse.Namespace) -> int:
    from sluice.operate import publish_blocked

    user = operator_input.current_user()
    with open_tables(given.patience) as (catalog, known):
        found = publish_blocked.find_blocked(given.table, known, catalog)
        if given.yes:
            decision = Decision(user, given.why, f"publish-blocked by {user}")
            publish_blocked.publish_blocked(found, catalog, decision)

    def text() -> None:
        for batch in found:
            print(f"{'The next run publishes' if given.yes else 'Would publish'} {batch}")
        if not given.yes:
            print(UNCHANGED)

    batches = [{"topic": each.row.topic, "batch": each.row.batch_seq, "rejected": each.row.rejected} for each in found]
    output.show(given, {"applied": given.yes, "table": given.table, "batches": batches}, text)
    return 0


def _rollback(given: argparse.Namespace) -> int:
    from sluice.ledger.offsets_table import Ledger
    from sluice.operate import rollback
    from sluice.operate.rollback_target import RestorePoint

    user = operator_input.current_user()
    with open_tables(given.patience) as (catalog, known):
        ledger = Ledger(catalog)
        point = RestorePoint(given.to_snapshot, given.before_run)
        found = rollback.preview_rollback(given.table, known, catalog, ledger, point)
        if not given.json:
            output.print_lines(found.lines())
        if given.yes:
            decision = Decision(user, given.why, f"rollback by {user}")
            rollback.roll_back(found, catalog, ledger, decision, accept_loss=given.accept_loss)
    done = "Rolled back. The next run publishes the batches marked `republish`."
    output.show(given, _rollback_facts(found, applied=given.yes), lambda: print(done if given.yes else UNCHANGED))
    return 0


def _rollback_facts(found: Rollback, *, applied: bool) -> dict[str, Any]:
    return {
        "applied": applied,
        "table": found.table,
        "from_snapshot": found.base.metadata.current_snapshot_id,
        "to_snapshot": found.target.snapshot_id,
        "undone": [each.snapshot_id for each in found.undone],
        "republish": {topic: [each.batch.seq for each in staged] for topic, staged in found.republish.items()},
        "lines": found.lines(),
    }
