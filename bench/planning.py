"""(d) Planning 100 tables of 100 topics without a JVM: the cost of a run that finds nothing to do."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from bench import feed
from bench.lab import Lab, contract, say

TABLES = 100
MANY, STATUS_TARGET_S = 400, 2.0
RUNS = 300
EVERY = timedelta(minutes=5)
YEAR = timedelta(days=365) // EVERY
# PyIceberg measures the size in memory: this is a megabyte of Parquet, as rewrites of Sluice's own tables leave it.
FILE = 32 << 20


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:
    """Plan one group without and with a year of history, and twenty groups; the first plan creates the tables.

    Args:
        lab: The place for measurements.
        quick: Use a month of history.
        records: The number of tables; then only twenty groups are measured, with the history of up to 400 tables.
    """
    tables = records or TABLES
    say(f"\n(d) planning {tables} tables of {tables} topics{'' if records else ' (target: under 5 s)'}")
    topics = [f"plan-{n:03d}" for n in range(tables)]
    for start in range(0, tables, TABLES):
        feed.create(lab.broker.bootstrap, topics[start : start + TABLES], 2)
    history = YEAR // 12 if quick else YEAR
    some = ((20, history if tables <= MANY else 0),)
    for groups, batches in some if records else ((1, 0), (20, 0), (1, history)):
        lake = lab.lake()
        for n, topic in enumerate(topics):
            contract(lake, f"db.t{n:03d}", topic, group=f"g{n % groups}")
        found = lab.drive(lake, "bench.planning", topics=topics, batches=batches)
        lab.drop(lake)
        name = "one group" if groups == 1 else f"{groups} groups"
        name += f", {batches:,} batches of each topic in the ledger" if batches else ""
        say(f"    {name:10} " + ", ".join(f"{k} {v:.2f} s (CPU {cpu:.2f})" for k, (v, cpu) in found.items()))
        if tables == MANY:
            seconds = found["status"][0]
            verdict = "met" if seconds <= STATUS_TARGET_S else "missed"
            say(f"    status of {MANY} tables: {seconds:.1f} s, target {STATUS_TARGET_S:.0f} s: {verdict}")


def main(topics: list[str], batches: int) -> dict[str, tuple[float, float]]:
    """Plan all groups, with `batches` batches of each topic in the ledger; return wall and CPU seconds of each part."""
    from sluice.contract import folder as contract_folder
    from sluice.iceberg import catalog as iceberg_catalog
    from sluice.kafka import broker
    from sluice.ledger.ledger_rows import LedgerRow, LedgerState
    from sluice.ledger.offsets_table import Ledger
    from sluice.plan import plan
    from sluice.plan.model import PlanInputs
    from sluice.status import status

    seconds: dict[str, tuple[float, float]] = {}
    send(topics)
    began = time.monotonic(), time.process_time()

    def lap(name: str) -> None:
        nonlocal began
        now = time.monotonic(), time.process_time()
        seconds[name] = now[0] - began[0], now[1] - began[1]
        began = now

    promises = contract_folder.load_contracts()
    groups = list(promises.groups.values())
    lap("contracts")
    lake, client = iceberg_catalog.load(), broker.make_admin_client()
    lap("clients")
    for group in groups:
        plan.make_plan(group, PlanInputs(promises, lake, client))
    lap("plan new")
    plans = [plan.write_plan(group, PlanInputs(promises, lake, client), run_id="first") for group in groups]
    lap("create and write")
    if batches:
        plans = [renumber_batches(each, batches + 1) for each in plans]
        write_history(lake, plans, 2)
    stage(lake, plans)
    send(topics)
    began = time.monotonic(), time.process_time()
    ledger = Ledger(lake)
    for group in groups:
        plan.make_plan(group, PlanInputs(promises, lake, client, ledger))
    lap("plan again")
    plans = [plan.write_plan(group, PlanInputs(promises, lake, client), run_id="second") for group in groups]
    lap("write again")
    for n in range(RUNS):
        row = LedgerRow("another", LedgerState.SETTLED, batch_seq=n, partition=0, start_offset=n, end_offset=n + 1)
        ledger.append([row], run_id="bench")
    lap(f"{RUNS} appends to the ledger")
    for group in groups:
        plan.make_plan(group, PlanInputs(promises, lake, client, ledger))
    lap("plan after them")
    status.read_status(promises)
    lap("status")
    if not all(p.has_work for p in plans) or any(p.stops for p in plans):
        raise RuntimeError("a plan has no work or stops a table")
    return seconds


def send(topics: list[str]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"]})
    for topic in topics:
        for n in range(10):
            producer.produce(topic, b'{"n":1}', key=str(n), partition=n % 2)
    if producer.flush(60):
        raise RuntimeError("the broker did not acknowledge all records")


def renumber_batches(plan: Any, seq: int) -> Any:
    """Return the plan with another number for its batches."""
    topics = {name: replace(t, to_stage=(replace(t.to_stage[0], seq=seq),)) for name, t in plan.topics.items()}
    return replace(plan, topics=topics)


def write_history(lake: Any, plans: list[Any], first: int, every: timedelta = EVERY) -> None:
    """Write the ledger rows of each topic's batches from a first one to that of the plans, all as settled."""
    import pyarrow as pa

    from sluice.iceberg import compat
    from sluice.ledger.ledger_rows import LedgerRow, LedgerState, plan_rows
    from sluice.ledger.offsets_table import Ledger

    def batch_rows(batch: Any, at: datetime) -> list[LedgerRow]:
        rows = [
            r
            for s in (LedgerState.PLANNED, LedgerState.STAGED, LedgerState.SETTLED)
            for r in plan_rows(batch, s, {"db.t": batch.seq})
        ]
        rows.append(
            LedgerRow(
                batch.topic, LedgerState.PUBLISHED, batch.topic_id, batch.seq, table="db.t", records=20, seconds=1.0
            )
        )
        return [replace(r, at=at, run_id=f"scheduled__{at.isoformat()}") for r in rows]

    ledger = Ledger(lake)
    with ledger.table.transaction() as change:
        change.set_properties({"write.target-file-size-bytes": str(FILE)})
    schema = ledger.table.schema().as_arrow()

    def frame(rows: list[LedgerRow]) -> Any:
        records = [vars(r) | {"snapshots": list((r.snapshots or {}).items())} for r in rows]
        return pa.Table.from_pylist(records, schema=schema)

    newest = [t.to_stage[0] for each in plans for t in each.topics.values()]
    now = datetime.now(UTC)
    last = newest[0].seq
    past = (replace(newest[0], seq=n) for n in range(first, last))
    history = frame([row for b in past for row in batch_rows(b, now - every * (last - b.seq))])
    for batch in newest:
        ledger.refresh()
        field = schema.field("topic")
        names = pa.array([batch.topic] * len(history), field.type)
        data = history.set_column(schema.get_field_index(field.name), field, names)
        compat.with_current_snapshot_only(ledger.table).append(pa.concat_tables([data, frame(batch_rows(batch, now))]))


def stage(lake: Any, plans: list[Any]) -> None:
    """Write the snapshots that a run would write, without rows, so that the next plan has history to read."""
    from sluice.batch import PUBLISHED_THROUGH, PublishedOffsets, encode_published_through
    from sluice.iceberg import table_names, tables

    for each in plans:
        last = {}
        for topic, topic_plan in each.topics.items():
            staging = tables.load(lake, table_names.staging(topic))
            for batch in topic_plan.to_stage:
                _commit(staging, batch.properties())
                last[topic] = batch
        for table_plan in each.tables.values():
            typed = tables.load(lake, table_names.typed(table_plan.contract))
            batches = [last[topic] for topic in table_plan.contract.topics]
            through = {b.topic: PublishedOffsets(b.seq, b.topic_id, b.next_offsets) for b in batches}
            properties = {**batches[-1].properties(), PUBLISHED_THROUGH: encode_published_through(through)}
            _commit(typed, properties)


def _commit(table: Any, properties: dict[str, str]) -> None:
    from sluice.iceberg import compat

    data = table.schema().as_arrow().empty_table()
    compat.with_current_snapshot_only(table).append(data, snapshot_properties=properties)
