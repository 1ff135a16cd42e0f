"""(n) Whether the application of a continuous group stays as large as it is: memory, file descriptors and threads."""

from __future__ import annotations

import os
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from bench import feed
from bench.lab import Lab, contract, say

EVERY_S = 3
SAMPLE_S = 60.0
RATE = 100
TOPIC = "steady"
TABLES = {"db.steady": "append", "db.steady_now": "upsert"}
COLUMNS = ("minute", "rounds", "driver MB", "JVM MB", "heap MB", "Python objects", "files", "threads")


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:
    """Make rounds for 40 minutes, and print a line every few minutes.

    Args:
        lab: The place for measurements.
        quick: 3 minutes instead of 40.
        records: The number of records per second; by default 100.
    """
    seconds = 180.0 if quick else 2_400.0
    lake, rate = lab.lake(), records or RATE
    say(f"\n(n) continuous for {seconds / 60:.0f} min, every {EVERY_S} s, {rate:,} records/s into {len(TABLES)} tables")
    feed.create(lab.broker.bootstrap, [TOPIC])
    for table, mode in TABLES.items():
        contract(lake, table, TOPIC, mode=mode, maintenance={"snapshot_age": "1h"})
    settings = {"bench": {"schedule": "continuous", "continuous": {"every": f"{EVERY_S}s"}}}
    (Path(lake["SLUICE_CONTRACTS"]) / "groups.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    samples = lab.drive(lake, "bench.steady", rate=rate, seconds=seconds)
    lab.drop(lake)
    say("    " + " ".join(f"{name:>14}" for name in COLUMNS))
    for at in sorted({*range(0, len(samples), max(len(samples) // 12, 1)), len(samples) - 1}):
        say("    " + " ".join(f"{value:14,.0f}" for value in samples[at]))


def main(rate: int, seconds: float) -> list[list[float]]:
    """Run the group's application beside a producer and expiry; return samples with the values of `COLUMNS`."""
    import multiprocessing

    from bench.continuous import send
    from bench.spark import session
    from sluice.iceberg import catalog as iceberg_catalog
    from sluice.iceberg import table_names
    from sluice.ingest import rounds
    from sluice.ingest.context import Context
    from sluice.kafka import broker

    spark = session()
    kafka = broker.librdkafka_config()
    context = Context(spark, iceberg_catalog.load(), table_names.catalog_name(), kafka, "bench")
    bootstrap = os.environ["KAFKA_BOOTSTRAP_SERVERS"]
    spawn = multiprocessing.get_context("spawn")
    beside = [
        spawn.Process(target=send, args=(bootstrap, TOPIC, rate, seconds), daemon=True),
        spawn.Process(target=expire, args=(seconds,), daemon=True),
    ]
    for each in beside:
        each.start()
    samples: list[list[float]] = []
    threading.Thread(target=sample, args=(spark, samples), daemon=True).start()
    rounds.run(context, "bench", broker.make_admin_client(kafka), rounds.Term(seconds))
    return samples


def sample(spark: Any, samples: list[list[float]]) -> None:
    """Add a sample a minute. The JVM collects its garbage first; what is left is in use."""
    import gc

    import psutil

    from sluice.iceberg import catalog as iceberg_catalog
    from sluice.ledger.offsets_table import Ledger

    me = psutil.Process()
    (jvm,) = (each for each in me.children(recursive=True) if each.name() == "java")
    beans = spark._jvm.java.lang.management.ManagementFactory
    began = time.monotonic()
    while True:
        time.sleep(SAMPLE_S)
        spark._jvm.System.gc()
        heap = beans.getMemoryMXBean().getHeapMemoryUsage().getUsed()
        made = Ledger(iceberg_catalog.load()).planned_batches("bench")
        sizes = [each.memory_info().rss for each in (me, jvm)]
        samples.append(
            [
                (time.monotonic() - began) / 60,
                len(made.get(TOPIC, ())),
                *(each / 1e6 for each in (*sizes, heap)),
                len(gc.get_objects()),
                me.num_fds() + jvm.num_fds(),
                me.num_threads() + jvm.num_threads(),
            ]
        )
        print("sample", [round(each) for each in samples[-1]], flush=True)


def expire(seconds: float) -> None:
    """Keep two minutes of snapshots, as maintenance does in its own application."""
    from contextlib import suppress

    from pyiceberg.exceptions import CommitFailedException

    from sluice.iceberg import catalog as iceberg_catalog
    from sluice.iceberg import table_names

    catalog = iceberg_catalog.load()
    ends = time.monotonic() + seconds
    names = [*TABLES, table_names.staging(TOPIC), ("sluice", "offsets")]
    while time.monotonic() < ends:
        time.sleep(30)
        for name in names:
            with suppress(CommitFailedException):
                older = datetime.now() - timedelta(minutes=2)  # noqa: DTZ005 - as PyIceberg wants it
                catalog.load_table(name).maintenance.expire_snapshots().older_than(older).commit()
