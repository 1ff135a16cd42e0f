"""Prints the demo's report: each table's offsets, rows, steps and problems, and the tasks of each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.demo.context import DemoContext
from sluice.demo.progress import Runs
from sluice.demo.source import SentRecords
from sluice.demo.verify import find_offset_differences
from sluice.iceberg import cursor, table_names
from sluice.kafka import broker
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.status import run_summary


def print_report(
    demo: DemoContext, runs: Runs, differences: Mapping[str, list[str]], sent: SentRecords
) -> dict[str, list[str]]:
    """Print the report.

    Args:
        demo: The stack and the contracts.
        runs: The task instances by run.
        differences: The differences from the input by table, for each table of the demo.
        sent: The records that were sent.

    Returns:
        All problems by table: the given differences, cursors that are not at the log end, quarantined records.
    """
    problems: dict[str, list[str]] = {}
    topics = {name: demo.contracts.table(name).topics[0] for name in differences}
    client = broker.make_admin_client({"bootstrap.servers": demo.bootstrap})
    states = broker.describe_topics(client, topics.values())
    steps = Ledger(demo.catalog).rows(dict.fromkeys(topics.values(), 0))
    print()
    for name, topic in topics.items():
        state = states[topic]
        if not isinstance(state, broker.TopicState):
            raise state
        done = [
            r for r in steps if r.topic == topic and r.seconds and (r.state == LedgerState.STAGED or r.table == name)
        ]
        print(f"{name} ({demo.contracts.table(name).mode}, from topic {topic})")
        _line("records sent", f"{sent.records[topic]:,}")
        problems[name] = [*differences[name], *_print_table(demo, name, state, done)]
        _line("checked", "equals the input in every row and value" if not problems[name] else "DIFFERS")
        for problem in problems[name]:
            print(f"  ! {problem}")
    print("\ntasks of the runs, seconds")
    for run, tasks in runs.items():
        print(f"  {run}: " + ", ".join(_task(t) for t in sorted(tasks, key=lambda t: str(t["start_date"] or "~"))))
    print()
    return problems


def _print_table(demo: DemoContext, name: str, state: broker.TopicState, steps: Sequence[LedgerRow]) -> list[str]:
    """Print a table's offsets, rows and steps; return its problems."""
    contract = demo.contracts.table(name)
    facts = run_summary.describe_table(demo.catalog, contract, {contract.topics[0]: state}, steps)
    for label, value in facts.items():
        _line(label, value)
    at = dict(cursor.read_table_cursor(demo.catalog.load_table(table_names.typed(contract)))[state.topic].next_offsets)
    problems = find_offset_differences(dict(state.watermarks), at)
    if (quarantined := facts["quarantined"]) != "0":
        problems.append(f"{quarantined} records are quarantined, although all records that were sent are valid")
    return problems


def _task(task: Mapping[str, Any]) -> str:
    seconds = f" {task['duration']:.1f}" if task["duration"] else ""
    return f"{task['task_id']}{seconds}" + ("" if task["state"] == "success" else f" {task['state']}")


def _line(name: str, value: str) -> None:
    print(f"  {name:17} {value}")
