"""Rewrites of delete files, manifests and sort orders, and of partitions that get no more writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFileContent

from sluice.contract.settings import Maintenance
from sluice.iceberg import compat, table_names
from sluice.ingest.context import Context
from sluice.ledger import maintenance_table
from sluice.ledger.maintenance_table import Action, ActionResult
from sluice.ledger.offsets_table import Ledger
from sluice.maintain import active_partitions, assess, file_stats, maintain
from sluice.maintain.assess import Assessment
from sluice.maintain.expiry_plan import AssessmentInputs
from sluice.maintain.targets import OWN_SETTINGS
from tests.support.lake import Lake, record
from tests.support.thorough import only_thorough, usual

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
RARELY = {"min_input_files": 6, "delete_ratio": 1.0}


def need(it: Lake, table: str) -> Assessment:
    return next(
        n
        for n in assess.assess_tables(
            AssessmentInputs(it.catalog, it.contracts), Action.REWRITE, names=it.maintained_tables
        )
        if n.table == table
    )


def rewrite(
    it: Lake, *names: str, action: Action = Action.REWRITE, context: Context | None = None
) -> dict[str, ActionResult]:
    deadline = time.monotonic() + 600
    effects = maintain.maintain_tables(
        maintain.MaintenanceRun(context or it.context("upkeep"), it.contracts, action), names, deadline=deadline
    )
    assert {e.table: e.error for e in effects if e.error} == {}
    return {e.table: e for e in effects}


def files_by_partition(it: Lake, table: str) -> dict[object, list[Path]]:
    found: dict[object, list[Path]] = {}
    for task in it.catalog.load_table(table).scan().plan_files():
        path = Path(task.file.file_path.removeprefix("file://"))
        found.setdefault(task.file.partition[0], []).append(path)
    return found


def age(monkeypatch: pytest.MonkeyPatch, moment: datetime) -> None:
    """From now on, what was written before that moment is old enough, and what came later is not."""
    choose = active_partitions.choose_partitions

    def aged(
        table: Any, parts: Any, needy: Any, settings: Maintenance, now: datetime
    ) -> active_partitions.PartitionChoice:
        return choose(table, parts, needy, settings.model_copy(update={"rewrite_after": now - moment}), now)

    monkeypatch.setattr(active_partitions, "choose_partitions", aged)


def live_deletes(it: Lake, table: str) -> list[str]:
    head = it.catalog.load_table(table)
    return [
        e.data_file.file_path
        for m in head.current_snapshot().manifests(head.io)  # type: ignore[union-attr]
        for e in m.fetch_manifest_entry(head.io)
        if e.data_file.content != DataFileContent.DATA
    ]


def tombstones(it: Lake, merged: str, batches: int) -> None:
    """Two batches of rows, then batches that only delete, each from both of the data files."""
    for first in (0, 40):
        it.send((0, f"k{n}", record(n)) for n in range(first, first + 40))
        it.drain(merged)
    for number in range(batches):
        it.send((0, f"k{n}", None) for n in (number, 40 + number))
        it.drain(merged)


def test_many_delete_files_become_few(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    merged = it.contract(mode="upsert", maintenance=RARELY, properties={"write.delete.granularity": "partition"})
    tombstones(it, merged, 7)
    before = live_deletes(it, merged)
    found, context = need(it, merged), it.context("upkeep")
    assert found.steps == ("deletes",), found
    done = rewrite(it, merged, context=context)[merged]
    assert done.state == "done"
    assert done.before and done.after
    cost = next(row for row in context.meter.take_costs() if row.table == merged)
    assert (cost.step, cost.commits, cost.files_removed) == ("rewrite_data_files", 1, len(before)) and cost.cpu_seconds
    assert done.after.delete_files < done.before.delete_files == len(before)
    assert done.after.data_files == done.before.data_files
    assert len(live_deletes(it, merged)) == done.after.delete_files <= 2
    it.assert_folded(merged)
    assert need(it, merged).steps == ()
    # The next batches delete through what was rewritten.
    it.send((0, f"k{n}", record(n)) for n in range(5, 50))
    it.drain(merged)
    it.assert_folded(merged)


@only_thorough("test_many_delete_files_become_few")
def test_deletes_by_file_stay_one_for_each_data_file_and_need_nothing(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    merged = it.contract(mode="upsert", maintenance=RARELY)
    tombstones(it, merged, 7)
    assert len(live_deletes(it, merged)) == 2
    assert need(it, merged).steps == ()
    it.assert_folded(merged)


@pytest.mark.parametrize("granularity", usual(["file"], ["file", "partition"]))
def test_no_delete_file_outlives_the_data_that_it_was_for(lake: Callable[..., Lake], granularity: str) -> None:
    it = lake()
    it.create_topic(2)
    merged = it.contract(
        mode="upsert",
        maintenance={"min_input_files": 4},
        properties={"write.delete.granularity": granularity},
    )
    for number in range(6):
        it.send((n % 2, f"k{n}", record(1000 * number + n)) for n in range(10 * number, 10 * number + 60))
        it.drain(merged)
    assert live_deletes(it, merged)
    done = rewrite(it, merged)[merged]
    assert done.after and done.after.data_files == 1
    assert live_deletes(it, merged) == []
    assert done.after.delete_files == 0
    it.assert_folded(merged)
    it.send((n % 2, f"k{n}", record(9000 + n)) for n in range(60))
    it.drain(merged)
    it.assert_folded(merged)


def test_one_run_rewrites_as_much_as_the_contract_says_and_the_next_goes_on(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    few = {"min_input_files": 2}
    table = it.contract(maintenance=few)
    for number in range(9):
        it.send([(0, "k", record(number))])
        it.run()
    found = need(it, table)
    assert found.mean_bytes > 0
    # The mean times four and a half: four files.
    it.contract(table=table, maintenance={**few, "rewrite_bytes": found.mean_bytes * 9 // 2})
    counts = []
    while need(it, table).steps:
        counts.append(rewrite(it, table)[table].summary.split("data files ")[1].split(",")[0])
    assert counts[0] == "9 → 6", counts
    assert len(counts) > 1 and len(list(it.catalog.load_table(table).scan().plan_files())) <= 2
    it.assert_appended(table)


def test_many_small_manifests_become_few(lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch) -> None:
    it = lake()
    it.create_topic(1)
    rarely = {"min_input_files": 1000, "delete_ratio": 1.0}
    appended, merged = it.contract(maintenance=rarely), it.contract(mode="upsert", maintenance=rarely)
    monkeypatch.setattr(assess, "MANY_MANIFESTS", 6)
    for number in range(6):
        it.send((0, f"k{n}", record(n)) for n in range(10 * number, 10 * number + 20))
        it.run()
    staging = ".".join(table_names.staging(it.topic))
    done = rewrite(it, appended, merged, staging)
    for name in (appended, merged, staging):
        effect = done[name]
        assert effect.before and effect.after
        assert effect.before.manifests >= 6, effect
        # One of data files and one of delete files is the least there can be.
        assert effect.after.manifests <= 2, effect
        assert effect.after.data_files == effect.before.data_files
        assert file_stats.measure_head(it.catalog.load_table(name)).manifests == effect.after.manifests
        assert not [
            n
            for n in assess.assess_tables(AssessmentInputs(it.catalog, it.contracts), Action.REWRITE)
            if n.table == name and n.steps
        ]
    it.assert_appended(appended)
    it.assert_folded(merged)
    it.send((0, f"k{n}", record(n)) for n in range(40, 80))
    it.drain(appended)
    it.assert_appended(appended)
    it.assert_folded(merged)


def dated(n: int, day: int) -> dict[str, object]:
    at = f"2024-03-{day:02}T{n % 24:02}:00:00"
    return {"n": n, "order": f"order {n * 7919 % 1000:03}", "at": f"{at}Z", "local": at, "d": at[:10]}


DATED = [
    {"name": "id", "type": "string", "source": "$key"},
    {"name": "n", "type": "long"},
    {"name": "order", "type": "string"},
    {"name": "at", "type": "timestamptz"},
    {"name": "local", "type": "timestamp"},
    {"name": "d", "type": "date"},
]


def test_only_partitions_no_longer_written_to_are_put_together_in_the_order_of_the_contract(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    it.create_topic(2)
    by_day = it.contract(
        columns=DATED,
        partition_by=["day(at)", "bucket(2, id)"],
        maintenance={"min_input_files": 2, "strategy": "sort", "sort_by": ["order", "n"]},
    )
    by_month = it.contract(
        mode="upsert",
        columns=DATED,
        partition_by=["month(local)"],
        maintenance={"min_input_files": 2, "strategy": "zorder", "sort_by": ["order", "n", "_kafka_timestamp"]},
    )
    by_date = it.contract(
        mode="upsert", columns=DATED, partition_by=["d"], maintenance={"min_input_files": 2, "strategy": "binpack"}
    )
    for number in range(3):
        it.send((n % 2, f"k{n % 50}", dated(n, 1 + n % 2)) for n in range(40 * number, 40 * number + 40))
        it.send([(0, f"undated{number}", {"n": 7})])
        it.run()
    moment = datetime.now(UTC)
    for number in (3, 4):
        # Keys of their own: an update would delete in the partition where the row was, and thus write into it.
        it.send((n % 2, f"late{n}", dated(n, 5)) for n in range(40 * number, 40 * number + 40))
        it.run()
    before = {name: files_by_partition(it, name) for name in (by_day, by_month, by_date)}
    age(monkeypatch, moment)
    # All of the month is written to, and stays.
    assert need(it, by_month).where == "`local` IS NULL"
    assert "1 partition skipped: still written to" in need(it, by_month).reason
    done = rewrite(it, by_day, by_date)
    fifth = (datetime(2024, 3, 5, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).days
    for name in (by_day, by_date):
        assert done[name].state == "done"
        after = files_by_partition(it, name)
        fresh = {_day(value): set(files) for value, files in after.items()}
        was = {_day(value): set(files) for value, files in before[name].items()}
        assert fresh[fifth] == was[fifth]
        for day in set(fresh) - {fifth}:
            assert len(fresh[day]) < len(was[day]) or len(was[day]) == 1
            assert name == by_day or len(fresh[day]) == 1
    for files in (f for day, f in files_by_partition(it, by_day).items() if _day(day) not in (fifth, None)):
        for path in files:
            rows = pq.read_table(path, columns=["order", "n"]).to_pylist()
            keys = [(row["order"], row["n"]) for row in rows]
            assert keys == sorted(keys)
    monkeypatch.undo()
    age(monkeypatch, datetime.now(UTC))
    assert rewrite(it, by_month)[by_month].after.data_files <= 2  # type: ignore[union-attr]
    it.send((n % 2, f"k{n % 50}", dated(n, 6)) for n in range(300, 340))
    it.drain(by_day)
    it.assert_appended(by_day)
    it.assert_folded(by_month)
    it.assert_folded(by_date)


def _day(value: Any) -> int | None:
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value


@only_thorough("test_only_partitions_no_longer_written_to_are_put_together_in_the_order_of_the_contract")
def test_deletes_of_partitions_still_written_to_are_left_alone(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    it.create_topic(1)
    merged = it.contract(
        mode="upsert",
        columns=DATED,
        partition_by=["day(at)"],
        maintenance=RARELY,
        properties={"write.delete.granularity": "partition"},
    )
    for first in (0, 40):
        it.send((0, f"k{n}", dated(n, 1)) for n in range(first, first + 40))
        it.drain(merged)
    for number in range(7):
        it.send((0, f"k{n}", None) for n in (number, 40 + number))
        it.drain(merged)
    moment = datetime.now(UTC)
    it.send((0, f"k{n}", dated(n, 2)) for n in range(60, 90))
    it.send((0, f"fresh{n}", dated(n, 2)) for n in range(5))
    it.drain(merged)
    age(monkeypatch, moment)
    assert need(it, merged).steps == ()
    monkeypatch.undo()
    it.send((0, f"fresh{n}", dated(n, 3)) for n in range(9))
    moment = datetime.now(UTC)
    it.drain(merged)
    age(monkeypatch, moment)
    found = need(it, merged)
    assert found.steps == ("deletes",), found
    assert found.where
    done = rewrite(it, merged)[merged]
    assert done.after and done.before
    assert done.after.delete_files < done.before.delete_files
    assert need(it, merged).steps == ()
    it.assert_folded(merged)


def test_what_sluice_itself_writes_down_is_put_away_by_time(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.contract(columns=[{"name": "n", "type": "long"}])
    ledger = Ledger(it.catalog)
    of_a_file, files = 600, OWN_SETTINGS.min_input_files
    for n in Random(1).sample(range(files), files):
        rows = [
            {"topic": it.topic, "topic_id": "x" * 22, "batch_seq": seq, "state": state, "partition": p}
            | {"start_offset": seq * 1_000 + p, "end_offset": seq * 1_001 + p, "snapshots": [(it.topic, hash((seq,)))]}
            | {"at": NEW_YEAR + timedelta(minutes=5 * seq, seconds=at), "run_id": f"scheduled__{seq * 5}"}
            for seq in range(n * of_a_file + 1, (n + 1) * of_a_file + 1)
            for at, state in enumerate(("planned", "staged", "settled"))
            for p in (0, 1)
        ]
        compat.with_current_snapshot_only(ledger.table).append(
            pa.Table.from_pylist(rows, schema=ledger.table.schema().as_arrow())
        )
        ledger.refresh()
    (effect,) = rewrite(it, "sluice.offsets").values()
    ((*paths,),) = files_by_partition(it, "sluice.offsets").values()
    seqs = sorted(pq.read_table(path, columns=["batch_seq"])["batch_seq"].to_pylist() for path in paths)
    assert effect.state == "done"
    assert len(paths) > 1
    assert list(chain.from_iterable(seqs)) == [seq for seq in range(1, of_a_file * files + 1) for _ in range(6)]
    # Put away for good.
    (effect,) = rewrite(it, "sluice.offsets").values()
    assert effect.state == "idle", effect.summary


def test_what_maintenance_did_long_ago_is_forgotten_and_the_rest_stays(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.contract(columns=[{"name": "n", "type": "long"}])
    now = datetime.now(UTC)
    ages = (0, 89, 91, 100)  # in one file
    effects = [ActionResult(f"old.{days}", Action.EXPIRE, "done", at=now - timedelta(days=days)) for days in ages]
    maintenance_table.write_results(it.catalog, effects, run_id="r")
    (effect,) = rewrite(it, "sluice.maintenance", action=Action.EXPIRE).values()
    assert effect.state == "done"
    assert "are past their history of 90 d" in effect.summary
    assert {e.table for e in maintenance_table.read_results(it.catalog)} == {"old.0", "old.89", "sluice.maintenance"}
    (effect,) = rewrite(it, "sluice.maintenance", action=Action.EXPIRE).values()
    assert effect.state == "idle"
