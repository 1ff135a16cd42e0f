"""Rounds of a continuous group in one Spark application: docs/reference/groups.md, continuous."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import requests
from pyspark.sql import SparkSession

from sluice.errors import BrokerUnavailableError
from sluice.evolve import evolve
from sluice.evolve.pending_change import ReviewDecision
from sluice.ingest import merge_batch, outcome, rounds, settle
from sluice.ledger.ledger_rows import LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.operate import accept_gap, review_schema, rollback
from sluice.operate.operator_input import Decision
from sluice.operate.rollback_target import RestorePoint
from sluice.plan import plan as planning
from sluice.plan.model import PlanInputs
from sluice.usage import costs_table
from tests.support.faults import PausedCall
from tests.support.lake import COLUMNS, Lake

pytestmark = pytest.mark.timeout(300)
RUN_ID = "scheduled__continuous"
SHORT: dict[str, Any] = {"maintenance": {"snapshot_age": "1h"}}


def make_continuous(it: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    (it.folder / "groups.yaml").write_text(f"{it.group}: {{schedule: continuous, continuous: {{every: 2s}}}}\n")
    monkeypatch.setenv("SLUICE_CONTRACTS", str(it.folder))


@contextmanager
def application(it: Lake) -> Iterator[None]:
    """An application that makes rounds in a thread, until the end of the block asks it to end."""
    codes: list[int] = []
    term = rounds.Term(600, it.folder / "end")
    thread = threading.Thread(target=lambda: codes.append(rounds.run(it.context(RUN_ID), it.group, it.admin, term)))
    thread.start()
    try:
        yield
    finally:
        (it.folder / "end").touch()
        thread.join(200)
    assert codes == [0], "the application has raised an error, or did not end"


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)


def count(it: Lake, table: str) -> int:
    return len(it.rows(table)) if it.catalog.table_exists(table) else 0


def test_each_round_lands_what_came_since_the_last(lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch) -> None:
    it = lake()
    it.create_topic(2)
    opened: list[object] = []
    new_session = SparkSession.newSession
    monkeypatch.setattr(SparkSession, "newSession", lambda self: opened.append(self) or new_session(self))
    monkeypatch.setattr(rounds, "WRITE_EVERY_S", 0.0)
    appended, merged = it.contract(**SHORT), it.contract(mode="upsert", **SHORT)
    make_continuous(it, monkeypatch)
    it.send((n % 4 % 2, f"k{n % 4}", {"n": n}) for n in range(20))
    promised = outcome.summarize_plan(it.plan(RUN_ID))
    with application(it):
        for sent in (20, 40, 60):
            wait_for(lambda sent=sent: count(it, appended) == sent)  # type: ignore[misc]
            it.send((n % 4 % 2, f"k{n % 4}", {"n": n}) for n in range(sent, sent + 20))
        wait_for(lambda: count(it, appended) == 80)
    it.assert_appended(appended)
    it.assert_folded(merged)

    # Each has connections to the catalog, which are never closed.
    assert 1 <= len(opened) <= 2, "rounds use the same sessions again"
    ledger = Ledger(it.catalog)
    batches = ledger.planned_batches(RUN_ID)[it.topic]
    assert len(batches) >= 4
    closed = {r.batch_seq for r in ledger.rows({it.topic: 0}) if r.state == LedgerState.SETTLED}
    assert closed == batches, "each round closes its batches"
    costs = costs_table.read_costs(it.catalog, datetime.now(UTC) - timedelta(hours=1), [appended])
    assert sum(row.records or 0 for row in costs if row.table == appended and row.step == "publish") == 80
    assert sum(row.times for row in costs if row.step == "application") >= len(batches)

    # The task that settles the run knows the plan of the first round alone.
    found = settle.settle(it.contracts.group(it.group), it.catalog, promised, run_id=RUN_ID)
    for table in (appended, merged):
        assert found[table]["state"] == "published"
        assert set(found[table]["batches"][it.topic]) == batches
        assert found[table]["records"] == 80


def test_a_failed_table_is_left_out_and_the_others_go_on(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    it.create_topic(1)
    good, bad = it.contract(errors={"max_ratio": 1.0, "max_count": 100}, **SHORT), it.contract(**SHORT)
    make_continuous(it, monkeypatch)
    monkeypatch.setattr(rounds, "FIRST_HOLD_S", 4.0)
    it.send([(0, "a", {"n": 1}), (0, "b", {"n": "no number"})])
    with application(it):
        for sent in range(1, 5):
            wait_for(lambda sent=sent: count(it, good) == sent)  # type: ignore[misc]
            it.send([(0, "c", {"n": sent})])
        wait_for(lambda: count(it, good) == 5)
    rows = Ledger(it.catalog).rows({it.topic: 0}, [LedgerState.BLOCKED])
    # At once, after 4 s, and after 8 s more: not in each of five rounds.
    assert 1 <= len(rows) <= 3
    assert {r.table for r in rows} == {bad}
    assert count(it, bad) == 0


def test_an_outage_is_waited_for_and_a_long_one_ends_the_application(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    it.create_topic(1)
    table = it.contract(**SHORT)
    make_continuous(it, monkeypatch)
    it.send([(0, "a", {"n": 1})])
    real = planning.write_plan
    outage: list[Exception] = [BrokerUnavailableError("Kafka does not answer."), requests.ConnectionError("no catalog")]

    def write_plan(*arguments: object, **named: object) -> object:
        if outage:
            raise outage.pop()
        return real(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(rounds, "AFTER_ERROR_S", 0.1)
    monkeypatch.setattr(planning, "write_plan", write_plan)
    assert rounds.run(it.context(RUN_ID), it.group, it.admin, rounds.Term(3)) == 0
    assert count(it, table) == 1

    outage[:] = [BrokerUnavailableError("Kafka does not answer.")] * 1000
    monkeypatch.setattr(rounds, "OUTAGE_S", 0.5)
    with pytest.raises(BrokerUnavailableError):
        rounds.run(it.context(RUN_ID), it.group, it.admin, rounds.Term(30))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds without pauses, and contracts that are read in each."""
    make = rounds._Rounds.make
    monkeypatch.setattr(rounds, "CONTRACTS_EVERY_S", 0.0)
    monkeypatch.setattr(rounds._Rounds, "make", lambda self, ends: min(make(self, ends), 0.2))


