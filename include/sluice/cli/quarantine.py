"""`sluice quarantine`: the quarantined records of a table, and why.

In: a table. Out: counts by error, and the newest records; their keys and values only if they are asked for.
"""

from __future__ import annotations

import argparse
import base64
from collections.abc import Mapping
from typing import Any

from sluice.cli import output
from sluice.cli.arguments import add_command, add_json, add_patience, add_table, load_contracts, positive_int


def add_commands(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "quarantine",
        _quarantine,
        "show a table's quarantined records: error, field, partition, offset",
        ["shop.orders", "shop.orders --limit 5 --show-values", "shop.orders --json --show-values"],
    )
    add_table(parser)
    parser.add_argument("--limit", type=positive_int, default=20, metavar="N", help="the newest N (default 20)")
    parser.add_argument(
        "--show-values",
        action="store_true",
        help="show keys and values (with --json headers too), bytes as base64: they may hold personal data",
    )
    add_json(parser)
    add_patience(parser)


def _quarantine(given: argparse.Namespace) -> int:
    from sluice.iceberg import availability, cursor, table_names, tables
    from sluice.pages import quarantine_summary
    from sluice.plan import resolve_topics

    catalog = availability.open_catalog(given.patience)
    with availability.translate_catalog_errors():
        contract = resolve_topics.resolve(load_contracts(), catalog, None).table(given.table)
        table = tables.load(catalog, table_names.typed(contract))
        published = cursor.read_table_cursor(table) if table else {}
        summary = quarantine_summary.read_quarantine(catalog, contract, published)
        rows = quarantine_summary.read_newest_records(catalog, contract, given.limit, with_values=given.show_values)
    records = [_record(row, with_values=given.show_values) for row in rows]
    errors = [
        {
            "error_class": g.error_class, "field": g.field or None, "records": g.records, "ranges": g.ranges,
            "waiting": g.waiting,
        }
        for g in summary.groups
    ]  # fmt: skip
    facts = {"table": contract.table, "errors": errors, "counted": summary.counted, "records": records}

    def text() -> None:
        if not errors:
            print(f"{contract.table} has no quarantined records.")
            return
        counts = [
            [g.label, g.field or "-", f"{g.records:,}", "not published yet" if g.waiting else "-"]
            for g in summary.groups
        ]
        output.print_table(["ERROR", "FIELD", "RECORDS", "BATCH"], counts, right=[2])
        if summary.counted:
            print(f"Counted among {summary.counted:,} records only.")
        print()
        head = ["TOPIC", "PARTITION", "OFFSET", "BATCH", "ERROR", "FIELD", "DETAIL"]
        cells = [[quarantine_summary.one_line(each[name]) for name in _SHOWN] for each in records]
        if given.show_values:
            head += ["KEY", "VALUE"]
            for cell, row in zip(cells, rows, strict=True):
                cell += [
                    quarantine_summary.one_line(quarantine_summary.shown(row.get(name))) for name in ("key", "value")
                ]
        output.print_table(head, cells, right=[1, 2, 3])

    output.show(given, facts, text)
    return 0


_SHOWN = ("topic", "partition", "offset", "batch", "error_class", "field", "error")


def _record(row: Mapping[str, Any], *, with_values: bool) -> dict[str, Any]:
    record = {
        "topic": row["_kafka_topic"],
        "partition": row["_kafka_partition"],
        "offset": row["_kafka_offset"],
        "batch": row["batch_seq"],
        **{name: row[name] for name in ("error_class", "field", "error", "quarantined_at")},
    }
    if with_values:
        for name in ("key", "value"):
            record |= _json_bytes(name, row.get(name))
        record["headers"] = [{"key": h["key"], **_json_bytes("value", h["value"])} for h in row.get("headers") or ()]
    return record


def _json_bytes(name: str, value: bytes | None) -> dict[str, str | None]:
    """Text as it is, other bytes as base64 under `<name>_base64`: the form that `contract test --file` reads."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
