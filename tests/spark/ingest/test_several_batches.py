"""Several staged batches are published in one commit, and remain distinct in the snapshot, the ledger and a replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml
from pyiceberg.expressions import In

from sluice.batch import BATCHES, Batch, batches_from_summary
from sluice.errors import TerminalError
from sluice.iceberg import cursor, snapshots, table_names
from sluice.ingest import run as runs
from sluice.ingest import stage
from sluice.ingest.publish import publish
from sluice.ingest.staged_batches import split_options, staged_bytes
from sluice.ledger import rebuild
from sluice.ledger.ledger_rows import LedgerState
from sluice.ledger.offsets_table import Ledger
from tests.support import runbook
from tests.support.lake import Lake
from tests.support.thorough import usual

CAP = {"records_per_batch": 12}


def fill(it: Lake, start: int, count: int = 40, keys: int = 7) -> None:
    it.send((n % keys % 2, f"k{n % keys}", {"n": n}) for n in range(start, start + count))


def commits(it: Lake, table: str) -> list[list[int]]:
    """The batch numbers of each publish commit, oldest first."""
    metadata = it.catalog.load_table(table).metadata
    found = [snapshots.summary(s) for s in snapshots.ancestors(metadata)]
    return [[b.seq for b in batches_from_summary(s)] for s in reversed(found) if s.get("sluice.step") == "publish"]


def staged(it: Lake) -> list[Batch]:
    return [
        b
        for _, (b, _) in sorted(
            cursor.read_staged_batches(it.catalog.load_table(table_names.staging(it.topic))).items()
        )
    ]


@pytest.fixture
def waiting(lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Lake, str]]:
    """A topic with four batches staged and none published, and time enough to publish them together."""

    def make(**contract: object) -> tuple[Lake, str]:
        monkeypatch.setattr(runs, "PUBLISH_PER_STAGE", 0)
        it = lake()
        it.create_topic(2)
        return it, it.contract(**{"limits": CAP, **contract})

    return make


def stage_only(it: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose publishing is refused: all is staged."""

    def refuse(*_: object, **__: object) -> None:
        raise TerminalError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(runs, "publish", refuse)
        it.run()
    assert len(staged(it)) > 3


@pytest.mark.parametrize("mode", usual(["upsert"], ["append", "upsert"]))
def test_a_backlog_is_published_in_one_commit(waiting: Callable[..., tuple[Lake, str]], mode: str) -> None:
    it, table = waiting(mode=mode)
    fill(it, 0)
    it.send([(0, "k0", None), (1, "k1", None), (0, "k0", {"n": 1000})] if mode == "upsert" else [(0, "z", {"n": 1000})])
    outcome = it.run()[table]
    assert outcome["state"] == "published"
    assert commits(it, table) == [outcome["batches"][it.topic]]
    assert len(outcome["batches"][it.topic]) > 3
    it.assert_published(table)
    summary = snapshots.summary(it.catalog.load_table(table).current_snapshot())  # type: ignore[arg-type]
    assert batches_from_summary(summary) == staged(it)
    assert outcome["records"] == sum(len(by) for by in it.sent.values())
    # Later batches of these keys, and all of it once more, late.
    fill(it, 2000, 5)
    it.run()
    if mode == "upsert":
        publish(it.context(), it.contract_of(table), *staged(it)[:3], replay=True)
    it.assert_published(table)


def test_the_ledger_tells_the_batches_apart_and_can_be_rebuilt(waiting: Callable[..., tuple[Lake, str]]) -> None:
    it, table = waiting()
    fill(it, 0)
    it.send([(0, "bad", b"{")])
    it.contract(table=table, limits=CAP, errors={"max_ratio": 1.0})
    it.run()
    head = it.catalog.load_table(table).metadata.current_snapshot_id

    def told() -> dict[tuple[int, str], tuple[object, ...]]:
        rows = Ledger(it.catalog).rows({it.topic: 0}, (LedgerState.PUBLISHED, LedgerState.SETTLED))
        return {(r.batch_seq or 0, r.state): (r.snapshots or {}).get(table) for r in rows}  # type: ignore[misc]

    before = told()
    batches = staged(it)
    assert before == {(b.seq, s): head for b in batches for s in (LedgerState.PUBLISHED, LedgerState.SETTLED)}
    rows = Ledger(it.catalog).rows({it.topic: 0}, (LedgerState.PUBLISHED,))
    assert [r.rejected for r in sorted(rows, key=lambda r: r.batch_seq or 0)] == [0] * (len(batches) - 1) + [1]
    assert all(0 < (r.commit_seconds or 0) < (r.seconds or 0) for r in rows), "each has its share of both"
    assert [r.records for r in sorted(rows, key=lambda r: r.batch_seq or 0)] == [b.span for b in batches]
    rebuild.rebuild(it.contracts, it.catalog, run_id="test")
    assert told() == before


