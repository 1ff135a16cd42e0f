"""Rounds of a continuous group in one Spark application: docs/reference/groups.md, continuous."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import requests
from pyspark.sql import SparkSession

from sluice.errors import BrokerUnavailableError
from sluice.ingest import outcome, rounds, settle
from sluice.ledger.ledger_rows import LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.plan import plan as planning
from tests.support.lake import Lake

pytestmark = pytest.mark.timeout(300)
RUN_ID = "scheduled__continuous"
SHORT: dict[str, Any] = {"maintenance": {"snapshot_age": "1h"}}


def make_continuous(it: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    (it.folder / "groups.yaml").write_text(f"{it.group}: {{schedule: continuous, continuous: {{every: 2s}}}}\n")
    monkeypatch.setenv("SLUICE_CONTRACTS", str(it.folder))


@contextmanager
def application(it: Lake, seconds: float) -> Iterator[Callable[[], int]]:
    """An application that makes rounds in a thread; the function waits for its end and returns its exit code."""
    codes: list[int] = []
    thread = threading.Thread(
        target=lambda: codes.append(rounds.run(it.context(RUN_ID), it.group, it.admin, seconds=seconds))
    )
    thread.start()

    def end() -> int:
        thread.join(200)
        assert codes, "the application has raised an error, or did not end"
        return codes[0]

    yield end
    thread.join(200)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
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
    appended, merged = it.contract(**SHORT), it.contract(mode="upsert", **SHORT)
    make_continuous(it, monkeypatch)
    it.send((n % 4 % 2, f"k{n % 4}", {"n": n}) for n in range(20))
    promised = outcome.summarize_plan(it.plan(RUN_ID))
    with application(it, 18) as end:
        for sent in (20, 40, 60):
            wait_for(lambda sent=sent: count(it, appended) == sent)  # type: ignore[misc]
            it.send((n % 4 % 2, f"k{n % 4}", {"n": n}) for n in range(sent, sent + 20))
        wait_for(lambda: count(it, appended) == 80)
        later = it.contract(**SHORT)  # a contract that comes while the application runs
        monkeypatch.setattr(rounds, "CONTRACTS_EVERY_S", 0.0)
        assert end() == 0
    it.assert_appended(appended)
    it.assert_folded(merged)
    assert count(it, later) == 0  # it is read again after 30 s

    # Each has connections to the catalog, which are never closed.
    assert 1 <= len(opened) <= 2, "rounds use the same sessions again"
    ledger = Ledger(it.catalog)
    batches = ledger.planned_batches(RUN_ID)[it.topic]
    assert len(batches) >= 4
    closed = {r.batch_seq for r in ledger.rows({it.topic: 0}) if r.state == LedgerState.SETTLED}
    assert closed == batches, "each round closes its batches"

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
    with application(it, 14) as end:
        wait_for(lambda: count(it, good) == 1)
        it.send([(0, "c", {"n": 3})])
        wait_for(lambda: count(it, good) == 2)
        assert end() == 0
    rows = Ledger(it.catalog).rows({it.topic: 0}, [LedgerState.BLOCKED])
    # At once, after 4 s, and after 8 s more: not each of seven rounds.
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
    assert rounds.run(it.context(RUN_ID), it.group, it.admin, seconds=3) == 0
    assert count(it, table) == 1

    outage[:] = [BrokerUnavailableError("Kafka does not answer.")] * 1000
    monkeypatch.setattr(rounds, "OUTAGE_S", 0.5)
    with pytest.raises(BrokerUnavailableError):
        rounds.run(it.context(RUN_ID), it.group, it.admin, seconds=30)
