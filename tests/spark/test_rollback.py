"""Roll back: data and offsets in one act, shown first; and the next runs bring the table back to the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluice import cursor, rollback
from sluice import run as runs
from sluice.commit import Attempt
from sluice.errors import FencedError
from sluice.ledger import Ledger, State
from sluice.model import CURSOR_TAG, batches_of
from sluice.rollback import Rollback
from tests.support.faults import Driver, Pause
from tests.support.lake import Lake

WHY = "the contract parsed prices wrongly"


def fill(it: Lake, first: int, count: int = 20) -> None:
    it.send((n % 2, f"k{n % 30}", {"n": n}) for n in range(first, first + count))


def look(it: Lake, table: str, **to: Any) -> Rollback:
    return rollback.look(table, it.contracts, it.catalog, Ledger(it.catalog), **to)


def act(it: Lake, found: Rollback, **more: str) -> None:
    rollback.roll_back(found, it.catalog, Ledger(it.catalog), **{"who": "ann", "why": WHY, "run_id": "by hand", **more})


def check_refs(it: Lake, table: str) -> None:
    """The tag stands on main's nearest ancestor that carries offsets, and nothing is left lying about."""
    found = it.catalog.load_table(table)
    carrier = cursor.carrier(found, "sluice.published-through")
    assert set(found.metadata.refs) == ({"main", CURSOR_TAG} if carrier else {"main"})
    if carrier:
        assert found.metadata.refs[CURSOR_TAG].snapshot_id == carrier.snapshot_id


def prepared(it: Lake, mode: str, runs: int = 4, **contract: Any) -> str:
    it.create_topic(2)
    table = it.contract(mode=mode, **contract)
    for number in range(runs):
        fill(it, 100 * number)
        it.run()
    return table


def hold(it: Lake, table: str, mode: str) -> None:
    (it.assert_folded if mode == "upsert" else it.assert_appended)(table)


def seqs(found: Rollback, topic: str) -> list[int]:
    return [each.batch.seq for each in found.again[topic]]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_back_to_before_a_run_and_forth_again(lake: Callable[..., Lake], mode: str) -> None:
    it = lake()
    table = prepared(it, mode)
    head = it.catalog.load_table(table).metadata.current_snapshot_id
    found = look(it, table, before_run=f"{it.group}-2")
    assert seqs(found, it.topic) == [2, 3, 4]
    assert not found.lost
    text = "\n".join(found.lines())
    for part in (f"from snapshot {head}", "3 snapshot(s) undone", f'{it.topic} batch 2 {{"0":[10,20],"1":[10,20]}}'):
        assert part in text
    assert it.catalog.load_table(table).metadata.current_snapshot_id == head

    act(it, found)
    assert len(it.rows(table)) == 20
    assert cursor.published(it.catalog.load_table(table))[it.topic].seq == 1
    check_refs(it, table)
    (row,) = [r for r in it_acts(it) if r.state == State.ROLLED_BACK]
    assert (row.table, row.who, row.why) == (table, "ann", WHY)
    assert row.snapshots == {"from": head, "to": found.target.snapshot_id}

    # By itself, from staging, in as many commits as fit; Kafka is not asked again.
    planned = it.plan()
    assert not planned.topics[it.topic].to_stage
    assert [b.seq for b in planned.tables[table].pending[it.topic]] == [2, 3, 4]
    it.run()
    hold(it, table, mode)
    check_refs(it, table)
    fill(it, 5000)
    it.drain(table)
    hold(it, table, mode)
    # And again to one of the first snapshots, from where nothing of the second line shows.
    act(it, look(it, table, snapshot_id=found.target.snapshot_id))
    it.drain(table)
    hold(it, table, mode)


def it_acts(it: Lake) -> list[Any]:
    from sluice.ledger import Row

    records = Ledger(it.catalog).table.scan().to_arrow().to_pylist()
    rows = [Row(**{**r, "snapshots": dict(r["snapshots"] or []), "state": State(r["state"])}) for r in records]
    return [r for r in rows if r.topic == it.topic and r.batch_seq is None]


def test_back_to_before_the_first_run(lake: Callable[..., Lake]) -> None:
    it = lake()
    table = prepared(it, "upsert", 2)
    act(it, look(it, table, before_run=f"{it.group}-1"))
    assert it.rows(table) == []
    check_refs(it, table)
    it.drain(table)
    it.assert_folded(table)
    check_refs(it, table)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_back_to_before_a_commit_of_several_batches(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    it = lake()
    monkeypatch.setattr(runs, "PUBLISH_PER_STAGE", 0)
    table = prepared(it, mode, 1, limits={"records_per_batch": 12})
    first = it.catalog.load_table(table).metadata.current_snapshot_id
    fill(it, 100, 50)
    it.run()
    metadata = it.catalog.load_table(table).metadata
    assert len(batches_of(cursor.summary(metadata.current_snapshot()))) == 5  # type: ignore[arg-type]
    found = look(it, table, snapshot_id=first)
    assert seqs(found, it.topic) == [3, 4, 5, 6, 7]
    act(it, found)
    fill(it, 200, 30)
    it.drain(table)
    hold(it, table, mode)


def test_what_moved_since_it_was_looked_at_is_refused(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    table = prepared(it, "append", 2)
    found = look(it, table, before_run=f"{it.group}-2")
    fill(it, 300)
    it.run()
    rows = len(it.rows(table))
    with pytest.raises(FencedError, match="nothing was rolled back"):
        act(it, found)
    assert len(it.rows(table)) == rows
    assert not it_acts(it)

    # The other way round: a publish that is about to land when the table is rolled back is refused.
    fill(it, 400)
    pause = Pause(monkeypatch, Attempt, "land", lambda attempt: attempt.identifier[0] == "db")
    driver = Driver(it.run)
    pause.reached(driver)
    found = look(it, table, before_run=f"{it.group}-2")
    assert len(found.branches) == 1
    assert "will be refused" in "\n".join(found.lines())
    act(it, found)
    pause.go()
    driver.end()
    assert driver.error is None
    assert driver.result[table]["red"]
    assert len(it.rows(table)) == 20
    it.drain(table)
    it.assert_appended(table)
    check_refs(it, table)
