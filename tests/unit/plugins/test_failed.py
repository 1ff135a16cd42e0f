"""Failed runs in Airflow's database appear on the pages, even if they could not write to the ledger."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sluice.embedded.home import REPOSITORY
from sluice.iceberg.table_names import QUARANTINE, STAGING, safe_identifier
from sluice.pages import history, render
from sluice.pages.failed_runs import FailedRun
from sluice.pages.history import History
from sluice.status import timeline
from sluice.status.events import INGEST, Event, Lane
from tests.support.airflow_process import isolated_airflow_env
from tests.support.timelines import timeline_values

pytestmark = pytest.mark.unit

HOSTILE = "\"'><script>alert(1)</script>/../{{ 7*7 }}"
AT = datetime(2026, 11, 22, 6, 0, tzinfo=UTC)


def task(name: str, state: str, ago: int, tries: int = 1, index: int = -1, mapped: str | None = None) -> list[Any]:
    return [name, index, mapped, state, tries, ago]


# DAG, run, state, minutes since its start and its end, its tasks; and of some what they were triggered with.
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
    ["other", "not ours", "failed", 6, 5, [task("plan", "failed", 5, 2)], {"table": "a.t"}],
    ["ingest_planless", "before", "success", 20, 19, [task("plan", "success", 19)]],
    ["ingest_planless", "last", "failed", 9, 8, [task("settle", "failed", 8), task("plan", "failed", 9, 3)]],
    ["ingest_planless", "waits", "queued", None, None, []],
    ["ingest_settled", "last", "failed", 9, 8, [
        task("ingest", "failed", 9), task("settle", "success", 8), task("a.t", "failed", 8),
    ]],
    ["ingest_cured", "before", "failed", 20, 19, [task("plan", "failed", 19)]],
    ["ingest_cured", "last", "success", 9, 8, [task("plan", "success", 8)]],
]  # fmt: skip
SHOWN = partial(task, "table", "failed", 3, 1)
SPARK, ASSESS = task("spark_c", "failed", 4, 3), task("assess", "failed", 4, 3)
# Of DAGs that act on tables and are no group's; who may read `ingest_a` alone is not told of `c.t`.
OTHERS: list[list[Any]] = [
    ["backfill", "b of a.t", "failed", 7, 6, [task("plan", "failed", 6)], {"table": "a.t", "dry_run": True}],
    ["backfill", "b of c.t", "failed", 7, 6, [task("plan", "failed", 6)], {"table": "c.t"}],
    ["backfill", "b of nobody's", "failed", 7, 6, [task("plan", "failed", 6)], {"table": HOSTILE}],
    ["rollback", "r of a.t", "failed", 7, 6, [task("rollback", "failed", 6)], {"table": "a.t"}],
    ["rollback", "good", "success", 7, 6, [task("rollback", "success", 6)], {"table": "a.t"}],
    ["accept_gap", "g of a.u", "failed", 7, 6, [], {"name": "a.u"}],
    ["accept_gap", "g of topic", "failed", 7, 6, [], {"name": "shared"}],
    ["accept_gap", "of long ago", "failed", 11_000, 10_100, [], {"name": "a.t"}],
    ["review_schema", "w older", "running", 9, None, [], {"table": "a.t"}],
    ["review_schema", "w newest", "queued", None, None, [], {"table": "a.t"}],
    ["review_schema", "w odd", "running", 9, None, [], None],
    ["review_schema", "w answered", "success", 9, 8, [], {"table": "a.u"}],
    ["rollback", "w of another dag", "running", 9, None, [], {"table": "a.v"}],
    ["review_schema", "s without", "failed", 7, 6, [], None],
    ["review_schema", "s odd", "failed", 7, 6, [], {"table": ["a.t"], "name": {"a.t": 1}}],
    ["maintain_expire_snapshots", "m of some", "failed", 7, 6, [
        SPARK, SHOWN(0, "a.t"), SHOWN(1, f"{QUARANTINE}.{safe_identifier('a.u')}"),
        task("table", "success", 3, 1, 2, "a.w"),
        SHOWN(3, "c.t"),
    ]],
    ["maintain_expire_snapshots", "m of c.t", "failed", 7, 6, [SHOWN(0, "c.t")], {"tables": ["a.t", "c.t"]}],
    ["maintain_rewrite_data_files", "m of staging", "failed", 7, 6, [SHOWN(0, f"{STAGING}.shared")]],
    ["maintain_rewrite_data_files", "m of the ledger", "failed", 7, 6, [SHOWN(0, "sluice.offsets"), SHOWN(1, "c.t")]],
    ["maintain_rewrite_data_files", "m asked for", "failed", 7, 6, [ASSESS], {"tables": ["a.v"]}],
    ["maintain_remove_orphan_files", "m of all", "failed", 7, 6, [ASSESS], {"tables": [], "dry_run": False}],
    ["maintain_remove_orphan_files", "m of many", "failed", 7, 6, [SHOWN(n, f"a.n{n}") for n in range(5)]],
    ["maintain_of_others", "not ours", "failed", 7, 6, [SHOWN(0, "a.t")]],
]  # fmt: skip
TABLES = [*(["a", f"a.{name}"] for name in ("t", "u", "v", "w", *(f"n{n}" for n in range(5)))), ["c", "c.t"]]
READ = f"""
import json, sys, threading, time
from datetime import UTC, datetime, timedelta
from uuid import uuid4
sys.path.insert(0, {str(REPOSITORY / "plugins")!r})
from airflow.utils.db import initdb
initdb()
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.timetables.simple import NullTimetable
from airflow.utils.session import create_session
from types import SimpleNamespace
from fastapi import HTTPException
from sqlalchemy import text
from sluice.contract.groups import GroupSettings
from sluice.status import timeline
from sluice.pages.feed import Reading
from sluice.status.model import Status, TableStatus, TopicStatus
from sluice_web import changes, failed_runs, ingest_runs, operations, reading

