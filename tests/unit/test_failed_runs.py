"""Runs that failed, from a database of Airflow's to the pages: what nobody could write into the ledger stands there."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sluice import timeline
from sluice.embedded.home import REPOSITORY
from sluice.events import Event, Lane
from sluice.pages import history, render
from sluice.pages.failed import FailedRun
from sluice.pages.history import History
from tests.support.own_airflow import own_airflow

pytestmark = pytest.mark.unit

HOSTILE = "\"'><script>alert(1)</script>/../{{ 7*7 }}"
AT = datetime(2026, 11, 22, 6, 0, tzinfo=UTC)


def task(name: str, state: str, ago: int, tries: int = 1, index: int = -1, mapped: str | None = None) -> list[Any]:
    return [name, index, mapped, state, tries, ago]


# DAG, run, state, minutes since its start and its end, its tasks.
RUNS: list[list[Any]] = [
    ["ingest_a", "good", "success", 9, 8, [task("plan", "success", 8)]],
    ["ingest_a", "underway", "running", 9, None, [task("plan", "failed", 8)]],
    ["ingest_a", HOSTILE, "failed", 20, 10, [
        task("settle", "failed", 11), task("plan", "failed", 12, 4), task("a.t", "upstream_failed", 11, 0),
    ]],
    ["ingest_a", "of one table", "failed", 40, 30, [task("plan", "success", 39), task("a.t", "failed", 31)]],
    ["ingest_a", "of some", "failed", 50, 40, [
        task("a.u", "failed", 43), task("table", "failed", 42, 1, 0, "a.v"), task("table", "success", 44, 1, 1, "a.w"),
    ]],
    ["ingest_a", "by hand", "failed", None, 60, []],
    ["ingest_a", "of long ago", "failed", 11_000, 10_100, [task("plan", "failed", 10_100)]],
    ["ingest_b", "good", "failed", 6, 5, [task("ingest", "failed", 5, 2)]],
    ["other", "not ours", "failed", 6, 5, [task("plan", "failed", 5, 2)]],
]  # fmt: skip
READ = f"""
import json, sys, time
from datetime import UTC, datetime, timedelta
from uuid import uuid4
sys.path.insert(0, {str(REPOSITORY / "plugins")!r})
from airflow.utils.db import initdb
initdb()
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from fastapi import HTTPException
from sqlalchemy import text
from sluice import timeline
from sluice.pages.feed import Reading
from sluice_web import failed, reading

now = datetime.now(UTC)
ago = lambda minutes: None if minutes is None else now - timedelta(minutes=minutes)
with create_session() as session:
    for dag, run, state, began, ended, tasks in json.loads(sys.argv[1]):
        session.execute(DagRun.__table__.insert().values(
            dag_id=dag, run_id=run, state=state, start_date=ago(began), end_date=ago(ended), run_type="manual",
            run_after=now,
        ))
        for task, index, name, state, tries, at in tasks:
            session.execute(TaskInstance.__table__.insert().values(
                id=uuid4(), dag_id=dag, run_id=run, task_id=task, map_index=index, rendered_map_index=name, state=state,
                try_number=tries, end_date=ago(at), pool="default_pool",
            ))


def read(groups, table=None, feeds=reading._Feeds()):
    feed = feeds.failed.of(json.dumps([groups, table]))
    while (found := feed.get(wait=1)).busy:  # as the pages do, in a thread of its own
        time.sleep(0.01)
    return found


def told(groups, table=None):
    found = read(groups, table)
    assert found.error is None, found.error
    assert all(e.at.tzinfo for e in found.value.events)
    return [[e.dag, e.run_id, e.told, e.seconds, e.bad] for e in found.value.events]


def whole(*known):
    try:
        found, unavailable = reading.whole(*known)
    except HTTPException as error:
        return [error.status_code, error.detail]
    return [[e.run_id for e in found.events], unavailable]


answers = {{
    "a": told(["a"]), "all": told(["a", "b"]), "none": told([]), "a.t": told(["a"], "a.t"), "a.u": told(["a"], "a.u"),
    "a.v": told(["a"], "a.v"), "a.w": told(["a"], "a.w"),
}}
timeline.MOST = 2
answers["newest"] = [run for _, run, *_ in told(["a"], "a.t2")]
with create_session() as session:
    query = failed._query(["ingest_a"], None, now, 5)
    query = query.compile(session.get_bind(), compile_kwargs={{"literal_binds": True}})
    answers["plan"] = [row.detail for row in session.execute(text(f"EXPLAIN QUERY PLAN {{query}}"))]
runs, away, gone = read(["b"]), Reading(error="away"), Reading(error="gone")
answers["whole"] = [whole(away, runs), whole(runs, gone), whole(Reading(), runs), whole(away, gone)]
with create_session() as session:
    session.execute(text("DROP TABLE task_instance"))
