"""`status`, `plan` and `ledger rebuild` on a real broker and catalog."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.exceptions import CommitFailedException

from sluice.batch import Batch
from sluice.cli import main
from sluice.embedded.ports import HOST, free_port
from sluice.iceberg import refs, table_names
from sluice.ledger import rebuild, slices
from sluice.ledger.ledger_rows import LedgerRow, LedgerState, plan_rows
from sluice.ledger.offsets_table import Ledger
from sluice.offsets import OffsetRange
from tests.support.light_lake import LightLake, only_batch

pytestmark = pytest.mark.system

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sluice(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main.main(arguments)
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def test_a_tables_life_as_status_tells_it(light_lake: LightLake):
    light_lake.send(0, 5, age_s=60)
    light_lake.send(1, 3, age_s=60)

    before = light_lake.status()
    assert (before.exists, before.lag_records, before.snapshot, before.problems) == (False, 8, None, [])
    assert before.freshness_kept is True  # unread, but younger than promised

    batch = only_batch(light_lake.plan(), light_lake.topic)
    planned = light_lake.status()
    assert [(b.batch, b.state, dict(b.ranges)) for b in planned.open_batches] == [(1, "planned", dict(batch.ranges))]

    light_lake.stage(batch)
    staged = light_lake.status()
    assert [(b.batch, b.state, dict(b.ranges)) for b in staged.open_batches] == [(1, "staged", dict(batch.ranges))]
    assert {p.partition: (p.staged, p.published) for p in staged.topics[0].partitions} == {0: (5, None), 1: (3, None)}

    snapshot = light_lake.publish(batch)
    done = light_lake.status()
    assert (done.lag_records, done.freshness_now_seconds, done.freshness_kept) == (0, 0.0, True)
    assert done.open_batches == []
    assert done.snapshot is not None
    assert (done.snapshot.snapshot_id, done.snapshot.batch, done.snapshot.records) == (snapshot, 1, 8)
    assert done.snapshot.ranges == dict(batch.ranges)
    assert {p.partition: (p.low, p.published, p.end, p.lag) for p in done.topics[0].partitions} == {
        0: (0, 5, 5, 0),
        1: (0, 3, 3, 0),
    }

    light_lake.send(0, 4)
    behind = light_lake.status()
    assert behind.lag_records == 4
    assert behind.freshness_now_seconds == pytest.approx(60, abs=30)
    assert behind.topics[0].table_clock is not None
    newest = max(v for (p, o), v in light_lake.timestamps.items() if o < (5 if p == 0 else 3)) / 1000
    assert behind.topics[0].table_clock.timestamp() == pytest.approx(newest, abs=0.001)


def test_the_table_clock_is_read_from_the_typed_table_when_staging_is_gone(light_lake: LightLake):
    light_lake.send(0, 3, age_s=120)
    batch = only_batch(light_lake.plan(), light_lake.topic)
    light_lake.stage(batch)
    light_lake.publish(batch)
    whole = light_lake.status().topics[0].table_clock
    light_lake.catalog.load_table(table_names.staging(light_lake.topic)).delete("batch_seq = 1")
    assert light_lake.status().topics[0].table_clock == whole is not None


def test_freshness_is_broken_by_what_is_old_and_unread_alone(light_lake: LightLake):
    light_lake.send(0, 3, age_s=7200)
    batch = only_batch(light_lake.plan(), light_lake.topic)
    assert light_lake.status().freshness_kept is False
    light_lake.stage(batch)
    light_lake.publish(batch)
    assert light_lake.status().freshness_kept is True
    light_lake.send(0, 1)  # the topic wakes: the clocks are two hours apart, and nothing is late
    awake = light_lake.status()
    assert awake.freshness_kept is True
    assert awake.freshness_now_seconds == pytest.approx(7200, abs=60)


def test_a_refusal_is_open_until_its_batch_is_published(light_lake: LightLake, sluice: Run):
    light_lake.send(0, 2)
    batch = only_batch(light_lake.plan(), light_lake.topic)
    light_lake.stage(batch)
    ledger, named = Ledger(light_lake.catalog), {"batch_seq": 1, "table": "db.events"}
    for run_id in ("first", "second"):
        failed = LedgerRow(light_lake.topic, LedgerState.FAILED, batch.topic_id, error="no space left", **named)
        ledger.append([failed, failed], run_id=run_id)  # tried again within one run
    assert light_lake.status().last_error.runs == 2  # type: ignore[union-attr]
    row = LedgerRow(
        light_lake.topic, LedgerState.BLOCKED, batch.topic_id, error="2 of 2 records can't be read", **named
    )
    ledger.append([row], run_id="test")
    code, out, _ = sluice("status")
    assert code == 0
    assert "! db.events: blocked:" in out
    assert "2 of 2 records can't be read" in out
    light_lake.publish(batch)
    long_ago = datetime.now(UTC) - timedelta(days=2)
    done = LedgerRow(light_lake.topic, LedgerState.PUBLISHED, batch.topic_id, records=20, rejected=2, **named)
    ledger.append([done, replace(done, at=long_ago), replace(done, table="db.others")], run_id="test")
    cured = light_lake.status()
    assert (cured.day_records, cured.day_rejected) == (20, 2)
    assert cured.last_error.open is False and cured.last_error.runs == 3  # type: ignore[union-attr]
    assert "blocked" not in sluice("status")[1]
    assert "blocked, resolved since" in sluice("status", "db.events")[1]


def test_a_backfill_is_told_until_it_has_landed_and_what_was_kept_of_a_refused_one(light_lake: LightLake, sluice: Run):
    light_lake.send(0, 5)
    batch = only_batch(light_lake.plan(), light_lake.topic)
    light_lake.stage(batch)
    light_lake.publish(batch)
    ledger = Ledger(light_lake.catalog)
    pieces = [Batch(light_lake.topic, batch.topic_id, -n, {0: OffsetRange(n, n + 1)}, {}) for n in (1, 2)]
    for piece in pieces:
        ledger.append(slices.slice_plan_rows(piece, "db.events", who="ann", why="a hole"), run_id="backfill")
        ledger.append(
            slices.slice_plan_rows(replace(piece, seq=piece.seq - 2), "db.others", who="ann", why="-"), run_id="b"
        )
    assert [(s.number, s.state, s.ranges, s.branch) for s in light_lake.status().slices] == [
        (-1, "planned", {0: OffsetRange(1, 2)}, None),
        (-2, "planned", {0: OffsetRange(2, 3)}, None),
    ]
    table = light_lake.catalog.load_table("db.events")
    kept = refs.refused_branch_name(light_lake.topic, -2)
    table.manage_snapshots().create_branch(table.metadata.current_snapshot_id, kept).commit()
    ended = LedgerRow(light_lake.topic, LedgerState.REPLAYED, batch.topic_id, -1, table="db.events")
    refused = LedgerRow(
        light_lake.topic, LedgerState.FAILED, batch.topic_id, -2, table="db.events", error="a row stands twice"
    )
    ledger.append([ended, refused], run_id="backfill")
    shown = " ".join(sluice("status", "db.events")[1].split())
    assert "slice -1" not in shown
    assert f"{light_lake.topic} slice -2 failed at" in shown
    assert f"0: [2, 3); kept on branch {kept}; a row stands twice" in shown
    light_lake.catalog.drop_table(table_names.LEDGER)
    assert [(s.number, s.state, s.branch) for s in light_lake.status().slices] == [(-2, "unknown", kept)]


def test_status_in_detail_and_as_json(light_lake: LightLake, sluice: Run):
    light_lake.send(0, 5)
    batch = only_batch(light_lake.plan(), light_lake.topic)
    light_lake.stage(batch)
    snapshot = light_lake.publish(batch)
    code, out, _ = sluice("status", "db.events")
    assert code == 0
    assert f"snapshot {snapshot}" in out
    assert "0: [0, 5)" in out
    assert max(map(len, out.splitlines())) <= 100
    told = json.loads(sluice("status", "--json")[1])
    assert told["tables"][0]["snapshot"]["snapshot_id"] == snapshot
    assert told["tables"][0]["topics"][0]["partitions"][0] == {
        "partition": 0, "low": 0, "published": 5, "staged": 5, "end": 5, "lag": 0,
    }  # fmt: skip
    code, _, err = sluice("status", "db.evnets")
    assert code == 3
    assert "db.events" in err


def test_a_dead_broker_is_said_and_the_cursor_told_all_the_same(
    light_lake: LightLake, sluice: Run, monkeypatch: pytest.MonkeyPatch
):
    light_lake.send(0, 5)
    batch = only_batch(light_lake.plan(), light_lake.topic)
    light_lake.stage(batch)
    light_lake.publish(batch)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", f"{HOST}:{free_port()}")
    began = time.monotonic()
    code, out, _ = sluice("status", "db.events", "--patience", "2")
    assert time.monotonic() - began < 10
    assert code == 2
    assert "did not answer within 2 s" in out
    assert "0: [0, 5)" in out
    code, _, err = sluice("plan", "events", "--patience", "1")
    assert code == 2
    assert "Traceback" not in err


def test_a_dead_catalog_is_said_and_kafkas_end_told_all_the_same(
    light_lake: LightLake, sluice: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    light_lake.send(0, 5)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/gone/iceberg.db")
    code, out, _ = sluice("status", "--details")
    assert code == 2
    assert "The Iceberg catalog did not answer" in out
    assert "LOG END" in out
    assert sluice("ledger", "rebuild")[0] == 2


def test_a_catalog_that_hangs_is_given_up_on(light_lake: LightLake, sluice: Run, monkeypatch: pytest.MonkeyPatch):
    import socket

    with socket.create_server((HOST, 0)) as deaf:
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "rest")
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"http://{HOST}:{deaf.getsockname()[1]}")
        began = time.monotonic()
        code, out, _ = sluice("status", "--patience", "2")
    assert time.monotonic() - began < 10
    assert code == 2
    assert "no answer within 2 s" in out


def test_plan_prints_and_changes_nothing(light_lake: LightLake, sluice: Run):
    light_lake.send(0, 5)
    code, out, _ = sluice("plan", "events")
    assert code == 0
    assert f"stage   {light_lake.topic} batch 1" in out
    assert "publish db.events" in out
    told = json.loads(sluice("plan", "events", "--json")[1])
    assert [(each["batch"], each["ranges"]["0"]) for each in told["stage"]] == [(1, [0, 5])]
    assert told["publish"] == [{"table": "db.events", "topic": light_lake.topic, "batches": [1]}]
    assert light_lake.catalog.list_namespaces() == []
    light_lake.plan()
    head = light_lake.catalog.load_table(table_names.LEDGER).current_snapshot()
    assert "planned earlier" in sluice("plan", "events")[1]
    assert light_lake.catalog.load_table(table_names.LEDGER).current_snapshot() == head
    code, _, err = sluice("plan", "evnets")
    assert code == 3
    assert "did you mean 'events'?" in err


def test_plan_and_status_name_a_table_that_would_stop(light_lake: LightLake, sluice: Run):
    light_lake.contract(topic=f"{light_lake.topic}-gone")
    code, out, _ = sluice("plan", "events")
    assert code == 3
    assert "Kafka has no topic" in out
    assert "Kafka has no topic" in sluice("status")[1]


def test_ledger_rebuild_from_the_tables_alone(light_lake: LightLake, sluice: Run):
    for _ in range(3):
        light_lake.send(0, 5)
        batch = only_batch(light_lake.plan(), light_lake.topic)
        light_lake.stage(batch)
        if batch.seq < 3:
            light_lake.publish(batch)
    before = light_lake.preview_plan()
    light_lake.catalog.drop_table(table_names.LEDGER)
    code, out, _ = sluice("ledger", "rebuild")
    assert code == 0
    assert "There was no ledger." in out
    assert "3 batches in staging's snapshots; published: 2 in db.events" in out
    after = light_lake.preview_plan()
    assert after.tables["db.events"].pending == before.tables["db.events"].pending
    assert after.topics[light_lake.topic].to_stage == before.topics[light_lake.topic].to_stage == ()
    rows = Ledger(light_lake.catalog).rows({light_lake.topic: 0})
    assert {r.batch_seq for r in rows if r.state == LedgerState.SETTLED} == {1, 2}
    assert {r.batch_seq for r in rows if r.state == LedgerState.STAGED} == {1, 2, 3}
    again = sluice("ledger", "rebuild")[1]
    assert "rows now; it had" in again
    key = [(r.batch_seq, r.state, r.partition, r.at) for r in rows]
    assert key == [
        (r.batch_seq, r.state, r.partition, r.at) for r in Ledger(light_lake.catalog).rows({light_lake.topic: 0})
    ]
    (row,) = json.loads(sluice("ledger", "show", light_lake.topic, "-n", "1", "--json")[1])["rows"]
    assert (row["topic"], row["records"]) == (light_lake.topic, 5)
    shown = sluice("ledger", "show", light_lake.topic, "-n", "2")[1]
    assert len(shown.splitlines()) == 3  # a heading and two rows


def test_ledger_rebuild_keeps_what_only_the_ledger_knows(light_lake: LightLake, sluice: Run):
    light_lake.send(0, 5)
    first = only_batch(light_lake.plan(), light_lake.topic)
    light_lake.stage(first)
    light_lake.publish(first)
    light_lake.send(0, 7)
    frozen = only_batch(light_lake.plan(), light_lake.topic)
    row = LedgerRow(light_lake.topic, LedgerState.FAILED, frozen.topic_id, 2, table="db.events", error="out of memory")
    Ledger(light_lake.catalog).append([row], run_id="test")
    light_lake.send(0, 9)  # a new plan would reach further than the frozen one
    code, out, _ = sluice("ledger", "rebuild")
    assert code == 0
    assert f"Kept, because only the ledger has them: {light_lake.topic} batch 2." in out
    assert only_batch(light_lake.preview_plan(), light_lake.topic) == frozen
    assert light_lake.preview_plan().topics[light_lake.topic].frozen
    assert any(r.error == "out of memory" for r in Ledger(light_lake.catalog).rows({light_lake.topic: 0}))


def test_ledger_rebuild_keeps_batches_whose_snapshots_have_expired(light_lake: LightLake, sluice: Run):
    for _ in range(2):
        light_lake.send(0, 5)
        light_lake.stage(only_batch(light_lake.plan(), light_lake.topic))
    before = light_lake.preview_plan().tables["db.events"].pending[light_lake.topic]
    assert [b.seq for b in before] == [1, 2]
    staging = light_lake.catalog.load_table(table_names.staging(light_lake.topic))
    first = staging.current_snapshot().parent_snapshot_id  # type: ignore[union-attr]
    staging.maintenance.expire_snapshots().by_id(first).commit()
    assert sluice("ledger", "rebuild")[0] == 0
    assert light_lake.preview_plan().tables["db.events"].pending[light_lake.topic] == before
    assert [b.batch for b in light_lake.status().open_batches] == [1, 2]


def test_ledger_rebuild_cures_a_ledger_that_contradicts_the_tables(light_lake: LightLake, sluice: Run):
    light_lake.send(0, 5)
    batch = only_batch(light_lake.plan(), light_lake.topic)
    light_lake.stage(batch)
    wrong = Batch(batch.topic, batch.topic_id, 1, {0: batch.ranges[0]._replace(end=4)}, {0: 4, 1: 0})
    ledger = Ledger(light_lake.catalog)
    ledger.append(plan_rows(wrong), run_id="by hand")
    ledger.append(plan_rows(Batch(batch.topic, batch.topic_id, 9, {}, {0: 1, 1: 1})), run_id="by hand")
    ledger.append(plan_rows(Batch(batch.topic, batch.topic_id, 9, {}, {0: 2, 1: 2})), run_id="by hand")
    assert sluice("plan", "events")[0] == 3
    code, out, _ = sluice("ledger", "rebuild")
    assert code == 0
    assert f"their rows contradict each other and no snapshot has them: {light_lake.topic} batch 9." in out
    assert light_lake.preview_plan().tables["db.events"].pending[light_lake.topic] == (batch,)


def test_ledger_rebuild_of_a_ledger_whose_files_are_gone(light_lake: LightLake, sluice: Run, tmp_path: Path):
    light_lake.send(0, 5)
    batch = only_batch(light_lake.plan(), light_lake.topic)
    light_lake.stage(batch)
    for part in ("data", "metadata"):
        found = sorted((tmp_path / "warehouse").rglob(f"offsets/{part}/**/*"))
        assert found
        for each in filter(Path.is_file, found):
            each.unlink()
        code, out, err = sluice("ledger", "rebuild")
        assert code == 0, (part, out, err)
        assert light_lake.preview_plan().tables["db.events"].pending[light_lake.topic] == (batch,)


def test_a_rebuild_that_was_overtaken_is_refused_and_read_again(light_lake: LightLake):
    light_lake.send(0, 5)
    batch = only_batch(light_lake.plan(), light_lake.topic)
    stale = rebuild._read_old_ledger(light_lake.catalog).ledger
    Ledger(light_lake.catalog).append(plan_rows(batch, LedgerState.STAGED), run_id="another")
    with pytest.raises(CommitFailedException):
        rebuild._replace(light_lake.catalog, stale, [], "rebuild")
    assert only_batch(light_lake.preview_plan(), light_lake.topic) == batch
