"""(d) Planning 100 tables of 100 topics, without a JVM: what a scheduler pays before it knows whether there is work."""

from __future__ import annotations

import time
from typing import Any

from bench import feed
from bench.lab import Lab, contract, say

TABLES = 100
RUNS = 300


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:  # noqa: ARG001
    """All in one group, and in twenty groups of five; the first plan, which creates the tables, and a later one."""
    say(f"\n(d) planning {TABLES} tables of {TABLES} topics (target: under 5 s)")
    topics = [f"plan-{n:03d}" for n in range(TABLES)]
    feed.create(lab.broker.bootstrap, topics, 2)
    for groups in (1, 20):
        lake = lab.lake()
        for n, topic in enumerate(topics):
            contract(lake, f"db.t{n:03d}", topic, group=f"g{n % groups}")
        found = lab.drive(lake, "bench.planning", topics=topics)
        lab.drop(lake)
        words = "one group" if groups == 1 else f"{groups} groups"
        say(f"    {words:10} " + ", ".join(f"{k} {v:.2f} s (CPU {cpu:.2f})" for k, (v, cpu) in found.items()))


def main(topics: list[str]) -> dict[str, tuple[float, float]]:
    """In a process without a JVM: the seconds of each part, over all groups."""
    import os

    from confluent_kafka import Producer

    from sluice import broker, catalog, contracts, plan
    from sluice.ledger import Ledger, Row, State

    def send() -> None:
        producer = Producer({"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"]})
        for topic in topics:
            for n in range(10):
                producer.produce(topic, b'{"n":1}', key=str(n), partition=n % 2)
        if producer.flush(60):
            raise RuntimeError("the broker did not take all records")

    send()
    seconds: dict[str, tuple[float, float]] = {}
    began = time.monotonic(), time.process_time()

    def lap(name: str) -> None:
        nonlocal began
        now = time.monotonic(), time.process_time()
        seconds[name] = now[0] - began[0], now[1] - began[1]
        began = now

    promises = contracts.load()
    groups = list(promises.groups.values())
    lap("contracts")
    lake, client = catalog.load(), broker.admin()
    lap("clients")
    for group in groups:
        plan.look(group, promises, lake, client, None)
    lap("look at new")
    plans = [plan.write(group, promises, lake, client, run_id="first") for group in groups]
    lap("create and write")
    _stage(lake, plans)
    send()
    began = time.monotonic(), time.process_time()
    ledger = Ledger(lake)
    for group in groups:
        plan.look(group, promises, lake, client, ledger)
    lap("look again")
    plans = [plan.write(group, promises, lake, client, run_id="second") for group in groups]
    lap("write again")
    for n in range(RUNS):
        row = Row("another", State.SETTLED, batch_seq=n, partition=0, start_offset=n, end_offset=n + 1)
        ledger.append([row], run_id="bench")
    lap(f"{RUNS} appends to the ledger")
    for group in groups:
        plan.look(group, promises, lake, client, ledger)
    lap("look then")
    if not all(p.has_work for p in plans) or any(p.stops for p in plans):
        raise RuntimeError("a plan was not what it should be")
    return seconds


def _stage(lake: Any, plans: list[Any]) -> None:
    """Leave the snapshots that a run would leave, empty of rows, so that the next plan has history to read."""
    from sluice import tables
    from sluice.model import PUBLISHED_THROUGH, Through, encode_through

    for each in plans:
        last = {}
        for topic, topic_plan in each.topics.items():
            staging = tables.load(lake, tables.staging(topic))
            for batch in topic_plan.to_stage:
                staging.append(staging.schema().as_arrow().empty_table(), snapshot_properties=batch.properties())
                last[topic] = batch
        for table_plan in each.tables.values():
            typed = tables.load(lake, tables.typed(table_plan.contract))
            batches = [last[topic] for topic in table_plan.contract.topics]
            through = {b.topic: Through(b.seq, b.topic_id, b.next_offsets) for b in batches}
            properties = {**batches[-1].properties(), PUBLISHED_THROUGH: encode_through(through)}
            typed.append(typed.schema().as_arrow().empty_table(), snapshot_properties=properties)
