"""The operator's commands: `gap accept`, `publish-blocked`, `rollback`, `adopt`, `offsets`, and of what moves.

In: arguments and the contracts. Out: a preview; with `--yes`, the change.
"""

from __future__ import annotations

import argparse
import json
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
    next_offsets,
    open_tables,
    positive_seconds,
    ranges,
)
from sluice.errors import RefusedError
from sluice.operate import operator_input
from sluice.operate.hand_over import FORMS, write_offsets
from sluice.operate.operator_input import Decision

if TYPE_CHECKING:
    from sluice.operate.previous_writer import PreviousWriter
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
    take = _add_adopt(commands)
    topic = add_group(commands, "topic", "topics that continue on another cluster")
    moved = add_command(
        topic,
        "moved",
        _topic_moved,
        "continue a topic that was moved to another cluster with its name and its offsets",
        ["orders", "orders --why 'cluster link to the new region' --yes"],
    )
    moved.add_argument("topic", metavar="TOPIC", help="its name")
    renamed = add_command(
        commands,
        "rename",
        _rename,
        "rename a typed table, with its quarantine and its deletes table",
        ["shop.orders shop.sales", "shop.orders shop.sales --why 'new naming' --yes"],
    )
    add_table(renamed)
    renamed.add_argument("new", metavar="NEW_NAME", help="its namespace must exist")
    catalog = add_group(commands, "catalog", "exchanging the catalog")
    register = add_command(
        catalog,
        "register",
        _register,
        "register all tables in another catalog, by their present metadata files",
        ["--to new", "--to new --why 'from SQLite to REST' --yes"],
    )
    register.add_argument("--to", required=True, metavar="NAME", help="the catalog in PyIceberg's configuration")
    for each in (accept, back, blocked, take, moved, renamed, register):
        add_decision(each)
        add_json(each)
        add_patience(each)


def _add_adopt(commands: Any) -> argparse.ArgumentParser:
    """Add the commands that take a table over from another writer, and hand it back; returns the first."""
    take: argparse.ArgumentParser = add_command(
        commands,
        "adopt",
        _adopt,
        "continue a table that another writer has filled, at the offsets where it stopped",
        [
            "shop.orders --connector orders-sink",
            "shop.orders --consumer-group orders-job",
            "shop.orders --checkpoint s3://bucket/checkpoints/orders --why 'moves to Sluice' --yes",
        ],
    )
    add_table(take)
    where = take.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--connector", metavar="NAME", help="a connector of Iceberg's sink for Kafka Connect, which is stopped"
    )
    where.add_argument(
        "--consumer-group", metavar="GROUP", help="a consumer group without members; not that of a Flink job"
    )
    where.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        help="the checkpoint of a Structured Streaming query, or a Flink job's savepoint",
    )
    where.add_argument(
        "--offsets",
        type=next_offsets,
        metavar="JSON",
        help='the first offsets that it has not written: {"topic": {"0": 1200}}',
    )
    take.add_argument(
        "--control-topic", default="control-iceberg", metavar="TOPIC", help="of the connector (default %(default)s)"
    )
    take.add_argument(
        "--accept-unchecked-keys",
        action="store_true",
        help="of a large table in mode upsert: you have checked that no key is in it twice",
    )
    take.add_argument(
        "--watch",
        type=positive_seconds,
        default=10.0,
        metavar="SECONDS",
        help="with --yes: the writer's offsets must stand still for so long (default %(default)g)",
    )
    give = add_command(
        commands,
        "offsets",
        _offsets,
        "print the offsets at which another system, or another topic, continues a table",
        ["shop.orders --as connect", "shop.orders --as group >offsets.csv", "shop.orders --in-topic eu.orders"],
    )
    add_table(give)
    form = give.add_mutually_exclusive_group()
    form.add_argument(
        "--in-topic",
        metavar="TOPIC",
        help="a topic of the configured cluster that has copies of the records: its offsets, as `start` of a contract",
    )
    form.add_argument(
        "--as",
        dest="form",
        default="group",
        choices=sorted(FORMS),
        help="group (default): for kafka-consumer-groups.sh --reset-offsets --from-file; connect: the body of PATCH "
        "/connectors/NAME/offsets; spark: startingOffsets; flink: scan.startup.specific-offsets",
    )
    add_patience(give)
    return take


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