DECISION = Decision("ann", "wrong prices", "by hand")


@pytest.mark.usefixtures("quick")
def test_a_rollback_and_changes_of_the_contract_meanwhile(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    it.create_topic(1)
    table = it.contract(**SHORT)
    make_continuous(it, monkeypatch)
    monkeypatch.setattr(rounds, "FIRST_HOLD_S", 1000.0)  # nobody waits for a table that was overtaken
    ledger = Ledger(it.catalog)

    def send(number: int, n: object, **more: object) -> None:
        it.send([(0, f"k{number}", {"n": n, **more})])
        wait_for(lambda: count(it, table) == number + 1)

    def last_state() -> str:
        return evolve.list_versions(it.catalog, it.contract_of(table))[-1].state

    with application(it):
        send(0, 0)
        first = it.catalog.load_table(table).metadata.current_snapshot_id
        send(1, 1)
        # Rolled back while a batch is merged: that batch comes after the others again, and without a pause.
        merging = PausedCall(monkeypatch, merge_batch, "merge_batch")
        it.send([(0, "k2", {"n": 2})])
        merging.reached()
        ledger.refresh()
        found = rollback.preview_rollback(table, it.contracts, it.catalog, ledger, RestorePoint(snapshot_id=first))
        rollback.roll_back(found, it.catalog, ledger, DECISION)
        merging.go()
        wait_for(lambda: count(it, table) == 3)
        it.assert_appended(table)
        assert Ledger(it.catalog).rows({it.topic: 0}, [LedgerState.FAILED]), "no batch was overtaken"

        # A further column is there from the next round on, a changed type when it is approved.
        it.contract(table=table, columns=[*COLUMNS, {"name": "more", "type": "string"}], **SHORT)
        wait_for(lambda: "more" in it.catalog.load_table(table).schema().column_names)
        send(3, 3, more="x")
        it.contract(table=table, columns=[COLUMNS[0], {"name": "n", "type": "string"}, *COLUMNS[2:]], **SHORT)
        wait_for(lambda: last_state() == "review")
        send(4, 4)
        agreed = ReviewDecision(approve=True, who="ann", why="agreed", run_id="by hand")
        review_schema.answer_review(it.catalog, it.contracts, table, agreed)
        send(5, "five")
    values = {row["id"]: (row["n"], row["n_before_1"]) for row in it.rows(table)}
    assert values == {f"k{n}": (None, n) for n in range(5)} | {"k5": ("five", None)}


@pytest.mark.usefixtures("quick")
def test_a_topic_goes_on_after_a_gap_is_accepted_meanwhile(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    it.create_topic(1)
    table = it.contract(**SHORT)
    make_continuous(it, monkeypatch)
    it.send((0, f"k{n}", {"n": n}) for n in range(10))
    with application(it):
        wait_for(lambda: count(it, table) == 10)
        # Between two rounds records arrive, and are lost before they are read.
        planning_waits = PausedCall(monkeypatch, planning, "write_plan")
        planning_waits.reached()
        it.send((0, f"k{n}", {"n": n}) for n in range(10, 20))
        it.delete_records({0: 13})
        stopped = PausedCall(monkeypatch, planning, "write_plan")
        planning_waits.go()
        stopped.reached()
        stopped.go()
        assert count(it, table) == 10
        inputs = PlanInputs(it.contracts, it.catalog, it.admin)
        (gap,) = accept_gap.accept_gaps(table, None, inputs, DECISION, dry_run=False)
        assert gap.ranges == {0: (10, 13)}
        wait_for(lambda: count(it, table) == 17)
    it.assert_appended(table, without=[(0, offset) for offset in range(10, 13)])
