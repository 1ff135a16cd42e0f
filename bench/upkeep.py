"""(e) The effect of maintenance: reading a table of many small commits before and after it, and its size over time."""

from __future__ import annotations

import statistics
import time
from typing import Any

from bench import feed
from bench.lab import Lab, contract, say

TOPIC, TABLE = "upkeep", "db.upkeep"
ROWS = 2_000
EVERY = 100
# Ages of one second, so that maintenance finds after minutes what it usually finds after a week.
SETTINGS = {"snapshot_age": "1s", "staging_retention": "1s", "min_snapshots": 10}


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:  # noqa: ARG001
    """Make small commits like publishing does, in one driver, with maintenance every hundred commits."""
    first, total = (50, 200) if quick else (500, 2_000)
    say(f"\n(e) {first} commits of {ROWS:,} rows, read before and after maintenance; then {total:,} commits")
    lake = lab.lake()
    feed.create(lab.broker.bootstrap, [TOPIC])
    contract(lake, TABLE, TOPIC, maintenance=SETTINGS)
    found = lab.drive(lake, "bench.upkeep", first=first, total=total)
    lab.drop(lake)
    say(f"    {'':22} {'read':>8} {'assess':>8} {'data files':>11} {'manifests':>10} {'snapshots':>10}")
    for name, each in found["marks"]:
        say(
            f"    {name:22} {each['read']:6.2f} s {each['assess']:6.2f} s {each['data_files']:11,} "
            f"{each['manifests']:10,} {each['snapshots']:10,}"
        )
    before, after = (each["read"] for _, each in found["marks"][:2])
    say(f"    read {before / after:.1f} times faster after maintenance (target 5)")
    say(f"    maximum before a maintenance, over {total:,} commits: {found['most']}")


def main(first: int, total: int) -> dict[str, Any]:
    """Commit, maintain and measure in the driver."""
    from bench.spark import session
    from sluice.contract import folder as contract_folder
    from sluice.iceberg import catalog as iceberg_catalog
    from sluice.iceberg import table_names, tables
    from sluice.ingest.context import Context
    from sluice.kafka import broker
    from sluice.maintain import file_stats

    spark = session()
    promises, lake = contract_folder.load_contracts(), iceberg_catalog.load()
    table = tables.ensure_typed(lake, promises.table(TABLE))
    context = Context(spark, lake, table_names.catalog_name(), broker.librdkafka_config(), "bench")
    topic_id = broker.describe_topics(broker.make_admin_client(), [TOPIC])[TOPIC].topic_id  # type: ignore[union-attr]

    def mark() -> dict[str, float]:
        size = file_stats.measure_head(lake.load_table((*TABLE.split("."),)))
        return {
            "read": _read(spark),
            "assess": _assess(promises, lake),
            "data_files": size.data_files,
            "manifests": size.manifests,
            "snapshots": size.snapshots,
        }

    marks, most = [], {"data_files": 0.0, "manifests": 0.0, "snapshots": 0.0, "assess": 0.0}
    for seq in range(1, first + 1):
        _commit(table, seq, topic_id)
    marks.append((f"after {first} commits", mark()))
    _maintain(context, promises)
    marks.append(("after maintenance", mark()))
    for seq in range(first + 1, total + 1):
        _commit(table, seq, topic_id)
        if seq % EVERY == 0:
            now = mark()
            most = {name: max(value, now[name]) for name, value in most.items()}
            _maintain(context, promises)
            table = lake.load_table((*TABLE.split("."),))
    marks.append((f"after {total:,}, maintained", mark()))
    rows = spark.table(f"lake.{TABLE}").count()
    if rows != total * ROWS:
        raise RuntimeError(f"{rows} rows instead of {total * ROWS}")
    return {"marks": marks, "most": {name: round(value, 2) for name, value in most.items()}}


def _commit(table: Any, seq: int, topic_id: str) -> None:
    """Make a commit like that of an append table's batch."""
    import pyarrow as pa

    from sluice.batch import PUBLISHED_THROUGH, STEP, Batch, PublishedOffsets, encode_published_through
    from sluice.offsets import OffsetRange

    start, end = (seq - 1) * ROWS, seq * ROWS
    batch = Batch(TOPIC, topic_id, seq, {0: OffsetRange(start, end)}, {0: end})
    numbers = range(start, end)
    rows = {
        "id": [feed.key(n) for n in numbers],
        "n": list(numbers),
        "amount": [n % 9973 + 0.25 for n in numbers],
        "at": [(1_704_067_200 + n) * 1_000_000 for n in numbers],
        "note": [f"note {n}" for n in numbers],
        "_kafka_topic": [TOPIC] * ROWS,
        "_kafka_partition": [0] * ROWS,
        "_kafka_offset": list(numbers),
        "_kafka_timestamp": [(1_704_067_200 + n) * 1_000_000 for n in numbers],
    }
    schema = table.schema().as_arrow()
    data = pa.table([pa.array(rows[f.name]).cast(f.type) for f in schema], schema=schema)
    through = {TOPIC: PublishedOffsets(seq, topic_id, {0: end})}
    table.append(
        data,
        snapshot_properties={
            STEP: "publish",
            **batch.properties(),
            PUBLISHED_THROUGH: encode_published_through(through),
        },
    )


def _read(spark: Any) -> float:
    """Return the median seconds of five full reads, each with a refreshed table cache."""
    seconds = []
    for _ in range(5):
        spark.sql(f"REFRESH TABLE lake.{TABLE}")
        began = time.monotonic()
        spark.table(f"lake.{TABLE}").selectExpr("sum(n)", "max(note)", "max(amount)", "max(id)").collect()
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds)


def _assess(promises: Any, lake: Any) -> float:
    """Return the seconds of the slowest of the three actions' assessments of the table."""
    from sluice.ledger import maintenance_table
    from sluice.maintain import assess, targets
    from sluice.maintain.expiry_plan import AssessmentInputs

    subject = next(s for s in targets.list_targets(promises) if s.name == TABLE)
    longest = 0.0
    for action in maintenance_table.Action:
        began = time.monotonic()
        assess.assess_table(subject, action, AssessmentInputs(lake, promises), cleanups={})
        longest = max(longest, time.monotonic() - began)
    return longest


def _maintain(context: Any, promises: Any) -> None:
    from sluice.ledger.maintenance_table import Action
    from sluice.maintain import maintain

    time.sleep(1.1)
    for action in (Action.REWRITE, Action.EXPIRE):
        for effect in maintain.maintain_tables(
            maintain.MaintenanceRun(context, promises, action), [TABLE], deadline=time.monotonic() + 600
        ):
            if effect.failed:
                raise RuntimeError(effect.summary)