def test_one_bad_batch_among_several_blocks_from_there_on(waiting: Callable[..., tuple[Lake, str]]) -> None:
    it, table = waiting(errors={"tolerance": "none"})
    fill(it, 0, 24)
    it.send([(0, "bad", b"{")])
    fill(it, 24, 24)
    it.send([(0, "worse", b"{")])
    outcome = it.run()[table]
    bad, worse = (
        next(b.seq for b in staged(it) if b.ranges[0].start <= it_offset(it, key) < b.ranges[0].end)
        for key in ("bad", "worse")
    )
    assert 1 < bad < worse
    assert (outcome["state"], outcome["batches"]) == ("blocked", {it.topic: list(range(1, bad))})
    assert f"batch {bad}," in outcome["error"]
    # An operator lets this one batch through: the later one is blocked as before.
    told = runbook.run_command(it, "publish-blocked TABLE --why 'the producer sent test records' --yes", TABLE=table)
    assert f"batch {bad} of {it.topic}: 1 of " in told
    outcome = it.run()[table]
    assert (outcome["state"], outcome["batches"]) == ("blocked", {it.topic: list(range(bad, worse))}), outcome
    assert {r["batch_seq"] for r in it.quarantined(table)} == {bad, worse}
    it.contract(table=table, limits=CAP, errors={"max_ratio": 1.0})
    it.drain(table)
    it.assert_appended(table, without=[(0, it_offset(it, key)) for key in ("bad", "worse")])


def it_offset(it: Lake, key: str) -> int:
    return next(o for o, (k, _) in it.sent[0].items() if k == key)


def test_a_contract_may_ask_for_a_commit_per_batch(waiting: Callable[..., tuple[Lake, str]]) -> None:
    it, table = waiting(limits={**CAP, "batches_per_commit": 1})
    fill(it, 0)
    it.run()
    assert commits(it, table) == [[b.seq] for b in staged(it)]
    assert all(BATCHES not in snapshots.summary(s) for s in it.catalog.load_table(table).metadata.snapshots)
    it.assert_appended(table)


