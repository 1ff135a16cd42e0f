"""Rewrites of deletes and manifests, by sort order, and of partitions that are no longer written to."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pyiceberg.manifest import DataFileContent

from sluice import assess, facts, maintain, tables
from sluice.assess import Need
from sluice.upkeep import Action, Effect
from tests.support.lake import Lake

RARELY = {"min_input_files": 6, "delete_ratio": 1.0}


def record(n: int) -> dict[str, object]:
    return {"n": n, "text": f"record {n}"}


def need(it: Lake, table: str) -> Need:
    return next(n for n in assess.assess(it.contracts, it.catalog, Action.REWRITE, group=it.group) if n.table == table)


def rewrite(it: Lake, *names: str) -> dict[str, Effect]:
    deadline = time.monotonic() + 600
    effects = maintain.run(it.context("upkeep"), Action.REWRITE, names, it.contracts, deadline=deadline)
    assert {e.table: e.error for e in effects if e.error} == {}
    return {e.table: e for e in effects}


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
    found = need(it, merged)
    assert found.steps == ("deletes",), found
    done = rewrite(it, merged)[merged]
    assert done.state == "done"
    assert done.before and done.after
    assert done.after.delete_files < done.before.delete_files == len(before)
    assert done.after.data_files == done.before.data_files
    assert len(live_deletes(it, merged)) == done.after.delete_files <= 2
    it.assert_folded(merged)
    assert need(it, merged).steps == ()
    # The next batches delete through what was rewritten.
    it.send((0, f"k{n}", record(n)) for n in range(5, 50))
    it.drain(merged)
    it.assert_folded(merged)


def test_deletes_by_file_stay_one_for_each_data_file_and_need_nothing(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    merged = it.contract(mode="upsert", maintenance=RARELY)
    tombstones(it, merged, 7)
    assert len(live_deletes(it, merged)) == 2
    assert need(it, merged).steps == ()
    it.assert_folded(merged)


@pytest.mark.parametrize("granularity", ["file", "partition"])
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


def test_many_small_manifests_become_few(lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch) -> None:
    it = lake()
    it.create_topic(1)
    rarely = {"min_input_files": 1000, "delete_ratio": 1.0}
    appended, merged = it.contract(maintenance=rarely), it.contract(mode="upsert", maintenance=rarely)
    monkeypatch.setattr(assess, "MANY_MANIFESTS", 6)
    for number in range(6):
        it.send((0, f"k{n}", record(n)) for n in range(10 * number, 10 * number + 20))
        it.run()
    staging = ".".join(tables.staging(it.topic))
    done = rewrite(it, appended, merged, staging)
    for name in (appended, merged, staging):
        effect = done[name]
        assert effect.before and effect.after
        assert effect.before.manifests >= 6, effect
        # One of data files and one of delete files is the least there can be.
        assert effect.after.manifests <= 2, effect
        assert effect.after.data_files == effect.before.data_files
        assert facts.size(it.catalog.load_table(name)).manifests == effect.after.manifests
        assert not [n for n in assess.assess(it.contracts, it.catalog, Action.REWRITE) if n.table == name and n.steps]
    it.assert_appended(appended)
    it.assert_folded(merged)
    it.send((0, f"k{n}", record(n)) for n in range(40, 80))
    it.drain(appended)
    it.assert_appended(appended)
    it.assert_folded(merged)