answers["away"] = read(["a"], "a.x").error
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("failed")
    env = own_airflow(folder) | {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db"}
    done = subprocess.run(
        [sys.executable, "-c", READ, json.dumps(RUNS)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_airflow_tells_which_runs_failed_and_by_which_task(answers: dict[str, Any]) -> None:
    assert answers["a"] == answers["all"][1:] and answers["none"] == []
    told = {run: (dag, words, seconds, bad) for dag, run, words, seconds, bad in answers["all"]}
    assert list(told) == ["good", HOSTILE, "of one table", "of some", "by hand"]
    assert {bad for _, _, _, bad in told.values()} == {True}
    assert told["good"][0] == "ingest_b"
    dag, words, seconds, _ = told[HOSTILE]
    assert (dag, seconds) == ("ingest_a", 600.0)
    assert words.startswith("run of ingest_a: task plan failed after 4 tries; it began 2")
    assert words.endswith(" UTC and took 10m")
    assert "task a.t failed after 1 try; " in told["of one table"][1]
    assert told["by hand"][1:3] == ("run of ingest_a: no task of it failed; it never began", None)


def test_a_table_has_no_part_in_what_failed_for_others_alone(answers: dict[str, Any]) -> None:
    told = {name: {run: words for _, run, words, *_ in answers[name]} for name in ("a.t", "a.u", "a.v", "a.w")}
    every = {HOSTILE, "by hand"}
    assert {name: set(runs) - every for name, runs in told.items()} == {
        "a.t": {"of one table"}, "a.u": {"of some"}, "a.v": {"of some"}, "a.w": set(),
    }  # fmt: skip
    assert all(every <= set(runs) for runs in told.values())
    assert "task table failed" in told["a.v"]["of some"]  # its own, though another table's failed first
    assert answers["newest"] == [HOSTILE, "by hand"]  # what is left out takes the place of nothing


def test_they_are_found_by_the_indexes_of_runs(answers: dict[str, Any]) -> None:
    # By that of states, a week of 10,000 runs took half a minute on SQLite.
    told = "; ".join(answers["plan"])
    assert "INDEX dag_id_state (dag_id=? AND state=?)" in told and "INDEX ti_dag_run (dag_id=? AND run_id=?)" in told


def test_a_database_that_is_away_is_said_in_a_line(answers: dict[str, Any]) -> None:
    told = answers["away"]
    assert told.startswith("Airflow's database did not tell which runs failed: OperationalError: ") and "\n" not in told


def test_programs_are_told_the_runs_though_the_ledger_is_away_and_what_is_away(answers: dict[str, Any]) -> None:
    assert answers["whole"] == [
        [["good"], ["away"]], [["good"], ["gone"]], [503, "It is being read; ask again."], [503, "away"],
    ]  # fmt: skip


def run(run_id: str, minutes: int = 0) -> Event:
    began, ended = AT - timedelta(minutes=minutes + 2), AT - timedelta(minutes=minutes)
    return FailedRun("ingest_g", run_id, began, ended, "plan", 3).event


def test_what_the_ledger_tells_of_a_table_is_not_told_twice() -> None:
    def ledger(run_id: str, words: str, lane: Lane, *, bad: bool = True) -> Event:
        return Event(AT, lane, f"{words}, t, batch 1", "db.t", "t", bad, run_id)

    known = [
        ledger("r1", "blocked", Lane.REFUSED), ledger("r2", "failed", Lane.CATALOG),
        ledger("r3", "failed", Lane.REGISTRY), ledger("r4", "retried", Lane.CATALOG),
        ledger("r5", "published", Lane.PUBLISHED, bad=False), ledger("r6", "judged", Lane.QUALITY),
    ]  # fmt: skip
    runs = [run(f"r{n}", n) for n in range(1, 8)]
    left = [e.run_id for e in history.untold([*known, *runs]) if e.lane == Lane.RUNS]
    # What was made again within the run did not fail it, nor did what was published, or a warning.
    assert left == ["r4", "r5", "r6", "r7"]


def test_runs_are_told_beside_the_ledger_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = AT - timedelta(hours=1)
    ledger = History(before, [Event(before, Lane.PUBLISHED, "published", "db.t", "t")])
    failed = History(AT, [run("r2"), run("r1", 90)])
    both = history.together(ledger, failed)
    assert both is not None and both.at == AT
    assert [e.run_id for e in both.events] == ["r2", None, "r1"]
    assert history.together(None, failed) == failed and history.together(ledger, None) == ledger
    assert history.together(None, None) is None
    monkeypatch.setattr(timeline, "MOST", 2)
    assert history.window(both, 1, both.events).cut == [] and history.window(both, 24, both.events).cut == [Lane.RUNS]


def page(name: str, known: History, *, ledger: bool = False, **values: Any) -> str:
    return render.page(
        "timeline.html", base="/sluice", airflow="", again=30, reading=False, unread=False, read_at=AT,
        here="timeline", troubles=["The catalog did not answer."], window=history.window(known, 24, known.events),
        hours=24, choices=history.HOURS, ledger=ledger, shown=9, groups={}, too_many=False, name=name, promised=None,
        at="", asked=None, standing=None, trouble=None, missing=(), **values,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["", "db.t"])
def test_the_page_shows_them_while_the_catalog_is_away(name: str) -> None:
    told = page(name, History(AT, [run(HOSTILE)]))
    assert "The ledger could not be read. What Airflow knows of stands here alone: runs that failed." in told
    assert 'id="then"' not in told and '<tr><th scope="row">failed runs<small>1, 1 bad</small></th>' in told
    assert (
        told.count("run of ingest_g: task plan failed after 3 tries; it began 2026-11-22 05:58:00 UTC and took 2m") >= 2
    )
    assert "<script>alert" not in told and "49" not in told and ">None<" not in told
    link = "/dags/ingest_g/runs/%22%27%3E%3Cscript%3Ealert%281%29%3C%2Fscript%3E%2F..%2F%7B%7B%207%2A7%20%7D%7D"
    assert f'data-airflow-path="{link}"' in told
    nothing = page(name, History(AT, []))
    assert "No run failed within 24 h." in nothing and "Nothing happened" not in nothing
    assert "Nothing happened within 24 h." in page(name, History(AT, []), ledger=True)