def test_an_attempt_at_several_of_which_some_were_published_meanwhile(
    waiting: Callable[..., tuple[Lake, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    it, table = waiting(mode="upsert")
    fill(it, 0)
    stage_only(it, monkeypatch)
    batches = staged(it)
    publish(it.context(), it.contract_of(table), *batches[:2])
    done = publish(it.context(), it.contract_of(table), *batches)
    assert sorted(done.counts) == [b.seq for b in batches[2:]]
    assert publish(it.context(), it.contract_of(table), *batches).snapshot_id is None
    assert commits(it, table) == [[b.seq for b in batches[:2]], [b.seq for b in batches[2:]]]
    it.assert_folded(table)


def test_what_was_staged_before_a_failure_is_published_all_the_same(
    waiting: Callable[..., tuple[Lake, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    it, table = waiting()
    fill(it, 0)
    original = stage.stage

    def breaks(context: Any, batch: Batch, **named: Any) -> Any:
        if batch.seq == 3:
            raise TerminalError("no disk")
        return original(context, batch, **named)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "stage", breaks)
        outcome = it.run()[table]
    assert (outcome["state"], outcome["batches"]) == ("failed", {it.topic: [1, 2]})
    assert "no disk" in outcome["error"]
    assert commits(it, table) == [[1, 2]]
    it.drain(table)
    it.assert_appended(table)


@pytest.mark.parametrize("mode", usual(["upsert"], ["append", "upsert"]))
def test_batches_without_a_good_record_are_published_late(lake: Callable[..., Lake], mode: str) -> None:
    """What nothing is read of is not observed either: nobody may wait for its counts."""
    it = lake()
    it.create_topic(1)
    first = it.contract(mode=mode, errors={"max_ratio": 1.0})
    it.run()
    it.send((0, f"k{n}", b"{") for n in range(5))
    it.run()
    late = it.contract(mode=mode, errors={"max_ratio": 1.0})
    it.drain(late)
    for table in (first, late):
        assert it.rows(table) == []
        assert [r["_kafka_offset"] for r in it.quarantined(table)] == list(range(5))
        assert cursor.read_table_cursor(it.catalog.load_table(table))[it.topic].next_offsets == {0: 5}


def test_what_is_read_is_split_by_its_size_and_by_the_cores(
    waiting: Callable[..., tuple[Lake, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    it, _ = waiting()
    fill(it, 0)
    stage_only(it, monkeypatch)
    staging, batches = it.catalog.load_table(table_names.staging(it.topic)), staged(it)
    for some in (batches, batches[1:3]):
        files = staging.scan(row_filter=In("batch_seq", {b.seq for b in some})).plan_files()
        assert staged_bytes(staging, some) == sum(task.file.file_size_in_bytes for task in files) > 0
    assert staged_bytes(staging, [*batches, replace(batches[-1], seq=99)]) is None
    assert staged_bytes(None, batches) is None
    without = replace(batches[-1], seq=99, ranges={})
    assert staged_bytes(staging, [batches[0], without]) == staged_bytes(staging, batches[:1])
    mega = 1 << 20
    sizes = {None: 4 * mega, 10_000: mega // 2, 16 * mega: 2 * mega, 1000 * mega: 4 * mega}
    assert {size: int(split_options(size, 2)["split-size"]) for size in sizes} == sizes
    # Many small files are one task: opening one is taken to cost as much as some of its records.
    assert int(split_options(10_000, 2)["file-open-cost"]) * 4 <= int(split_options(10_000, 2)["split-size"])


def test_without_time_the_first_commit_still_happens_and_the_next_run_goes_on(
    waiting: Callable[..., tuple[Lake, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    it, table = waiting()
    fill(it, 0)

    stage_only(it, monkeypatch)
    outcome = it.run(seconds=0.0)[table]
    assert (outcome["state"], outcome["batches"]) == ("behind", {it.topic: [1]})
    it.drain(table)
    it.assert_appended(table)
    assert commits(it, table)[0] == [1]
    assert len(commits(it, table)) < len(staged(it))


@pytest.mark.parametrize("at_once", usual([3], [1, 3]))
def test_topics_take_turns_and_begin_with_those_that_waited_longest(lake, at_once):
    it = lake()
    (it.folder / "groups.yaml").write_text(yaml.safe_dump({it.group: {"topics_at_once": at_once}}))
    names = [f"{it.topic}-{n}" for n in range(3)]
    for name in names:
        it.create_topic(1, name=name)
        it.contract(topic=name, limits={"records_per_batch": 4, "batches_per_commit": 1})

    def run() -> list[tuple[str, int]]:
        """What was staged, in order."""
        it.run()
        order = []
        for name in names:
            table = it.catalog.load_table(table_names.staging(name))
            order += [(s.timestamp_ms, name, seq) for seq, (_, s) in cursor.read_staged_batches(table).items()]
        return [(name, seq) for _, name, seq in sorted(order)]

    for name in names:
        it.send([(0, "a", {"n": n}) for n in range(8)], topic=name)
    order = run()
    if at_once == 1:
        assert order == [(name, seq) for seq in (1, 2) for name in names]
    assert sorted(order) == [(name, seq) for name in names for seq in (1, 2)]
    it.send([(0, "a", {"n": 8})], topic=names[0])
    run()
    for name in names:
        it.send([(0, "a", {"n": 9})], topic=name)
    waited = [topic for topic, _ in order[3:] if topic != names[0]]
    assert [*it.preview_plan().topics] == [*waited, names[0]]
    run()
    for table, contract in it.contracts.tables.items():
        sent = [*range(8), *([8] if contract.topics == (names[0],) else []), 9]
        assert sorted(row["n"] for row in it.rows(table)) == sent
