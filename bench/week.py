"""(m) A week of rounds every ten seconds on 20 tables: what a round's plan and settle, and the status, cost by then."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from bench import feed, planning
from bench.lab import Lab, contract, say

TABLES = 20
EVERY = timedelta(seconds=10)
DAYS = (1, 3, 7)
PER_DAY = timedelta(days=1) // EVERY
PER_HOUR = timedelta(hours=1) // EVERY
# The most that the contract's rule allows. Expiry and rewrites run each hour.
SNAPSHOT_AGE = EVERY * 5_000
FILE_FIELDS = (
    "content", "file_path", "file_format", "partition", "record_count", "file_size_in_bytes", "column_sizes",
    "value_counts", "null_value_counts", "nan_value_counts",
)  # fmt: skip
COMMITS = 3  # of a round to the ledger: the plan, what was done, and what is settled


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:
    """Write ledger and metadata as such a week would, right before the hourly maintenance, and measure each time.

    Args:
        lab: The place for measurements.
        quick: One and three hours instead of days.
        records: The number of tables; by default 20.
    """
    tables = records or TABLES
    rounds = [hours * PER_HOUR for hours in (1, 3)] if quick else [days * PER_DAY for days in DAYS]
    say(f"\n(m) a continuous group of {tables} tables, a round every {EVERY.seconds} s (target: flat)")
    for number in rounds:
        topics = [f"week-{number}-{n:02d}" for n in range(tables)]
        feed.create(lab.broker.bootstrap, topics, 2)
        lake = lab.lake()
        for n, topic in enumerate(topics):
            contract(lake, f"db.t{n:02d}", topic, maintenance={"snapshot_age": f"{SNAPSHOT_AGE.seconds // 60}m"})
        settings = {"bench": {"schedule": "continuous", "continuous": {"every": f"{EVERY.seconds}s"}}}
        (Path(lake["SLUICE_CONTRACTS"]) / "groups.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        found = lab.drive(lake, "bench.week", topics=topics, number=number)
        lab.drop(lake)
        parts = ", ".join(f"{name} {value:,.2f}".removesuffix(".00") for name, value in found.items())
        say(f"    after {number:,} rounds: {parts}")


def main(topics: list[str], number: int) -> dict[str, float]:
    """Return the CPU seconds of each part of the round after so many, of a status, and the sizes of metadata in kB."""
    from sluice.contract import folder as contract_folder
    from sluice.iceberg import catalog as iceberg_catalog
    from sluice.iceberg import refs, table_names
    from sluice.ingest import outcome, settle
    from sluice.kafka import broker
    from sluice.plan import plan
    from sluice.plan.model import PlanInputs
    from sluice.status import status

    planning.send(topics)
    promises = contract_folder.load_contracts()
    group = promises.group("bench")
    lake = iceberg_catalog.load()
    inputs = PlanInputs(promises, lake, broker.make_admin_client())
    plans = [planning.renumber_batches(plan.write_plan(group, inputs, run_id="first"), number)]
    planning.write_history(lake, plans, 2, EVERY)
    planning.stage(lake, plans)
    names = [table_names.typed(group.contracts[0]), table_names.staging(topics[0]), table_names.LEDGER]
    written = [*map(table_names.typed, group.contracts), *map(table_names.staging, topics)]
    for identifier in written:
        _add_snapshots(lake, identifier, min(number, SNAPSHOT_AGE // EVERY + PER_HOUR))
    _add_small_files(lake, number)
    _add_snapshots(lake, table_names.LEDGER, PER_HOUR * COMMITS)
    planning.send(topics)
    found: dict[str, float] = {}
    began = time.process_time()

    def lap(name: str) -> None:
        nonlocal began
        found[f"{name} s"], began = time.process_time() - began, time.process_time()

    planned = plan.write_plan(group, inputs, run_id="round")
    lap("plan and write")
    planning.stage(lake, [planned])
    for identifier in written:  # a fast-forward moves the tag in its own commit
        refs.repair_cursor_tag(lake, lake.load_table(identifier))
    began = time.process_time()
    settle.settle_round(group, lake, outcome.summarize_plan(planned), run_id="round")
    lap("settle")
    read = status.read_status(promises)
    lap("status")
    if not planned.has_work or read.unavailable or any(t.open_batches for t in read.tables):
        raise RuntimeError("the round was not planned, or not settled")
    for name, identifier in zip(("table", "staging", "ledger"), names, strict=True):
        table = lake.load_table(identifier)
        found[f"{name}'s metadata kB"] = len(table.io.new_input(table.metadata_location)) / 1000
    found["files of the ledger"] = len(list(lake.load_table(table_names.LEDGER).scan().plan_files()))
    return found


def _add_snapshots(lake: Any, identifier: tuple[str, ...], count: int) -> None:
    """Give a table the metadata of so many commits, one per round, of which the current snapshot is the last."""
    from pyiceberg.serializers import ToOutputFile
    from pyiceberg.table.snapshots import SnapshotLogEntry, Summary

    from sluice.batch import BATCH_SEQ

    table = lake.load_table(identifier)
    last = table.metadata.current_snapshot()
    seq = int(last.summary.additional_properties.get(BATCH_SEQ, count))
    snapshots = []
    for back in range(count - 1, 0, -1):
        summary = {**last.summary.additional_properties, BATCH_SEQ: str(seq - back)}
        changes = {
            "snapshot_id": last.snapshot_id - back,
            "parent_snapshot_id": last.snapshot_id - back - 1,
            "timestamp_ms": last.timestamp_ms - back * int(EVERY.total_seconds() * 1000),
            "summary": Summary(last.summary.operation, **summary),
        }
        snapshots.append(last.model_copy(update=changes))
    snapshots.append(last.model_copy(update={"parent_snapshot_id": last.snapshot_id - 1}))
    log = [SnapshotLogEntry(snapshot_id=s.snapshot_id, timestamp_ms=s.timestamp_ms) for s in snapshots]
    metadata = table.metadata.model_copy(update={"snapshots": snapshots, "snapshot_log": log})
    place = f"{table.location()}/metadata/99999-{last.snapshot_id}.metadata.json"
    ToOutputFile.table_metadata(metadata, table.io.new_output(place))
    lake.drop_table(identifier)
    lake.register_table(identifier, place)


def _add_small_files(lake: Any, number: int) -> None:
    """Give the ledger the small files that an hour of rounds leaves until a rewrite: entries of three real files.

    As in a round, planned and settled rows are of batches that readers have done with, and published ones are read.
    """
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile
    from pyiceberg.types import LongType

    from sluice.ledger.ledger_rows import LedgerRow, LedgerState
    from sluice.ledger.offsets_table import Ledger

    ledger = Ledger(lake)
    topics = sorted({str(task.file.partition[0]) for task in ledger.table.scan().plan_files()})
    for state in (LedgerState.PLANNED, LedgerState.PUBLISHED, LedgerState.SETTLED):
        ledger.append([LedgerRow(t, state, "id", 1, 0, 0, 1, table="db.t", records=1) for t in topics], run_id="bench")
    field = ledger.table.schema().find_field("batch_seq").field_id
    files = [t.file for t in ledger.table.scan().plan_files() if t.file.record_count == 1]
    with ledger.table.transaction() as change, change.update_snapshot().fast_append() as append:
        for back in range(1, PER_HOUR):
            bound = {field: to_bytes(LongType(), max(number - back, 1))}
            for file in files:
                values: dict[str, Any] = {name: getattr(file, name) for name in FILE_FIELDS}
                for name in ("lower_bounds", "upper_bounds"):
                    values[name] = getattr(file, name) | bound
                each = DataFile.from_args(**values)
                each.spec_id = file.spec_id
                append.append_data_file(each)
