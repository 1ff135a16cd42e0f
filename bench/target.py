"""(b) 10,000 records into a table of 1 M and of 16 M rows: whether a small batch's time depends on the table's size."""

from __future__ import annotations

import random
import statistics
from typing import Any

from bench import feed
from bench.lab import SCHEMA, Lab, contract, say

BATCH = 10_000
CASES = {
    "append": ("insert-only, new offsets", "append", 1.3),
    "append among others": ("the same, other writers added rows", "append", 1.3),
    "recent": ("upsert, half new keys, half recent", "upsert", 1.3),
    "random": ("upsert, random keys", "upsert", 4.0),
    "random after deletes": ("the same, as many keys were deleted", "upsert", None),
    "recent versions": ("history, half new keys, half recent", "history", None),
    "random versions": ("history, random keys", "history", None),
}


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:
    """Run each case in a driver, with both sizes; the result is the median publish of the rounds after the first.

    Args:
        lab: The place for measurements.
        quick: Use smaller tables and fewer rounds.
        records: The records of a batch; 10,000 by default.
    """
    sizes, rounds = ((100_000, 1_600_000), 3) if quick else ((1_000_000, 16_000_000), 6)
    batch = records or BATCH
    say(f"\n(b) publish of {batch:,} records into {sizes[0]:,} and {sizes[1]:,} rows")
    for case, (description, mode, target) in CASES.items():
        lake = lab.lake()
        topics = [f"{case.replace(' ', '-')}-{size}" for size in sizes]
        feed.create(lab.broker.bootstrap, topics)
        for size, topic in zip(sizes, topics, strict=True):
            contract(lake, f"db.rows_{size}", topic, mode=mode, group=f"rows_{size}")
        found = lab.drive(lake, "bench.target", case=case, topics=topics, sizes=sizes, rounds=rounds, batch=batch)
        lab.drop(lake)
        medians = [statistics.median(seconds[1:]) for seconds in found]
        for size, seconds, median in zip(sizes, found, medians, strict=True):
            each_round = ", ".join(f"{s:.2f}" for s in seconds)
            say(f"    {description:34} {size:12,} rows {median:6.2f} s   (rounds {each_round})")
        wanted = f"target at most {target}" if target else "no target"
        say(f"    {description:34} ratio {medians[1] / medians[0]:.2f} ({wanted})")


