"""(o) Upserts of random keys without maintenance, into a table of each format version: the publishing and reading."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from bench import feed
from bench.lab import Lab, contract, judge, say

BATCH, READS = 2_000, 4
VERSIONS = (2, 3)


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:
    """Publish batches to both tables in turn, and read each; the last rounds show what delete files cost.

    Args:
        lab: The place for measurements.
        quick: Use smaller tables and fewer rounds.
        records: The batches; 40 by default.
    """
    rows, rounds = (100_000, 4) if quick else (1_000_000, records or 40)
    lake = lab.lake()
    topics = [f"version-{each}" for each in VERSIONS]
    feed.create(lab.broker.bootstrap, topics)
    for version, topic in zip(VERSIONS, topics, strict=True):
        contract(lake, f"db.v{version}", topic, mode="upsert", group=f"v{version}", format_version=version)
    found = lab.drive(lake, "bench.versions", rows=rows, rounds=rounds)
    lab.drop(lake)
    say(f"\n(o) {rounds} upserts of {BATCH:,} random keys into {rows:,} rows without maintenance")
    medians = {}
    for version in VERSIONS:
        published, reads, size = (found[f"{what} {version}"] for what in ("publish", "read", "bytes"))
        last = statistics.median(published[-10:])
        medians[version] = last, statistics.median(reads)
        say(
            f"    version {version}  publish: all {sum(published):6.1f} s, median of the last ten {last:5.2f} s   "
            f"read: {medians[version][1]:5.2f} s   {size / 1e6:,.1f} MB"
        )
    for at, what in enumerate(("publish, last ten", "read")):
        judge(f"{what}: version 3 in version 2's", medians[3][at] / medians[2][at], most=1.0)


def main(rows: int, rounds: int) -> dict[str, Any]:
    """Fill the tables, publish batches to each in turn, and read them; return seconds and bytes."""
    import os

    from bench.spark import run, session
    from bench.target import fill
    from sluice.iceberg import catalog, snapshots

    spark, pick = session(), random.Random(7)
    found: dict[str, Any] = {}
    for version in VERSIONS:
        fill(spark, f"version-{version}", rows, table=f"db.v{version}")
    for number in range(rounds):
        for version in VERSIONS:
            keys = pick.sample(range(rows), BATCH)
            sent = ((key, rows + i) for i, key in enumerate(keys))
            feed.send(os.environ["KAFKA_BOOTSTRAP_SERVERS"], f"version-{version}", sent)
            seconds = run(spark, f"round-{number}", group=f"v{version}")["publish"]
            found.setdefault(f"publish {version}", []).append(seconds)
    for _ in range(READS):
        for version in VERSIONS:
            began = time.perf_counter()
            (row,) = spark.sql(f"select count(*), sum(n), sum(amount), max(note) from lake.db.v{version}").collect()
            found.setdefault(f"read {version}", []).append(time.perf_counter() - began)
            assert row[0] == rows, row
    with catalog.load() as lake:
        for version in VERSIONS:
            head = lake.load_table(f"db.v{version}").current_snapshot()
            found[f"bytes {version}"] = int(snapshots.summary(head)["total-files-size"]) if head else 0
    return found
