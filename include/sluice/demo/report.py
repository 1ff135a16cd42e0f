"""The demo's summary: per table where it stands, what is wrong with it, and how long each step took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyiceberg.catalog import Catalog

from sluice.batch import PUBLISHED_THROUGH, RANGES
from sluice.contract.folder import Contracts
from sluice.demo.progress import Runs
from sluice.demo.source import Sent
from sluice.demo.verify import offsets_differ
from sluice.iceberg import cursor, snapshots, table_names, tables
from sluice.kafka import broker
from sluice.ledger.offsets_table import Ledger, State
from sluice.offsets import encode_offsets


def report(
    contracts: Contracts,
    catalog: Catalog,
    bootstrap: str,
    runs: Runs,
    differences: Mapping[str, list[str]],
    sent: Sent,
    names: Iterable[str],
) -> dict[str, list[str]]:
    """Print the summary.

    Returns:
        Per table all that is wrong: the given differences, and cursors that are not at the end of their topic.
    """
    wrong: dict[str, list[str]] = {}
    topics = {name: contracts.table(name).topics[0] for name in names}
    states = broker.describe(broker.admin({"bootstrap.servers": bootstrap}), topics.values())
    ledger = Ledger(catalog)
    steps = ledger.rows(dict.fromkeys(topics.values(), 0))
    print()
    for name, topic in topics.items():
        contract = contracts.table(name)
        table = catalog.load_table(table_names.typed(contract))
        state = states[topic]
        if not isinstance(state, broker.TopicState):
            raise state
        at = dict(cursor.published(table)[topic].next_offsets)
        carrier = cursor.carrier(table, PUBLISHED_THROUGH)
        rejected = tables.load(catalog, table_names.quarantine(contract))
        ends = {p: r.end for p, r in state.watermarks.items()}
        wrong[name] = [*differences.get(name, []), *offsets_differ(dict(state.watermarks), at)]
        quarantined = rejected.scan().count() if rejected else 0
        if quarantined:
            wrong[name].append(f"{quarantined} records are in quarantine, and all that were sent are good")
        snapshot_id = carrier.snapshot_id if carrier else None
        print(f"{name} ({contract.mode}, from topic {topic})")
        _line("records sent", f"{sent.records[topic]:,}")
        _line("broker ends at", encode_offsets(ends))
        _line("cursor", encode_offsets(at))
        _line("lag", f"{sum(ends.values()) - sum(at.get(p, 0) for p in ends):,} records")
        _line("rows", f"{table.scan().count():,}")
        _line(
            "snapshot", f"{snapshot_id} holds offsets {snapshots.summary(carrier).get(RANGES)}" if carrier else "none"
        )
        _line("quarantined", f"{quarantined:,}")
        done = [r for r in steps if r.topic == topic and r.seconds and (r.state == State.STAGED or r.table == name)]
        _line("steps", ", ".join(f"batch {r.batch_seq} {r.state} in {r.seconds:.1f} s" for r in done))
        _line("checked", "equals the input in every row and value" if not wrong[name] else "DIFFERS")
        for problem in wrong[name]:
            print(f"  ! {problem}")
    print("\ntasks of the runs, seconds")
    for run, tasks in runs.items():
        print(f"  {run}: " + ", ".join(_task(t) for t in sorted(tasks, key=lambda t: str(t["start_date"] or "~"))))
    print()
    return wrong


def _task(task: Mapping[str, Any]) -> str:
    seconds = f" {task['duration']:.1f}" if task["duration"] else ""
    return f"{task['task_id']}{seconds}" + ("" if task["state"] == "success" else f" {task['state']}")


def _line(name: str, value: str) -> None:
    print(f"  {name:15} {value}")
