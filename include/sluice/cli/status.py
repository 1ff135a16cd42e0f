"""`sluice status`, `sluice tables`, `sluice at` and `sluice find`: where tables stand, now or at a time, or a record.

In: the contracts, Kafka and the catalog. Out: text or JSON; what did not answer is named, and the rest is shown.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

from sluice.cli import output
from sluice.cli.arguments import add_command, add_json, add_patience, add_table, load_contracts
from sluice.errors import exit_code


def add_commands(commands: Any) -> None:
    """Add the commands."""
    status = add_command(
        commands,
        "status",
        _status,
        "state of each table: committed offsets, lag, last commit, open problems",
        ["", "shop.orders", "--json"],
    )
    add_table(status, optional=True, about="one table, with its partitions")
    status.add_argument("--details", action="store_true", help="the partitions of every table")
    add_json(status)
    add_patience(status)
    tables = add_command(
        commands, "tables", _tables, "list the tables with their topic, mode, group and state", ["", "--json"]
    )
    add_json(tables)
    add_patience(tables)
    at = add_command(
        commands,
        "at",
        _at,
        "which offsets a table held at a time, and in which snapshot",
        ["shop.orders 2026-11-22T09:30:00Z"],
    )
    add_table(at)
    at.add_argument("time", metavar="TIME", help="with its time zone, like 2026-11-22T09:30:00Z")
    add_json(at)
    add_patience(at)
    find = add_command(
        commands,
        "find",
        _find,
        "what became of one record: its batch, snapshot and row, or why it has none",
        ["shop.orders --offset 0:4711", "shop.orders --key A-17"],
    )
    add_table(find)
    named = find.add_mutually_exclusive_group(required=True)
    named.add_argument("--offset", metavar="PARTITION:OFFSET", help="the record's place in its topic")
    named.add_argument(
        "--key", action="append", metavar="VALUE", help="of the identifier; once per column, in its order"
    )
    find.add_argument("--topic", help="the record's topic, if several feed the table")
    add_json(find)
    add_patience(find)


def _status(given: argparse.Namespace) -> int:
    from sluice.status import status, text

    only = [given.table] if given.table else None
    found = status.read_status(load_contracts(), only, patience=given.patience)
    as_text = text.as_text(found, details=bool(given.table) or given.details)
    facts = text.as_json(found) | {"unclaimed": found.unclaimed} if given.json else None
    output.show(given, facts, lambda: output.print_lines(as_text.split("\n")))
    return max((exit_code(e) for e in found.errors), default=0)


def _tables(given: argparse.Namespace) -> int:
    from sluice.status import status, verdicts

    contracts = load_contracts()
    found = status.read_status(contracts, patience=given.patience)
    facts = []
    for table in sorted(found.tables, key=lambda each: each.table):
        worst = verdicts.worst_verdict(table)
        topics = [topic.topic for topic in table.topics]
        facts.append(
            {
                **{name: getattr(table, name) for name in ("table", "mode", "group", "owner")},
                "topics": topics
                or list(contracts.tables[table.table].topics if table.table in contracts.tables else ()),
                "state": worst.word,
                "why": worst.why,
                "next_step": worst.todo,
            }
        )
    # A template has tables once its topics exist.
    templates = [
        {"table": name, "mode": c.mode, "group": c.group, "topic_pattern": c.topic_pattern.pattern}
        for name, c in contracts.templates.items()
        if c.topic_pattern
    ]

    def text() -> None:
        rows = [[f["table"], ", ".join(f["topics"]), f["mode"], f["group"], f["state"]] for f in facts]
        rows += [[t["table"], f"like {t['topic_pattern']}", t["mode"], t["group"], "template"] for t in templates]
        if rows:
            output.print_table(["TABLE", "TOPIC", "MODE", "GROUP", "STATE"], rows)
        else:
            print(f"There are no valid contracts in {contracts.folder}.")
        output.print_lines(f"! not available: {error}" for error in found.errors)

    unavailable = [str(error) for error in found.errors]
    output.show(given, {"tables": facts, "templates": templates, "unavailable": unavailable}, text)
    return max((exit_code(e) for e in found.errors), default=0)


def _at(given: argparse.Namespace) -> int:
    from sluice.backfill.ranges import parse_time
    from sluice.iceberg import availability, table_names, tables
    from sluice.plan import resolve_topics
    from sluice.status import text, timeline

    asked = parse_time(given.time, "TIME") or datetime.now(UTC)
    catalog = availability.open_catalog(given.patience)
    with availability.translate_catalog_errors():
        contract = resolve_topics.resolve(load_contracts(), catalog, None).table(given.table)
        table = tables.load(catalog, table_names.typed(contract))
        found = timeline.find_table_as_of(table, asked) if table else None
    output.show(given, found, lambda: print(text.table_as_of_text(given.table, asked, found)))
    return 0


def _find(given: argparse.Namespace) -> int:
    from sluice.iceberg import availability
    from sluice.kafka import broker
    from sluice.plan import resolve_topics
    from sluice.status import record_trace, text

    catalog = availability.open_catalog(given.patience)
    with availability.translate_catalog_errors():
        contract = resolve_topics.resolve(load_contracts(), catalog, None).table(given.table)
        record = (
            record_trace.find_by_key(catalog, contract, given.key)
            if given.key
            else record_trace.parse_coordinates(contract, given.offset, given.topic)
        )
        trace = None
        if record:
            trace = record_trace.ask_and_trace(catalog, contract, record, lambda: broker.connect(given.patience))
    output.show(given, trace, lambda: output.print_lines(text.record_trace_lines(given.table, trace)))
    return 0