def main(case: str, topics: list[str], sizes: list[int], rounds: int, batch: int) -> list[list[float]]:
    """Fill the tables, then publish batches to each in turn; return the seconds of each publish."""
    import os

    from bench.spark import run, session

    spark = session()
    for topic, size in zip(topics, sizes, strict=True):
        fill(spark, topic, size, ours="others" not in case)
        if "deletes" in case:
            _fill_deletes(spark, topic, size)
    seconds: list[list[float]] = [[] for _ in sizes]
    pick = random.Random(7)
    for number in range(rounds):
        for each, (topic, size) in enumerate(zip(topics, sizes, strict=True)):
            keys = _keys(case, size, number, batch, pick)
            feed.send(os.environ["KAFKA_BOOTSTRAP_SERVERS"], topic, ((k, size + i) for i, k in enumerate(keys)))
            seconds[each].append(run(spark, f"round-{number}", group=f"rows_{size}")["publish"])
    for size in sizes:
        rows = spark.table(f"lake.db.rows_{size}").count()
        new = {"recent": rounds * batch // 2, "random": 0}.get(case.removesuffix(" after deletes"), rounds * batch)
        if rows != size + new:
            raise RuntimeError(f"{rows} rows instead of {size + new}")
    return seconds


def _keys(case: str, size: int, number: int, batch: int, pick: random.Random) -> list[int]:
    fresh = range(size + number * batch, size + (number + 1) * batch)
    if case.startswith("random"):
        return pick.sample(range(size), batch)
    if case.startswith("recent"):
        new = [size + number * batch // 2 + i for i in range(batch // 2)]
        return [*new, *pick.sample(range(max(size - 100_000, 0), size), batch // 2)]
    return list(fresh)


def fill(spark: Any, topic: str, size: int, *, ours: bool = True, table: str = "") -> None:
    """Write rows as publishing would: files in key order, coordinates below the topic's first offset.

    Args:
        spark: The session.
        topic: The topic in the rows' coordinates.
        size: The number of rows.
        ours: Whether the snapshot is marked as Sluice's; otherwise another writer has added the rows.
        table: The table; `db.rows_<size>` by default.
    """
    from sluice.batch import PUBLISHED_THROUGH, STEP, PublishedOffsets, encode_published_through
    from sluice.contract import folder as contract_folder
    from sluice.iceberg import catalog as iceberg_catalog
    from sluice.iceberg import tables
    from sluice.kafka import broker

    promise = contract_folder.load_contracts().table(table or f"db.rows_{size}")
    tables.ensure_typed(iceberg_catalog.load(), promise)
    state = broker.describe_topics(broker.make_admin_client(), [topic])[topic]
    through = {topic: PublishedOffsets(0, state.topic_id, dict.fromkeys(state.watermarks, 0))}  # type: ignore[union-attr]
    ends = ["CAST(NULL AS TIMESTAMP) AS until"] if promise.valid_to else []
    rows = spark.range(0, size, 1, max(size // 1_000_000, 1)).selectExpr(
        "concat('order-', lpad(id, 10, '0')) AS id",
        "id AS n",
        "(id % 9973) + 0.25D AS amount",
        "timestamp_seconds(1704067200 + id % 10000000) AS at",
        "concat('note ', hex(xxhash64(id))) AS note",
        *ends,
        f"'{topic}' AS _kafka_topic",
        f"CAST(id % {feed.PARTITIONS} AS INT) AS _kafka_partition",
        f"CAST(id DIV {feed.PARTITIONS} AS BIGINT) - {size // feed.PARTITIONS + 1}L AS _kafka_offset",
        "timestamp_seconds(1704067200 + id % 10000000) AS _kafka_timestamp",
    )
    columns = [*SCHEMA.split(", ")]
    assert rows.columns[1 : 1 + len(columns)] == [c.split()[0] for c in columns]
    writer = rows.writeTo(f"lake.{promise.table}").option(
        f"snapshot-property.{PUBLISHED_THROUGH}", encode_published_through(through)
    )
    if ours:
        writer = writer.option(f"snapshot-property.{STEP}", "publish")
    writer.option("distribution-mode", "none").append()


def _fill_deletes(spark: Any, topic: str, size: int) -> None:
    """Write rows of deleted keys into the deletes table; the keys are random and not in the typed table."""
    from sluice.contract import folder as contract_folder
    from sluice.iceberg import catalog as iceberg_catalog
    from sluice.iceberg import deletes_table, table_names
    from sluice.ingest import merge

    promise = contract_folder.load_contracts().table(f"db.rows_{size}")
    deletes_table.ensure_deletes_table(iceberg_catalog.load(), promise)
    rows = spark.range(0, size, 1, max(size // 1_000_000, 1)).selectExpr(
        f"concat('order-', lpad(pmod(xxhash64(id), {size}), 10, '0'), 'x') AS id",
        f"'{topic}' AS _kafka_topic",
        f"CAST(id % {feed.PARTITIONS} AS INT) AS _kafka_partition",
        f"CAST(id DIV {feed.PARTITIONS} AS BIGINT) - {size // feed.PARTITIONS + 1}L AS _kafka_offset",
        "timestamp_seconds(1704067200 + id % 10000000) AS _kafka_timestamp",
    )
    rows.select(*merge.deletes_columns(promise)).writeTo(
        table_names.spark_name("lake", table_names.deletes(promise))
    ).append()
