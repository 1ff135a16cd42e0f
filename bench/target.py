"""(b) 10,000 records into a table of 1 M and of 16 M rows: does a small batch feel how large the table is?"""

from __future__ import annotations

import random
import statistics
from typing import Any

from bench import feed
from bench.lab import SCHEMA, Lab, contract, say

BATCH = 10_000
CASES = {
    "append": ("insert-only, new offsets", "append", 1.3),
    "recent": ("upsert, half new keys, half recent", "upsert", 1.3),
    "random": ("upsert, random keys", "upsert", 4.0),
}


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:  # noqa: ARG001
    """One driver per case and size; the figure is the median publish of the rounds after the first."""
    small, large, rounds = (100_000, 1_600_000, 3) if quick else (1_000_000, 16_000_000, 5)
    say(f"\n(b) publish of {BATCH:,} records into {small:,} and {large:,} rows")
    for case, (words, mode, target) in CASES.items():
        seconds = []
        for size in (small, large):
            topic = f"{case}-{size}"
            feed.create(lab.broker.bootstrap, [topic])
            lake = lab.lake()
            contract(lake, "db.target", topic, mode=mode)
            found = lab.drive(lake, "bench.target", case=case, topic=topic, size=size, rounds=rounds)
            lab.drop(lake)
            seconds.append(statistics.median(found[1:]))
            say(f"    {words:36} {size:12,} rows {seconds[-1]:6.2f} s   (rounds {', '.join(f'{s:.2f}' for s in found)})")
        say(f"    {words:36} ratio {seconds[1] / seconds[0]:.2f} (target at most {target})")


def main(case: str, topic: str, size: int, rounds: int) -> list[float]:
    """In the driver: fill the table, then send and publish a batch per round; returns the seconds of each publish."""
    import os

    from bench.spark import run, session

    spark = session()
    _fill(spark, topic, size)
    seconds = []
    pick = random.Random(7)  # noqa: S311
    for number in range(rounds):
        fresh = range(size + number * BATCH, size + (number + 1) * BATCH)
        if case == "random":
            keys = pick.sample(range(size), BATCH)
        elif case == "recent":
            keys = [*list(fresh)[::2], *pick.sample(range(size - 100_000 if size > 100_000 else 0, size), BATCH // 2)]
        else:
            keys = list(fresh)
        feed.send(os.environ["KAFKA_BOOTSTRAP_SERVERS"], topic, ((k, size + i) for i, k in enumerate(keys)))
        seconds.append(run(spark, f"round-{number}")["publish"])
    rows = spark.table("lake.db.target").count()
    new = {"append": rounds * BATCH, "recent": rounds * BATCH // 2, "random": 0}[case]
    if rows != size + new:
        raise RuntimeError(f"{rows} rows instead of {size + new}")
    return seconds


def _fill(spark: Any, topic: str, size: int) -> None:
    """Rows as publishing would have left them: files in key order, coordinates below the topic's first offset."""
    from sluice import broker, catalog, contracts, tables
    from sluice.model import PUBLISHED_THROUGH, Through, encode_through

    promise = contracts.load().table("db.target")
    tables.ensure_typed(catalog.load(), promise)
    state = broker.describe(broker.admin(), [topic])[topic]
    through = {topic: Through(0, state.topic_id, dict.fromkeys(state.watermarks, 0))}  # type: ignore[union-attr]
    rows = spark.range(0, size, 1, max(size // 1_000_000, 1)).selectExpr(
        "concat('order-', lpad(id, 10, '0')) AS id",
        "id AS n",
        "(id % 9973) + 0.25D AS amount",
        "timestamp_seconds(1704067200 + id % 10000000) AS at",
        "concat('note ', hex(xxhash64(id))) AS note",
        f"'{topic}' AS _kafka_topic",
        f"CAST(id % {feed.PARTITIONS} AS INT) AS _kafka_partition",
        f"CAST(id DIV {feed.PARTITIONS} AS BIGINT) - {size // feed.PARTITIONS + 1}L AS _kafka_offset",
        "timestamp_seconds(1704067200 + id % 10000000) AS _kafka_timestamp",
    )
    columns = [*SCHEMA.split(", ")]
    assert rows.columns[1 : 1 + len(columns)] == [c.split()[0] for c in columns]
    writer = rows.writeTo("lake.db.target").option(f"snapshot-property.{PUBLISHED_THROUGH}", encode_through(through))
    writer.option("distribution-mode", "none").append()
