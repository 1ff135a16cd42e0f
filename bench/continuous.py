"""(k) Freshness and price of a continuous group: a constant stream of records, and one application that stays."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import yaml

from bench import feed
from bench.lab import Lab, contract, judge, say

RATE = 1_000
EVERY = (2, 5, 10)
TARGET_EVERY, TARGETS = 5, {"p50": 8.0, "p99": 20.0, "cores": 0.5}
TOPIC = "stream"
WARM_S = 30.0
"""The first rounds compile and load classes; an application makes them once in `stay`."""


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:
    """Send records at a constant rate, and measure how long each took to be in the table.

    Args:
        lab: The place for measurements.
        quick: 60 s each instead of 300 s.
        records: The number of records per second; by default 1,000.
    """
    rate, seconds = records or RATE, 60.0 if quick else 300.0
    say(f"\n(k) continuous, {rate:,} records/s for {seconds:.0f} s")
    for mode in ("append", "upsert"):
        for every in EVERY:
            lake = lab.lake()
            topic = f"{TOPIC}-{mode}-{every}"
            feed.create(lab.broker.bootstrap, [topic])
            contract(lake, "db.stream", topic, mode=mode, maintenance={"snapshot_age": "1h"})
            settings = {"bench": {"schedule": "continuous", "continuous": {"every": f"{every}s"}}}
            (Path(lake["SLUICE_CONTRACTS"]) / "groups.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
            found = lab.drive(lake, "bench.continuous", topic=topic, rate=rate, seconds=seconds)
            lab.drop(lake)
            say(
                f"    {mode:7} every {every:2} s: record to row p50 {found['p50']:5.1f} s, p99 {found['p99']:5.1f} s, "
                f"most {found['most']:5.1f} s; {found['cores']:.2f} cores, {found['rounds']} commits, "
                f"driver and JVM {found['memory'][0]:.0f} MB, then {found['memory'][1]:.0f} MB"
            )
            if every == TARGET_EVERY:
                for name, most in TARGETS.items():
                    judge(f"{mode} every {every} s: {name}", found[name], most=most)


def main(topic: str, rate: int, seconds: float) -> dict[str, Any]:
    """Run the group's application beside a producer; return the latencies of records in seconds, and its price."""
    import multiprocessing
    import threading

    import psutil

    from bench.spark import cpu_seconds, session
    from sluice.contract import folder as contract_folder
    from sluice.iceberg import catalog as iceberg_catalog
    from sluice.iceberg import table_names
    from sluice.ingest import rounds
    from sluice.ingest.context import Context
    from sluice.kafka import broker

    spark = session()
    lake, kafka = iceberg_catalog.load(), broker.librdkafka_config()
    context = Context(spark, lake, table_names.catalog_name(), kafka, "bench")
    every = contract_folder.load_contracts().group("bench").settings.continuous.every
    bootstrap = os.environ["KAFKA_BOOTSTRAP_SERVERS"]
    total = WARM_S + seconds
    begins = time.time() + WARM_S
    producer = multiprocessing.get_context("spawn").Process(target=send, args=(bootstrap, topic, rate, total))
    producer.start()
    me = psutil.Process()
    burnt: list[float] = []
    memory: list[float] = []

    def sample() -> None:
        # The producer is a child too, and is not part of the price.
        burnt.append(cpu_seconds() - sum(psutil.Process(producer.pid).cpu_times()[:2]))
        parts = [me, *(c for c in me.children(recursive=True) if c.pid != producer.pid)]
        memory.append(sum(p.memory_info().rss for p in parts) / 1e6)

    threading.Timer(WARM_S, sample).start()
    threading.Timer(total - 1, sample).start()
    # Two more rounds, for the records that were sent last.
    term = rounds.Term(total + 2 * every.total_seconds() + 5)
    rounds.run(context, "bench", broker.make_admin_client(kafka), term)
    producer.join()
    found = sorted(latencies(lake.load_table("db.stream"), topic, begins, begins + seconds))
    return {
        "p50": found[len(found) // 2],
        "p99": found[len(found) * 99 // 100],
        "most": found[-1],
        "cores": (burnt[1] - burnt[0]) / (seconds - 1),
        "rounds": len(lake.load_table("db.stream").metadata.snapshots),
        "memory": memory,
    }


def send(bootstrap: str, topic: str, rate: int, seconds: float) -> None:
    """Send records at a constant rate, a hundredth of a second's worth at a time."""
    from confluent_kafka import Producer

    from bench.lab import value

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    began = time.monotonic()
    sent = 0
    while (passed := time.monotonic() - began) < seconds:
        while sent < passed * rate:
            producer.produce(topic, value(sent), key=feed.key(sent % 100_000), partition=sent % feed.PARTITIONS)
            sent += 1
        producer.poll(0)
        time.sleep(0.01)
    if remaining := producer.flush(60):
        raise RuntimeError(f"{remaining} records were not acknowledged")


def latencies(table: Any, topic: str, begins: float, ends: float) -> list[float]:
    """Return, for each record that was sent in a time, the seconds until its row could be read."""
    from confluent_kafka import Consumer, TopicPartition

    from sluice.batch import batches_from_summary
    from sluice.iceberg import snapshots

    consumer = Consumer({"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"], "group.id": "bench"})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(feed.PARTITIONS)])
    times: dict[tuple[int, int], float] = {}
    while found := consumer.consume(10_000, timeout=5.0):
        for record in found:
            times[record.partition(), record.offset()] = record.timestamp()[1] / 1000
    consumer.close()
    result = []
    for snapshot in table.metadata.snapshots:
        properties = snapshots.summary(snapshot)
        if properties.get("sluice.step") != "publish":
            continue
        seen = snapshots.visible_at(table.metadata, snapshot).timestamp()
        for batch in batches_from_summary(properties):
            for partition, offsets in batch.ranges.items():
                sent = (times[partition, each] for each in range(offsets.start, offsets.end))
                result += [seen - at for at in sent if begins <= at < ends]
    return result