now = datetime.now(UTC)
ago = lambda minutes: None if minutes is None else now - timedelta(minutes=minutes)
with create_session() as session:
    for dag, run, state, began, ended, tasks, *conf in json.loads(sys.argv[1]):
        session.execute(DagRun.__table__.insert().values(
            dag_id=dag, run_id=run, state=state, start_date=ago(began), end_date=ago(ended), run_type="manual",
            run_after=now, conf=next(iter(conf), None),
        ))
        for task, index, name, state, tries, at in tasks:
            session.execute(TaskInstance.__table__.insert().values(
                id=uuid4(), dag_id=dag, run_id=run, task_id=task, map_index=index, rendered_map_index=name, state=state,
                try_number=tries, end_date=ago(at), pool="default_pool",
            ))


known = [
    TableStatus(n, g, "append", "me", topics=[TopicStatus("shared")] if n in ("a.t", "a.u") else [])
    for g, n in json.loads(sys.argv[2])
]
reading.feeds = lambda: SimpleNamespace(status=SimpleNamespace(last=Status(now, known)))
shared = {{*reading.OPERATOR_DAGS, *reading.MAINTENANCE_DAGS}}
others = reading.readable_dags({{*shared, "other", "maintain_of_others"}}, known)


def read(groups, table=None, more=(), feeds=reading.ReadingFeeds()):
    feed = feeds.failed.get_feed(json.dumps([[*map("ingest_{{}}".format, groups), *sorted(more)], table, 7]))
    while (found := feed.get(wait=1)).busy:  # as the pages do, in a thread of its own
        time.sleep(0.01)
    return found


def told(groups, table=None, more=()):
    found = read(groups, table, more)
    assert found.error is None, found.error
    assert all(e.at.tzinfo for e in found.value.events)
    return [[e.dag, e.run_id, e.told, e.seconds, e.bad, e.table] for e in found.value.events]


def whole(*known):
    try:
        found, unavailable = reading.require_history(*known)
    except HTTPException as error:
        return [error.status_code, error.detail]
    return [[e.run_id for e in found.events], unavailable]


