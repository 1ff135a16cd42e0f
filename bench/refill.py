"""(h) A backfill of a range that the table has in part, compared with the ingestion of as many records."""

from __future__ import annotations

import time
from typing import Any

from bench import feed
from bench.lab import Lab, contract, say

TOPIC = "refill"


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:
    """Ingest a backlog, delete a range and backfill it, then backfill it again; one driver per mode."""
    count = records or (200_000 if quick else 2_000_000)
    span = count // 4
    say(f"\n(h) backfill of {span:,} offsets of a table that took {count:,}, from Kafka")
    feed.create(lab.broker.bootstrap, [TOPIC])
    feed.backlog(lab.broker.bootstrap, TOPIC, count, max(count // 5 // 4, 1) * 4)
    for mode in ("append", "upsert"):
        lake = lab.lake()
        contract(lake, "db.target", TOPIC, mode=mode, limits={"records_per_batch": span, "seconds_per_run": 3000})
        found = lab.drive(lake, "bench.refill", span=span)
        lab.drop(lake)
        per_batch = found["ingest"] / 4
        say(f"    {mode:7} ingestion         {per_batch:6.1f} s per {span:,} records")
        for case in ("hole", "again"):
            ratio = found[case] / per_batch
            say(f"    {mode:7} backfill ({case:5})  {found[case]:6.1f} s   {ratio:.2f} x ingestion")


def main(span: int) -> dict[str, Any]:
    """Run in the driver; return the seconds of the ingestion, of a backfill of missing rows, and of the same again."""
    from bench.spark import run, session
    from sluice.backfill import backfill_outcome, backfill_plan, slice_run
    from sluice.backfill.ranges import Request
    from sluice.contract import folder as contract_folder
    from sluice.iceberg import catalog as iceberg_catalog
    from sluice.iceberg import table_names
    from sluice.ingest.context import Context
    from sluice.kafka import broker
    from sluice.plan.model import PlanInputs

    spark = session()
    spark.range(1000).selectExpr("sum(id)").collect()
    seconds = {"ingest": run(spark, "bench")["run"]}
    promises, lake, kafka = contract_folder.load_contracts(), iceberg_catalog.load(), broker.librdkafka_config()
    client = broker.make_admin_client(kafka)
    rows = spark.table("lake.db.target").count()
    each = span // feed.PARTITIONS
    ranges = {p: [each, 2 * each] for p in range(feed.PARTITIONS)}
    spark.sql(f"DELETE FROM lake.db.target WHERE _kafka_offset >= {each} AND _kafka_offset < {2 * each}").collect()
    for case in ("hole", "again"):
        began = time.monotonic()
        request = Request("db.target", ranges, why=case)
        found = backfill_plan.write_backfill(request, PlanInputs(promises, lake, client), who="bench", run_id=case)
        context = Context(spark, lake, table_names.catalog_name(), kafka, case)
        for seq in found.to_xcom()["slices"]:
            task = slice_run.SliceTask(found.table, found.topic, seq, found.origin)
            slice_run.run_slice(context, promises, client, task)
        outcomes = backfill_outcome.collect_outcome(promises, lake, found.to_xcom())
        if any(each["snapshot_id"] is None for each in outcomes):
            raise RuntimeError(str(outcomes))
        seconds[case] = time.monotonic() - began
        if (now := spark.table("lake.db.target").count()) != rows:
            raise RuntimeError(f"{now} rows instead of {rows}")
    return seconds