def _adopt(given: argparse.Namespace) -> int:
    from sluice.kafka import broker as kafka_broker
    from sluice.operate import adopt, connect_sink, flink_job, previous_writer
    from sluice.plan.model import PlanInputs

    user = operator_input.current_user()
    client = kafka_broker.connect(given.patience)
    with open_tables(given.patience) as (catalog, known):

        def read() -> PreviousWriter:
            if given.offsets is not None:
                return previous_writer.PreviousWriter("offsets given by hand", given.offsets)
            base = adopt.load_table(given.table, known, catalog)
            if given.consumer_group:
                flink_job.check_not_flink(base)
                connect_sink.check_not_connect(base)
                return previous_writer.read_consumer_group(client, given.consumer_group)
            if given.connector:
                return connect_sink.read_connector(client, base, given.connector, given.control_topic)
            if flink_job.is_savepoint(given.checkpoint, catalog.properties):
                return flink_job.read_savepoint(base, given.checkpoint, catalog.properties)
            return previous_writer.read_checkpoint(base, given.checkpoint, catalog.properties)

        writer = previous_writer.read_stopped(read, given.watch) if given.yes else read()
        inputs = PlanInputs(known, catalog, client)
        found = adopt.preview_adoption(given.table, inputs, writer, accept_unchecked_keys=given.accept_unchecked_keys)
        if not given.json:
            output.print_lines(found.lines())
        if given.yes:
            adopt.adopt(found, catalog, Decision(user, given.why, f"adopt by {user}"))
    facts = {
        "applied": given.yes,
        "table": found.table,
        "writer": writer.name,
        "offsets": {topic: each.next_offsets for topic, each in found.published.items()},
        "lost": found.lost(),
        "columns": found.staged.descriptions,
    }
    done = "Adopted. The next run continues at these offsets."
    output.show(given, facts, lambda: print(done if given.yes else UNCHANGED))
    return 0


def _topic_moved(given: argparse.Namespace) -> int:
    from sluice.kafka import broker as kafka_broker
    from sluice.operate import moved_topic

    user = operator_input.current_user()
    client = kafka_broker.connect(given.patience)
    with open_tables(given.patience) as (catalog, _):
        found = moved_topic.compare_offsets(given.topic, catalog, client)
        if given.yes:
            moved_topic.continue_topic(found, catalog, Decision(user, given.why, f"topic moved by {user}"))

    def text() -> None:
        output.print_lines(found.lines())
        print("The next run continues at the same offsets." if given.yes else UNCHANGED)

    facts = {"applied": given.yes, "topic": given.topic, "topic_id": found.topic_id, "compared": found.compared}
    output.show(given, facts, text)
    return 0


def _rename(given: argparse.Namespace) -> int:
    from sluice.operate import rename_table

    user = operator_input.current_user()
    with open_tables(given.patience) as (catalog, known):
        found = rename_table.preview_renaming(given.table, given.new, known, catalog)
        if given.yes:
            rename_table.rename(found, catalog, Decision(user, given.why, f"rename by {user}"))

    def text() -> None:
        output.print_lines(found.lines())
        print(f"Renamed. Put {found.new} into the contract." if given.yes else UNCHANGED)

    moved = {".".join(old): ".".join(new) for old, new in found.moves}
    output.show(given, {"applied": given.yes, "renamed": moved, "topics": found.topics}, text)
    return 0


def _register(given: argparse.Namespace) -> int:
    from sluice.iceberg import catalog as catalogs
    from sluice.operate import register_tables

    user = operator_input.current_user()
    with open_tables(given.patience) as (catalog, known), catalogs.load(given.to) as other:
        found = register_tables.find_tables(known, catalog, other)
        if given.yes:
            register_tables.register(found, catalog, other, Decision(user, given.why, f"catalog register by {user}"))

    def text() -> None:
        output.print_lines(found.lines())
        print(f"Registered. Set SLUICE_CATALOG={given.to}." if given.yes else UNCHANGED)

    facts = {"applied": given.yes, "missing": [".".join(each) for each in found.missing]}
    output.show(given, {**facts, "differing": [".".join(each) for each in found.differing]}, text)
    return 0


def _offsets(given: argparse.Namespace) -> int:
    from sluice.iceberg import cursor
    from sluice.kafka import broker as kafka_broker
    from sluice.operate import adopt, moved_topic

    with open_tables(given.patience) as (catalog, known):
        if given.in_topic:
            client = kafka_broker.connect(given.patience)
            found = moved_topic.find_offsets(given.table, known, catalog, client, given.in_topic)
            print(f"topic: {json.dumps(given.in_topic)}\nstart: {{{', '.join(f'{p}: {o}' for p, o in found.items())}}}")
            return 0
        published = cursor.read_table_cursor(adopt.load_table(given.table, known, catalog))
    if not published:
        raise RefusedError("Nothing was published to the table.", table=given.table)
    print(write_offsets({topic: each.next_offsets for topic, each in published.items()}, given.form))
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