answers = {{
    "a": told(["a"]), "all": told(["a", "b"]), "none": told([]), "a.t": told(["a"], "a.t"), "a.u": told(["a"], "a.u"),
    "a.v": told(["a"], "a.v"), "a.w": told(["a"], "a.w"),
    "others": told(["a"], None, others), "alone": told([], None, ["rollback"]),
}}
answers["of"] = {{t.table: told([], t.table, others) for t in known}}
timeline.MAX_EVENTS = 2
answers["newest"] = [run for _, run, *_ in told(["a"], "a.t2")]
with create_session() as session:
    answers["plans"] = []
    for query in (failed_runs._group_runs(["ingest_a"], None, now, 5), failed_runs._shared_runs(["backfill"], now)):
        query = query.compile(session.get_bind(), compile_kwargs={{"literal_binds": True}})
        plan = session.execute(text(f"EXPLAIN QUERY PLAN {{query}}"))
        answers["plans"].append("; ".join(row.detail for row in plan))
answers["newest others"] = [run for _, run, *_ in told(["a"], None, ["backfill"])]
runs, away, gone = read(["b"]), Reading(error="away"), Reading(error="gone")
answers["whole"] = [whole(away, runs), whole(runs, gone), whole(Reading(), runs), whole(away, gone)]
answers["readable"] = [
    reading.is_readable_run(*asked)
    for asked in (
        ("of some", {{"ingest_a", "ingest_b"}}), ("of some", {{"ingest_b"}}),
        ("of some", set()), ("nothing", {{"ingest_a"}}),
    )
]
with create_session() as session:
    session.execute(DagBundleModel.__table__.insert().values(name="dags"))
    for dag, paused, stale in (("maintain_a", 1, 0), ("maintain_b", 0, 0), ("maintain_gone", 1, 1)):
        session.execute(DagModel.__table__.insert().values(
            dag_id=dag, is_paused=bool(paused), is_stale=bool(stale), bundle_name="dags", max_active_tasks=1,
            max_consecutive_failed_dag_runs=0, has_task_concurrency_limits=False, timetable_type="",
            timetable_summary=NullTimetable().summary if dag == "maintain_a" else "0 * * * *",
        ))
answers["unscheduled"] = [*ingest_runs.read_unscheduled(["maintain_a", "maintain_b", "maintain_none"])]
answers["paused"] = reading.read_paused(["maintain_a", "maintain_b", "maintain_gone", "maintain_none"])
with create_session() as session:
    for pool, slots in (("narrow", 1), ("wide", 5)):
        session.add(reading.Pool(pool=pool, slots=slots, include_deferred=False))
    for n, (pool, state) in enumerate((
        ("narrow", "running"), ("narrow", "scheduled"), ("wide", "scheduled"), ("gone", "scheduled"),
    )):
        session.execute(DagRun.__table__.insert().values(
            dag_id=f"ingest_p{{n}}", run_id="p", state="running", run_type="manual", run_after=now,
        ))
        session.execute(TaskInstance.__table__.insert().values(
            id=uuid4(), dag_id=f"ingest_p{{n}}", run_id="p", task_id="spark", map_index=-1, state=state, pool=pool,
            try_number=1, pool_slots=1,
        ))
answers["full pools"] = reading.read_full_pools([f"ingest_p{{n}}" for n in range(4)])
answers["gone"] = sorted(ingest_runs.find_gone_runs(["of some", "never", None, "command__1"]))
names = ["ingest_planless", "ingest_settled", "ingest_cured", "ingest_none"]
last = ingest_runs.read_last_runs(names)
answers["last runs"] = [
    {{dag: [run.run_id, run.state, run.task, run.tries] for dag, run in each.items()}} for each in last
]
one = TableStatus("p.t", "planless", "append", "me")
(seen,) = reading.select_readable(Reading(Status(now, [one])), {{"ingest_planless"}}).value.tables
answers["last runs"].append([seen.run.run_id, seen.failed_run.run_id])
tables = {{t.table: t for t in known}}


def runs_of(table, readable=shared):
    return [[r.run_id, r.state, r.dry_run] for r in operations.list_runs(tables[table], readable)]


