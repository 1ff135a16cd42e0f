"""(j) How the time of one run grows with records, partitions, tables and executors: the curves of docs/scale.md."""

from __future__ import annotations

import os
import time
from typing import Any

from bench import feed
from bench.lab import Lab, contract, say

RECORDS = (1_000_000, 5_000_000, 20_000_000, 50_000_000)
PARTITIONS = (1, 10, 100, 1000)
TABLES = (1, 10, 100, 1000)
RECORDS_PER_TABLE = 1_000
EXECUTORS = ("local-cluster[1,1,2048]", "local-cluster[2,1,2048]")
LIMITS = {"batches_per_run": 1000, "seconds_per_run": 3000}


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:
    """Run each case once, in a driver of its own; a first batch of 1,000 records per table is not counted.

    Args:
        lab: The place for measurements.
        quick: Leave out the cases that take longer than a minute.
        records: The greatest number of records; by default 50 M.
    """
    most = records or (100_000 if quick else RECORDS[-1])
    say(f"\n(j) one run, JSON records of 100 B, appends; up to {most:,} records")
    say(f"    {'records':>11} {'partitions':>10} {'tables':>6}  {'executors':24} {'seconds':>8} {'CPU':>6}")
    for count in sorted({min(count, most) for count in RECORDS}):
        _case(lab, count)
    unit = min(RECORDS[0], most)
    for partitions in PARTITIONS[: 2 if quick else None]:
        _case(lab, unit, partitions=partitions)
    for tables in TABLES[: 2 if quick else None]:
        _case(lab, RECORDS_PER_TABLE * tables, tables=tables, partitions=2)
    for executors in EXECUTORS:
        _case(lab, min(RECORDS[1], most), master=executors)


def _case(lab: Lab, records: int, *, partitions: int = feed.PARTITIONS, tables: int = 1, master: str = "") -> None:
    lake = lab.lake(tuned=not master)
    name = f"scale-{records}-{partitions}-{tables}-{len(master)}{master[14:15]}"
    topics = [f"{name}-{n:04d}" for n in range(tables)]
    for start in range(0, tables, 100):
        feed.create(lab.broker.bootstrap, topics[start : start + 100], partitions)
    for n, topic in enumerate(topics):
        contract(lake, f"db.t{n:04d}", topic, limits=LIMITS)
    found = lab.drive(
        lake, "bench.scale", topics=topics, records=records // tables, partitions=partitions, master=master
    )
    lab.drop(lake)
    if found["rows"] != records + RECORDS_PER_TABLE * tables:
        raise SystemExit(f"{name}: {found['rows']} rows instead of {records}")
    parts = ", ".join(f"{k} {v:.1f}" for k, v in found["parts"].items())
    say(
        f"    {records:11,} {partitions:10,} {tables:6,}  {master or 'in the driver':24} {found['seconds']:8.1f} "
        f"{found['cpu']:6.0f}   {parts}"
    )


def main(topics: list[str], records: int, partitions: int, master: str) -> dict[str, Any]:
    """Send records to each topic and run the group, in the driver; return its seconds and all rows.

    Args:
        topics: Existing and empty.
        records: Of each topic.
        partitions: Of each topic.
        master: Spark's; empty for that of the other measurements.
    """
    from bench.spark import cpu_seconds, run, session
    from sluice.iceberg import catalog as iceberg_catalog

    spark = session({"spark.master": master} if master else None)
    bootstrap = os.environ["KAFKA_BOOTSTRAP_SERVERS"]
    for count in (RECORDS_PER_TABLE, records):
        for topic in topics:
            feed.backlog(bootstrap, topic, count, count, partitions)
        began, burnt = time.monotonic(), cpu_seconds()
        parts = run(spark, f"run-{count}")
        seconds, cpu = time.monotonic() - began, cpu_seconds() - burnt
    lake = iceberg_catalog.load()
    rows = sum(
        int(lake.load_table(t).current_snapshot().summary["total-records"])  # type: ignore[union-attr,index]
        for t in lake.list_tables("db")
    )
    return {"seconds": seconds, "cpu": cpu, "parts": parts, "rows": rows}