answers["runs"] = {{t: runs_of(t) for t in ("a.t", "a.v", "a.w")}}
answers["runs"]["of the group"] = runs_of("a.w", {{"ingest_a", "ingest_b"}})
answers["runs"]["hidden"] = runs_of("a.t", {{"rollback"}})
answers["waiting"] = {{
    t: operations.find_waiting_review(operations.list_runs(tables[t], shared)) for t in ("a.t", "a.u", "a.v", "a.w")
}}
answers["changes"] = {{
    "a.t": changes.find_last_end(["ingest_a"], operations.list_runs(tables["a.t"], shared)),
    "shown only": changes.find_last_end([], operations.list_runs(tables["a.w"], shared)),
    "none": changes.find_last_end(["ingest_c"]),
}}
answers["changes"] = {{
    name: found and round((now - found).total_seconds() / 60) for name, found in answers["changes"].items()
}}
with create_session() as session:
    query = changes._last_end(["ingest_a"], now).compile(session.get_bind(), compile_kwargs={{"literal_binds": True}})
    answers["change plan"] = "; ".join(row.detail for row in session.execute(text(f"EXPLAIN QUERY PLAN {{query}}")))
fields = dict(quarantined=7, problems=["see a.t"])
newer = Status(now + timedelta(seconds=5), [TableStatus("c.t", "c", "append", "me", **fields)])
Fake = type("Fake", (SimpleNamespace,), dict(__hash__=object.__hash__))
feed = lambda value: Fake(get=lambda **_: value, get_since=lambda *_, **__: value)
named = lambda value: SimpleNamespace(get_feed=lambda _: feed(value))
kept = reading.feeds
reading.feeds = lambda: SimpleNamespace(
    status=feed(Reading(Status(now, known), at=now)), tables=named(Reading(newer, at=newer.at)),
    details=named(Reading("detail")), histories=named(Reading("past")),
)
answers["changed"] = []
for change in (None, now - timedelta(seconds=1), now + timedelta(seconds=1)):
    status, *further = changes.read_changed_table({{"ingest_c"}}, "c.t", change, 24)
    (one,) = status.value.tables
    answers["changed"].append([one.quarantined, one.problems, status.value.at == newer.at, *(o.value for o in further)])
reading.feeds = kept
group = lambda name, pool, other=None: SimpleNamespace(
    name=name, settings=GroupSettings.model_validate(dict(pool=pool, maintenance=dict(pool=other)))
)
groups = dict(a=group("a", "default_pool"), b=group("b", "none", "default_pool"), c=group("c", "none", "too"))
pools = lambda: [[name, str(e)] for name, e in reading.find_missing_pools(SimpleNamespace(groups=groups))]
answers["pools"] = pools()
gate, feeds = threading.Event(), reading.ReadingFeeds()
hanging = (feeds.runs, feeds.reports, feeds.failed)
for each in hanging:
    each._read = lambda _: gate.wait(60)
answers["busy"] = [[each.get_feed(str(n)).get().busy for n in range(5)] for each in hanging]
feeds.details._read = len
answers["beside"] = feeds.details.get_feed("a.t").get(wait=30).value
gate.set()
with create_session() as session:
    session.execute(text("DROP TABLE task_instance"))
answers["away"] = read(["a"], "a.x").error
with create_session() as session:
    session.execute(text("ALTER TABLE dag_run RENAME TO gone"))
try:
    reading.is_readable_run("good", {{"ingest_b"}})
except HTTPException as error:
    answers["unreadable"] = [error.status_code, error.detail]
with create_session() as session:
    session.execute(text("ALTER TABLE slot_pool RENAME TO lost"))
answers["no pools"] = pools()
answers["runs"]["away"] = runs_of("a.t")
answers["last runs"].append(ingest_runs.read_last_runs(names))
answers["changes"]["away"] = changes.find_last_end(["ingest_a"])
with create_session() as session:
    session.execute(text("ALTER TABLE dag RENAME TO nowhere"))
answers["paused away"] = reading.read_paused(["maintain_a"])
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("failed")
    env = isolated_airflow_env(folder) | {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db"}
    done = subprocess.run(
        [sys.executable, "-c", READ, json.dumps([*RUNS, *OTHERS]), json.dumps(TABLES)],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_airflow_tells_which_runs_failed_and_by_which_task(answers: dict[str, Any]) -> None:
    assert answers["a"] == answers["all"][1:] and answers["none"] == []
    told = {run: (dag, words, seconds, bad) for dag, run, words, seconds, bad, _ in answers["all"]}
    assert list(told) == ["good", HOSTILE, "of one table", "of some", "by hand"]
    assert {bad for _, _, _, bad in told.values()} == {True}
    assert told["good"][0] == "ingest_b"
    dag, words, seconds, _ = told[HOSTILE]
    assert (dag, seconds) == ("ingest_a", 600.0)
    assert words.startswith("run of ingest_a: task plan failed after 4 tries; began 2")
    assert words.endswith(" UTC, took 10m")
    assert "task a.t failed after 1 try; " in told["of one table"][1]
    assert told["by hand"][1:3] == ("run of ingest_a: no task failed; never began", None)


def test_a_table_has_no_part_in_what_failed_for_others_alone(answers: dict[str, Any]) -> None:
    told = {name: {run: words for _, run, words, *_ in answers[name]} for name in ("a.t", "a.u", "a.v", "a.w")}
    every = {HOSTILE, "by hand"}
    assert {name: set(runs) - every for name, runs in told.items()} == {
        "a.t": {"of one table"}, "a.u": {"of some"}, "a.v": {"of some"}, "a.w": set(),
    }  # fmt: skip
    assert all(every <= set(runs) for runs in told.values())
    assert "task table failed" in told["a.v"]["of some"]  # its own, though another table's failed first
    assert answers["newest"] == [HOSTILE, "by hand"]  # what is left out takes the place of nothing


def test_the_last_run_of_a_group_counts_if_it_failed_before_any_table_had_an_outcome(answers: dict[str, Any]) -> None:
    going_on, failed, seen, away = answers["last runs"]
    assert going_on == {"ingest_planless": ["waits", "queued", None, 0]}
    assert failed == {"ingest_planless": ["last", "failed", "plan", 3]}
    assert seen == ["waits", "last"]
    assert away == [{}, {}]


def test_runs_that_airflow_does_not_have_are_known(answers: dict[str, Any]) -> None:
    assert answers["gone"] == ["command__1", "never"]


def test_a_run_is_found_among_readable_dags_only(answers: dict[str, Any]) -> None:
    assert answers["readable"] == [True, False, False, False]
    assert answers["unreadable"] == [503, "Airflow's database did not answer. Retry."]


def test_readings_of_runs_that_hang_keep_no_page_of_a_table_waiting(answers: dict[str, Any]) -> None:
    assert answers["busy"] == [[True] * 4 + [False]] * 3
    assert answers["beside"] == len("a.t")


def test_a_pool_that_airflow_does_not_have_is_an_error_of_its_groups(answers: dict[str, Any]) -> None:
    advice = "wait for it. Next step: Create it: sluice airflow setup."
    assert answers["pools"] == [
        ["b", f"Airflow has no pool 'none': tasks of group b {advice}"],
        ["c", f"Airflow has no pool 'none': tasks of group c {advice}"],
        ["c", f"Airflow has no pool 'too': tasks of group c {advice}"],
    ]
    assert answers["no pools"] == []


def test_a_dag_is_paused_or_not_or_airflow_does_not_know(answers: dict[str, Any]) -> None:
    assert answers["paused"] == {"maintain_a": True, "maintain_b": False}
    assert answers["unscheduled"] == ["maintain_a"]
    assert answers["paused away"] == {}


def test_a_run_that_waits_for_a_slot_is_known_by_its_pool(answers: dict[str, Any]) -> None:
    assert answers["full pools"] == {"ingest_p1": "narrow"}


def test_a_review_that_waits_is_found_by_its_table(answers: dict[str, Any]) -> None:
    assert answers["waiting"] == {"a.t": "w newest", "a.u": None, "a.v": None, "a.w": None}


def test_the_runs_of_a_table_are_shown_until_a_day_after_their_end(answers: dict[str, Any]) -> None:
    rollbacks = [["good", "success", True], ["r of a.t", "failed", True]]
    assert answers["runs"] == {
        "a.t": [
            ["w newest", "queued", False], ["w older", "running", False], ["m of c.t", "failed", False],
            ["g of topic", "failed", True], *rollbacks, ["b of a.t", "failed", True],
        ],
        "a.v": [["w of another dag", "running", True], ["m asked for", "failed", False]],
        "a.w": [],
        "of the group": [["underway", "running", False]],
        "hidden": rollbacks,  # from a viewer who may read this DAG alone
        "away": [],
    }  # fmt: skip


def test_a_page_reads_again_what_runs_have_changed_that_somebody_started(answers: dict[str, Any]) -> None:
    """The newest end of a run of the group or of an operation on the table; that of a dry run changes nothing."""
    assert answers["changes"] == {"a.t": 6, "shown only": None, "none": None, "away": None}


def test_a_status_with_a_table_that_was_read_again_names_no_other_that_its_reader_may_not_see(
    answers: dict[str, Any],
) -> None:
    old = [None, [], False, "detail", "past"]
    assert answers["changed"] == [old, old, [7, ["see another table"], True, "detail", "past"]]


def test_the_last_end_is_looked_for_among_the_newest_runs_without_sorting_all(answers: dict[str, Any]) -> None:
    assert "TEMP B-TREE" not in answers["change plan"], answers["change plan"]


def test_they_are_found_by_the_indexes_of_runs(answers: dict[str, Any]) -> None:
    # By that of states, a week of 10,000 runs took half a minute on SQLite.
    for told in answers["plans"]:
        assert "INDEX dag_id_state (dag_id=? AND state=?)" in told
        assert "INDEX ti_dag_run (dag_id=? AND run_id=?)" in told


def test_runs_that_act_on_tables_are_told_to_those_who_see_one_of_them(answers: dict[str, Any]) -> None:
    told = {run: (table, words) for dag, run, words, *_, table in answers["others"] if dag != "ingest_a"}
    # What can't be known to be about others alone is told, and names nothing that the reader may not see.
    assert {run: table for run, (table, _) in told.items()} == {
        "b of a.t": "a.t", "r of a.t": "a.t", "g of a.u": "a.u", "m asked for": "a.v",
        **dict.fromkeys(("b of nobody's", "g of topic", "s without", "s odd"), None),
        **dict.fromkeys(("m of some", "m of staging", "m of the ledger", "m of all", "m of many"), None),
    }  # fmt: skip
    text = json.dumps(answers["others"])
    assert "c.t" not in text and "script" not in text.replace(json.dumps(HOSTILE)[1:-1], "")
    begins = {run: words.partition("; began")[0] for run, (_, words) in told.items()}
    assert begins["b of a.t"] == "run of backfill: task plan failed after 1 try"
    assert begins["m of some"] == "run of maintain_expire_snapshots: task spark_c failed after 3 tries (a.t, a.u)"
    assert begins["g of topic"] == "run of accept_gap: no task failed (a.t, a.u)"
    assert begins["m of many"].endswith("task table failed after 1 try (a.n0, a.n1, a.n2 and 2 more)")
    assert begins["m of all"].endswith("task assess failed after 3 tries")
    assert answers["alone"] == []  # who sees no table
    assert answers["newest others"] == ["b of a.t", "b of nobody's"]  # what is left out takes the place of nothing


def test_a_tables_own_lane_has_those_runs_alone_that_were_about_it(answers: dict[str, Any]) -> None:
    told = {table: {run: words for _, run, words, *_ in runs} for table, runs in answers["of"].items()}
    assert {table: set(runs) for table, runs in told.items()} == {
        "a.t": {"b of a.t", "r of a.t", "g of topic", "m of some", "m of staging"},
        "a.u": {"g of a.u", "g of topic", "m of some", "m of staging"},
        "a.v": {"m asked for"}, "a.w": set(), **{f"a.n{n}": {"m of many"} for n in range(5)},
        "c.t": {"b of c.t", "m of some", "m of c.t", "m of the ledger"},
    }  # fmt: skip
    assert "task table failed after 1 try; began" in told["a.t"]["m of some"]  # not by another group's application
    assert {table for runs in answers["of"].values() for *_, table in runs} == set(told) - {"a.w"}


def test_a_database_that_is_away_is_said_in_a_line(answers: dict[str, Any]) -> None:
    told = answers["away"]
    assert (
        told.startswith("Failed runs cannot be read from Airflow's database: OperationalError: ") and "\n" not in told
    )


def test_programs_are_told_the_runs_though_the_ledger_is_away_and_what_is_away(answers: dict[str, Any]) -> None:
    assert answers["whole"] == [
        [["good"], ["away"]], [["good"], ["gone"]], [503, "The first reading is under way. Retry."], [503, "away"],
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
    left = [e.run_id for e in history.drop_explained_runs([*known, *runs]) if e.lane == Lane.RUNS]
    # What was made again within the run did not fail it, nor did what was published, or a warning.
    assert left == ["r4", "r5", "r6", "r7"]


def test_a_run_of_the_same_id_of_another_dag_is_another_run() -> None:
    dag = "maintain_expire_snapshots"
    refused = Event(AT, Lane.REFUSED, "blocked", "db.t", "t", True, "r1", dag=INGEST)
    maintained = [Event(AT, Lane.MAINTENANCE, "failed", "db.t", bad=bad, run_id="r2", dag=dag) for bad in (True, False)]
    runs = [FailedRun(name, run_id, AT, AT) for run_id in ("r1", "r2") for name in ("ingest_g", dag)]
    events = [each.event for each in runs]

    def left(*known: Event) -> list[tuple[str | None, str | None]]:
        return [(e.dag, e.run_id) for e in history.drop_explained_runs([*known, *events]) if e.lane == Lane.RUNS]

    assert left(refused, maintained[1]) == [(dag, "r1"), ("ingest_g", "r2"), (dag, "r2")]
    assert left(maintained[0]) == [("ingest_g", "r1"), (dag, "r1"), ("ingest_g", "r2")]


def test_runs_are_told_beside_the_ledger_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = AT - timedelta(hours=1)
    ledger = History(before, [Event(before, Lane.PUBLISHED, "published", "db.t", "t")])
    failed = History(AT, [run("r2"), run("r1", 90)])
    both = history.merge_histories(ledger, failed)
    assert both is not None and both.at == AT
    assert [e.run_id for e in both.events] == ["r2", None, "r1"]
    assert history.merge_histories(None, failed) == failed and history.merge_histories(ledger, None) == ledger
    assert history.merge_histories(None, None) is None
    monkeypatch.setattr(timeline, "MAX_EVENTS", 2)
    assert history.select_hours(both, 1, both.events).cut == [] and history.select_hours(both, 24, both.events).cut == [
        Lane.RUNS
    ]


def page(name: str, known: History, *, ledger: bool = False, **values: Any) -> str:
    return render.render_page(
        "timeline.html", base="/sluice", airflow="", refresh=30, reading=False, unread=False, read_at=AT,
        here="timeline", errors=["The catalog did not answer."], ledger=ledger, groups={}, too_many=False, target=None,
        charts=None, error=None, missing=(),
        **{"readable": {"ingest_g"}, **timeline_values(known, name), **values},
    )  # fmt: skip


@pytest.mark.parametrize("name", ["", "db.t"])
def test_the_page_shows_them_while_the_catalog_is_away(name: str) -> None:
    told = page(name, History(AT, [run(HOSTILE)]))
    assert "The ledger could not be read. Only failed runs, read from Airflow, are shown." in told
    lane = "failed runs" if name else "topics and DAGs"
    assert 'id="then"' not in told and f'<tr><th scope="row">{lane}<small>1, 1 failed</small></th>' in told
    words = "run of ingest_g: task plan failed after 3 tries; began "
    assert f"{words}2026-11-22 05:58:00 UTC, took 2m" in told and f"{words}<time " in told
    assert "<script>alert" not in told and "49" not in told and ">None<" not in told
    link = "/dags/ingest_g/runs/%22%27%3E%3Cscript%3Ealert%281%29%3C%2Fscript%3E%2F..%2F%7B%7B%207%2A7%20%7D%7D"
    assert f'data-airflow-path="{link}"' in told
    nothing = page(name, History(AT, []))
    assert "No failed runs in the last 24 h." in nothing and "No events" not in nothing
    assert "No events in the last 24 h." in page(name, History(AT, []), ledger=True)
