"""The pages without Airflow: a table's state, hostile text in HTML, and readings that block nobody."""

from __future__ import annotations

import html
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import IntegerType

from sluice.batch import PublishedOffsets
from sluice.contract.contract import Contract
from sluice.dag_ids import OPERATOR_DAGS
from sluice.errors import BlockedError, CatalogUnavailableError, ExpectationsFailedError
from sluice.iceberg import tables
from sluice.ledger import quality_table
from sluice.ledger.error_causes import error_columns
from sluice.ledger.schemas_table import SchemaRow, SchemaState
from sluice.offsets import OffsetRange
from sluice.pages import charts, detail, feed, history, last_known, render
from sluice.pages.feed import Feed, Reading
from sluice.pages.operations import Rights
from sluice.pages.quality import overview as quality_overview
from sluice.pages.quality import trends
from sluice.pages.quality.overview import TableQuality
from sluice.pages.quality.trends import Trend
from sluice.pages.quarantine_summary import ErrorGroup, QuarantineSummary
from sluice.pages.table_contract import ContractColumn, TableContract, describe_contract
from sluice.pages.table_operations import TableOperations
from sluice.pages.tables_overview import Overview, Row, View, make_overview
from sluice.plan.risk import RiskStatus
from sluice.status import text, verdicts
from sluice.status.activity import BatchEnd, TableActivity
from sluice.status.batch_counts import Bar, Bars, BatchCounts
from sluice.status.events import INGEST, RANGES, Event, Lane
from sluice.status.model import (
    AcceptedGap,
    ExpectationsSummary,
    LastError,
    PartitionStatus,
    SnapshotStatus,
    Status,
    TableStatus,
    TopicStatus,
)
from sluice.status.open_work import IngestRun, OpenBatch, SliceStatus
from sluice.status.readiness import FRESHNESS, ReadinessCheck, with_current_freshness
from sluice.status.timeline import TableAsOf
from sluice.status.verdicts import Tone
from tests.support.timelines import timeline_values

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 22, 6, 0, tzinfo=UTC)
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}</table>"


ANYTHING = Rights(lambda _: True, lambda _: True, lambda _: True)
"""Of a viewer who may do everything; no DAG is paused."""


FAILED_CHECK = ExpectationsSummary("t", 3, NOW, 1, 0, ["warn: 3 of 5 rows fail"])


def table(**changes: Any) -> TableStatus:
    topics = [TopicStatus("t", lag_records=0, partitions=[PartitionStatus(0, 0, 10, 10, 10, 0)])]
    given = {"table": "db.t", "group": "g", "mode": "append", "owner": "me", "exists": True, "topics": topics}
    return TableStatus(**{**given, **changes})


def error(state: str = "failed", *, is_open: bool = True) -> LastError:
    return LastError(NOW, state, "t", 3, "why it was refused", "run", open=is_open)


def late(**changes: Any) -> TableStatus:
    return table(freshness_kept=False, freshness_now_seconds=7200.0, freshness_promised_seconds=900.0, **changes)


@pytest.mark.parametrize(
    ("given", "word", "tone"),
    [
        (table(), "fresh", Tone.GOOD),
        (replace(table(), topics=[TopicStatus("t", lag_records=7)]), "reading", Tone.GOOD),
        (replace(table(), exists=False), "new", Tone.UNKNOWN),
        (replace(table(), exists=None), "unknown", Tone.UNKNOWN),
        (replace(table(), topics=[TopicStatus("t")]), "unknown", Tone.UNKNOWN),
        (table(risks=[RiskStatus("unread", "t", "Kafka deletes it soon")]), "at risk", Tone.WARN),
        (table(schema="a change waits"), "review", Tone.WARN),
        (table(expectations=FAILED_CHECK), "doubtful", Tone.WARN),
        (table(expectations=FAILED_CHECK, paused=True), "paused", Tone.WARN),
        (table(expectations=FAILED_CHECK, risks=[RiskStatus("unread", "t", "soon")]), "at risk", Tone.WARN),
        (table(slices=[SliceStatus("t", -1, "blocked", {}, NOW, "r", "no", None)]), "backfill refused", Tone.WARN),
        (table(paused=True), "paused", Tone.WARN),  # never green
        (late(paused=True), "late", Tone.BAD),
        (late(), "late", Tone.BAD),
        (late(last_error=error("blocked", is_open=False)), "late", Tone.BAD),
        (late(last_error=error()), "failed", Tone.BAD),
        (late(last_error=error(), problems=["offsets are lost"]), "stopped", Tone.BAD),
        (late(last_error=error("blocked"), problems=["it is blocked"]), "blocked", Tone.BAD),
    ],
)
def test_the_most_urgent_state_is_the_one_that_is_shown(given: TableStatus, word: str, tone: Tone) -> None:
    found = verdicts.worst_verdict(given)
    assert (found.word, found.tone) == (word, tone)
    assert found.why


def test_what_is_set_apart_is_not_said_to_be_in_the_table() -> None:
    assert verdicts.worst_verdict(table(quarantined=0)).why == "All records of the topics are published."
    assert verdicts.worst_verdict(table(quarantined=50)).why.endswith(" are published, except 50 in quarantine.")


def test_late_says_what_made_it_late() -> None:
    # The newest record of one partition is in the table: no distance, and another partition was not read for hours.
    topics = [TopicStatus("t", lag_records=7, lag_seconds=2.0, late={1: 7}), TopicStatus("u", lag_records=0, late={})]
    why = verdicts.worst_verdict(replace(late(), topics=topics, freshness_now_seconds=2.0)).why
    assert why == "7 unread offsets are older than the freshness target of 15m."
    paused, waits, else_ = (
        verdicts.worst_verdict(late(**cause)).todo
        for cause in ({"paused": True, "waits_for_pool": "p"}, {"waits_for_pool": "p"}, {})
    )
    assert paused == "DAG ingest_g is paused: unpause it."
    assert waits.startswith("A run of DAG ingest_g waits for a slot of pool p:")
    assert else_ == "Check that DAG ingest_g runs, and how long its batches take."


def test_while_nobody_answers_a_table_shows_what_was_known_and_as_of_when() -> None:
    live = table(quarantined=3, freshness_kept=True, freshness_now_seconds=0.0)
    failing = replace(late(last_error=error()), table="db.u")
    before = Status(NOW, [live, failing])
    blank = [TableStatus(t.table, "g", "append", "me", unasked=["catalog"]) for t in before.tables]
    away = Status(NOW + timedelta(minutes=1), blank, unasked=["catalog"])
    now = last_known.fill_from_last(away, before)
    assert last_known.fill_from_last(away, None) is away and last_known.fill_from_last(before, now) is before
    assert [(t.as_of, t.quarantined, t.lag_records) for t in now.tables] == [(NOW, 3, 0), (NOW, None, 0)]
    assert [verdicts.worst_verdict(t).word for t in now.tables] == ["unknown", "failed"]
    assert "as of 2026-11-22 06:00:00 UTC" in verdicts.worst_verdict(now.tables[0]).why
    assert (
        now.at == away.at and last_known.fill_from_last(away, now).tables == now.tables
    )  # of when it was, however long it lasts
    listed = page("tables.html", tables=now.tables)
    assert listed.count("<small>as of <time") == 2
    alone = page("table.html", table=now.tables[0], verdicts=[verdicts.worst_verdict(now.tables[0])], detail=None)
    assert "No answer from the catalog. The values that depend on it are as of <time" in alone
    # The line at the top says who is away, and not each row again.
    assert listed.count("did not answer") == 1 and "why it was refused" in listed  # the badge's title
    # The catalog alone answers: what it tells is of now.
    newer = TableStatus("db.t", "g", "append", "me", True, [TopicStatus("t")], quarantined=4, unasked=["kafka"])
    (seen,) = last_known.fill_from_last(Status(away.at, [newer], unasked=["kafka"]), before).tables
    assert (seen.quarantined, seen.lag_records, seen.freshness_now_seconds, seen.as_of) == (4, 0, 0.0, NOW)
    # By a pattern, and nobody to ask which tables it stands for.
    assert len(last_known.fill_from_last(Status(away.at, [], unasked=["kafka", "catalog"]), before).tables) == 2
    assert last_known.fill_from_last(Status(away.at, [], unasked=["kafka"]), before).tables == []


def test_who_may_see_a_table_that_could_not_be_asked_is_told_by_its_contract_as_it_is_now() -> None:
    was = table(quarantined=5)
    now = TableStatus("db.t", "secret", "upsert", "you", unasked=["catalog"], last_error=error("blocked"))
    found = last_known.fill_from_last(
        Status(NOW + timedelta(minutes=1), [now], unasked=["catalog"]), Status(NOW, [was])
    )
    assert found.filter_groups(lambda group: group == was.group).tables == []
    (seen,) = found.filter_groups(lambda group: group == "secret").tables
    assert (seen.group, seen.mode, seen.owner, seen.quarantined, seen.as_of) == ("secret", "upsert", "you", 5, NOW)
    assert verdicts.worst_verdict(seen).word == "blocked"  # the ledger told of it


def test_a_run_of_the_group_has_one_button() -> None:
    for each in (table(), table(last_error=error("blocked")), late(paused=True)):
        found = page("table.html", table=each, verdicts=list(verdicts.list_verdicts(each)), detail=None)
        assert found.count(">Run now…</button>") == 1
        assert found.count(">Unpause…</button>") == each.paused
    decided = replace(error("blocked"), decided_by="ann", decided_at=NOW)
    each = table(last_error=decided)
    found = page("table.html", table=each, verdicts=list(verdicts.list_verdicts(each)), detail=None)
    assert "ann decided at <time" in found and "Publish anyway…" not in found and "Start a run of DAG <a" in found
    assert found.count(">Run now…</button>") == 1
    assert "Publish anyway…" not in page("tables.html", tables=[each])


def test_a_run_that_failed_before_any_table_is_named_with_its_time_and_log() -> None:
    failed = IngestRun("r1", "failed", NOW, NOW, "plan", 3)
    each = table(failed_run=failed, run=IngestRun("r2", "queued", NOW))
    (verdict, *_) = verdicts.list_verdicts(each)
    assert (verdict.word, verdict.tone) == ("failed", Tone.BAD)
    why = "The last run of DAG ingest_g failed at 2026-11-22 06:00:00 UTC: task plan failed after 3 tries."
    assert verdict.why == why
    for found in (
        page("tables.html", tables=[each]),
        page("table.html", table=each, verdicts=list(verdicts.list_verdicts(each)), detail=None),
    ):
        assert 'data-airflow-path="/dags/ingest_g/runs/r1/tasks/plan" href="#">Log</a>' in found
        assert 'data-airflow-path="/dags/ingest_g/runs/r2" href="#">Run queued</a> since <time' in found
    assert [v.todo for v in verdicts.list_verdicts(late(failed_run=failed)) if v.word == "late"] == [
        "The last run of DAG ingest_g failed: fix its cause."
    ]
    told = replace(error(), run_id="r1")  # the ledger has this run's own reason
    assert [v.why for v in verdicts.list_verdicts(table(failed_run=failed, last_error=told))][:1] == [told.error]
    assert all(v.word != "failed" for v in [*verdicts.list_verdicts(table(failed_run=failed, last_error=told))][1:])


@pytest.mark.parametrize(
    ("changes", "tone", "figure", "card"),
    [
        # Its topic was quiet for hours: what is unread is minutes old, and the next run publishes it.
        ({}, "good", "&lt; 60m", "100%"),
        ({"last_error": error("blocked")}, "bad", "4h", "0%"),
        ({"paused": True}, "bad", "4h", "0%"),
        ({"failed_run": IngestRun("r", "failed", NOW, NOW, "plan", 1)}, "bad", "4h", "0%"),
        ({"freshness_kept": False}, "bad", "4h", "0%"),
    ],
)
def test_bar_figure_and_card_say_the_same_of_a_freshness(
    changes: dict[str, Any], tone: str, figure: str, card: str
) -> None:
    given = {"freshness_kept": True, "freshness_now_seconds": 4 * 3600.0, "freshness_promised_seconds": 3600.0}
    each = table(**{**given, **changes})
    found = page("tables.html", tables=[each])
    assert f'<svg class="gauge {tone}"' in found and f"<b>{card}</b> within the freshness target" in found
    shown = page("table.html", table=each, verdicts=list(verdicts.list_verdicts(each)), detail=None)
    assert all(f">{figure}" in text for text in (found, shown))


def test_a_batch_that_is_not_published_is_among_the_batches() -> None:
    waiting = [
        OpenBatch("t", 3, "staged", {0: OffsetRange(5, 9)}),
        OpenBatch("t", 4, "planned", {0: OffsetRange(9, 12)}),
    ]
    each = table(last_error=error("blocked"), open_batches=waiting)
    found = page("table.html", table=each, verdicts=[verdicts.worst_verdict(each)], detail=detail.TableDetail())
    assert "Batch 3 of t is staged, and not published: blocked. Offsets: partition 0: 5 to 8." in found
    assert "Batch 4 of t is planned, and not staged yet. Offsets: partition 0: 9 to 11." in found


def test_a_run_that_airflow_does_not_have_is_no_link() -> None:
    batches = [
        detail.PublishedBatch("t", n, {}, "publish", n, NOW, run, 1, 0, 1)
        for n, run in enumerate(("scheduled__1", "scheduled__gone", "command__2026"))
    ]
    found = page(
        "table.html", table=table(), verdicts=[verdicts.worst_verdict(table())],
        gone_runs={"scheduled__gone", "command__2026"}, detail=detail.TableDetail(batches=batches),
    )  # fmt: skip
    assert re.findall(r'data-airflow-path="/dags/ingest_g/runs/([^"]*)"', found) == ["scheduled__1"]
    assert re.findall(r"quality\?[^\"]*run_id=([^&\"]*)", found) == ["scheduled__1"]
    assert all(run in found for run in ("scheduled__gone", "command__2026"))
    refused = page("table.html", table=table(), verdicts=[replace(verdicts.worst_verdict(table(last_error=error())),
                   run_id="command__2026")], detail=None)  # fmt: skip
    assert "command__2026" not in re.findall(r"/runs/[^\"]*", refused)
    assert "runs/command__" not in refused


def test_a_change_under_review_leads_to_the_change_and_to_the_question() -> None:
    each = table(schema="under review: drops column s", schema_state="open")
    assert '/tables/db.t#versions">See the change</a>' in page("tables.html", tables=[each])
    found = page(
        "table.html", table=each, verdicts=list(verdicts.list_verdicts(each)), detail=None, review="r1",
        operations=TableOperations(each, ANYTHING, "r1"),
    )  # fmt: skip
    assert 'href="#versions">See the change</a>' in found and "<strong>Approve or Reject it.</strong>" in found
    assert "/dags/review_schema/runs/r1/tasks/decide/required_actions" in found


def test_a_table_whose_topic_is_not_there_was_told_of() -> None:
    each = table(exists=False, problems=["Kafka has no topic 't'."], topics=[TopicStatus("t")])
    assert [v.word for v in verdicts.list_verdicts(each)] == ["stopped", "new"]
    awaited = replace(each, topics=[TopicStatus("t", problem=each.problems[0], awaited=True)])
    found = list(verdicts.list_verdicts(awaited))
    assert [(v.word, v.why) for v in found] == [("new", "Kafka has no topic 't'.")]
    assert "does not exist in Kafka yet" in page("table.html", table=awaited, verdicts=found, detail=None)
    assert [v.word for v in verdicts.list_verdicts(replace(each, unasked=["kafka"]))] == ["stopped", "unknown"]
    assert ">Lag</dt><dd>-</dd>" in page(
        "table.html", table=each, verdicts=list(verdicts.list_verdicts(each)), detail=None
    )


def test_tables_that_need_a_person_come_first_and_the_furthest_behind_of_them() -> None:
    behind = replace(late(), table="db.z", freshness_now_seconds=9000.0)
    rows = [table(), replace(table(), exists=None), table(risks=[RiskStatus("unread", "t", "x")]), late(), behind]
    ordered = sorted(((t, verdicts.worst_verdict(t)) for t in rows), key=verdicts.by_urgency)
    assert [verdict.word for _, verdict in ordered] == ["late", "late", "at risk", "unknown", "fresh"]
    assert ordered[0][0].table == "db.z"


def least(made: Callable[[], Any]) -> float:
    """Seconds of the quickest of three: what else the process does, its garbage collection first, adds to some."""
    taken = []
    for _ in range(3):
        began = time.thread_time()
        made()
        taken.append(time.thread_time() - began)
    return min(taken)


def test_a_page_of_a_thousand_tables_is_made_at_once() -> None:
    snapshot = SnapshotStatus(
        10**18, NOW, 1.0, "t", 3, {p: OffsetRange(0, 10**6) for p in range(4)}, 10, "run", "publish"
    )
    topic = TopicStatus("t", lag_records=9, lag_seconds=7200.0, stream_clock=NOW, table_clock=NOW - timedelta(hours=2))
    more: dict[str, Any] = {"snapshot": snapshot, "topics": [topic], "quarantined": 9}
    known = [replace(late() if n % 10 == 0 else table(), table=f"db.t{n}", **more) for n in range(1000)]
    activity = {t.table: TableActivity([end(n) for n in range(10)], 100, 9) for t in known}
    values = {"tables": known, "activity": activity, "view": View(sort="lag", by="group")}
    found = page("tables.html", **values)
    assert found.count('<th scope="row">') == 1000 and found.count('<a tabindex="-1"') == 10_000
    took = least(lambda: page("tables.html", **values))
    print(f"a page of 1,000 tables: {took:.2f} s, {len(found):,} characters")
    assert took < 1  # on a busy machine; 0.2 s on a quiet one


def test_the_json_of_a_thousand_tables_is_made_at_once() -> None:
    partitions = [PartitionStatus(p, 0, 9, 9, 12, 3) for p in range(12)]
    topics = [TopicStatus("t", partitions=partitions, lag_records=36, stream_clock=NOW, late={0: 2})]
    snapshot = SnapshotStatus(7, NOW, 1.0, "t", 3, {0: OffsetRange(0, 10)}, 10, "run", "publish")
    status = Status(NOW, [table(topics=topics, snapshot=snapshot, risks=[RiskStatus("unread", "t", "soon")])] * 1000)

    copied = [asdict(each) for each in status.tables]
    told = text.as_json(status)
    # Without a copy of each value first, which alone took longer.
    assert least(lambda: text.as_json(status)) < least(lambda: [asdict(each) for each in status.tables])
    assert list(told["tables"][0]) == [*copied[0], "lag_records", "warnings"]
    assert json.loads(json.dumps(told))["tables"][-1]["snapshot"]["ranges"] == {"0": [0, 10]}


def test_the_expectations_of_a_thousand_tables_are_one_page() -> None:
    def results(name: str, n: int) -> list[quality_table.ExpectationResult]:
        held = n % 20 > 0
        return [
            quality_table.ExpectationResult(name, "t", seq, f"expect_{n}", "id", "warn", held, 10, 0, at=NOW)
            for seq in range(1, 51)
        ]

    found = {f"db.t{n}": [Trend(f"expect_{e}", "id", "warn", results(f"db.t{n}", n)) for e in range(3)]
             for n in range(1000)}  # fmt: skip
    began = time.perf_counter()
    every = quality_overview.summarize_tables(found, found, slices=False)
    shown, named = quality_overview.split_expanded(every, found, "", slices=False)
    told = quality_page(shown=shown, collapsed=named, total=len(every))
    took = time.perf_counter() - began
    print(f"the expectations of 1,000 tables: {took:.2f} s, {len(told):,} characters")
    assert (len(shown), len(named), told.count("<li>")) == (
        quality_overview.MAX_EXPANDED,
        1000 - quality_overview.MAX_EXPANDED,
        1000 - quality_overview.MAX_EXPANDED,
    )
    assert all(t.failed == 3 for t in shown) and {t.failed for t in named} == {0, 3}
    assert len(told) < 2_000_000
    assert took < 3  # on a busy machine; 0.2 s on a quiet one


def test_a_table_that_is_searched_for_is_opened_though_all_held() -> None:
    result = quality_table.ExpectationResult("db.a", "t", 1, "expect_x", "id", "warn", True, 1, at=NOW)
    of_slice = replace(result, batch_seq=-1, success=False)
    found = {f"db.{n}": trends.group_results([result, of_slice]) for n in ("a", "ab", "b", "c", "d", "e")}
    every = quality_overview.summarize_tables(found, found, slices=False)
    assert quality_overview.split_expanded(every, found, "", slices=False) == ([], every)
    (shown,), named = quality_overview.split_expanded(every, found, "db.ab", slices=False)
    assert shown.table == "db.ab" and len(named) == 5 and [t.results for t in shown.trends] == [[result]]
    assert len(quality_overview.split_expanded(every[:5], found, "", slices=False)[0]) == 5
    of_slices = quality_overview.summarize_tables(found, ["db.a"], slices=True)
    assert [(t.failed, t.state) for t in of_slices] == [(1, "failed")]
    assert quality_overview.summarize_tables({"db.a": trends.group_results([result])}, ["db.a"], slices=True) == []
    # The result of a slice stands in no column.
    titles = re.findall("<title>(.*?)</title><rect", quality_page(shown=[shown], collapsed=[], total=6))
    assert titles == ["passed, batch 1, 2026-11-22 06:00:00 UTC"]
    links = quality_page(shown=[shown], collapsed=every[:1], total=6, run_filter={"run_id": "r&d"})
    assert 'href="/sluice/quality?run_id=r%26d&amp;q=db.a"' in links
    assert '<input type="hidden" name="run_id" value="r&amp;d">' in links


def quality_page(**values: Any) -> str:
    return page("quality.html", **{"q": "", "state": "", "states": [], "run_id": None, "run_filter": {}, **values})


def test_data_quality_drills_down_to_what_is_set_apart_whether_anything_is_expected() -> None:
    result = quality_table.ExpectationResult("db.held", "t", 1, "expect_x", "id", "warn", True, 1, at=NOW)
    found, apart = {"db.held": trends.group_results([result])}, {"db.held": 3, "db.none": 50}
    every = quality_overview.summarize_tables(found, ["db.held", "db.none", "db.neither"], apart, slices=False)
    assert [(t.table, t.state, t.quarantined) for t in every] == [
        ("db.none", "quarantined", 50), ("db.held", "quarantined", 3),
    ]  # fmt: skip
    shown, named = quality_overview.split_expanded(every, found, "", slices=False)
    assert shown and not named
    told = quality_page(
        shown=shown,
        collapsed=[],
        total=2,
        details={"db.none": hostile_detail()},
        run_filter={"run_id": "r"},
    )
    assert "50 quarantined</span>" in told and "all passed</span>" in told and "removed</span>" not in told
    # The same as on the table's page: by class and field, with the buttons of the replay.
    asked = [(each["label"], each["table"], each["conf"]["source"]) for each in operations_of(told)]
    assert asked == [("Replay…", "db.none", "quarantine"), ("Replay all…", "db.none", "quarantine")]
    assert "<b>cannot be parsed (malformed)</b>: " in told
    # Of a table whose quarantine was not read with the page there is the way to where it is.
    assert '<a href="/sluice/quality?run_id=r&amp;q=db.held">Show by error' in told
    waits = quality_page(shown=shown, collapsed=[], total=2, details={"db.none": None})
    assert "Reading the table&#39;s quarantine" in waits or "Reading the table's quarantine" in waits
    away = quality_page(shown=shown, collapsed=[], total=2, details={"db.none": None}, errors=["away"])
    assert "They could not be read." in away and "Reading" not in away


def test_records_of_a_batch_that_is_not_published_yet_are_not_offered_for_a_replay() -> None:
    row = {"at": NOW, "_kafka_topic": "t", "_kafka_partition": 0, "batch_seq": 3, "error": "no"}
    waits = ErrorGroup("misfit", "id", 560, {}, [{**row, "_kafka_offset": 71}], waiting=True)
    published = ErrorGroup("misfit", "id", 2, {"t": {0: [1, 9]}}, [{**row, "_kafka_offset": 8, "batch_seq": 1}])
    for groups, buttons in (([waits], 0), ([waits, published], 2), ([published], 2)):
        shown = detail.TableDetail(quarantine=QuarantineSummary(groups))
        told = page("table.html", table=table(), verdicts=list(verdicts.list_verdicts(table())), detail=shown)
        _, _, told = told.partition('<section aria-labelledby="rejected" data-tab="quarantine">')
        told, _, _ = told.partition("</section>")
        assert ("</code>: 560, in a batch that is not published yet" in told) == (waits in groups)
        assert ("need no replay" in told) == (waits in groups)
        assert [each["label"] for each in operations_of(told)] == ["Replay…", "Replay all…"][:buttons], groups
        assert ("replays the other records" in told) == (len(groups) == 2)
        # Each list of records stands with the offsets that cover them.
        offsets = re.findall(r'data-label="Offset".*?>(\d+)<|<p>Offsets of t: (.*?)<', told)
        expected = [
            *([("71", "")] if waits in groups else []),
            *([("8", ""), ("", "partition 0: 1 to 8 ")] if buttons else []),
        ]
        assert offsets == expected


def test_quarantined_records_are_shown_over_time_and_as_a_query_to_copy() -> None:
    told = page("table.html", table=table(), verdicts=list(verdicts.list_verdicts(table())), detail=hostile_detail())
    _, _, told = told.partition('<section aria-labelledby="rejected" data-tab="quarantine">')
    found = Seen()
    found.feed(told.partition("</section>")[0])
    bars = [(a["x"], a["height"]) for tag, a in found.elements if tag == "rect"]
    assert bars == [("0.1", "20.0"), ("2.1", "10.0"), ("1.1", "20.0")]
    labels = [a["aria-label"] for tag, a in found.elements if tag == "svg"]
    assert labels == [
        "Over time: at most 2 in a bar, since 2026-11-20 14:00:00 UTC",
        "Over time: at most 1 in a bar, since 2026-11-20 15:00:00 UTC",
    ]
    assert "2 since 2026-11-20 14:00:00 UTC" in found.text and "in parts of 60m." in found.text
    # The button copies the element before it.
    order = [tag for tag, a in found.elements if tag == "pre" or "data-copy" in a]
    assert order == ["pre", "button"] and f"{HOSTILE}Copy" in found.text
    operate = [a for _, a in found.elements if "operate" in (a.get("class") or "").split()]
    assert operate and all("data-operation" in a for a in operate)  # its click opens a dialog


def test_keys_and_values_are_shown_only_where_the_contract_has_them_shown() -> None:
    row = {"at": NOW, "_kafka_topic": "t", "_kafka_partition": 0, "_kafka_offset": 8, "batch_seq": 1, "error": "no"}
    groups = [ErrorGroup("misfit", "id", 1, {}, [{**row, "key": None, "value": HOSTILE}])]
    for asked in (False, True):
        shown = detail.TableDetail(quarantine=QuarantineSummary(groups), shows_values=asked)
        told = page("table.html", table=table(), verdicts=list(verdicts.list_verdicts(table())), detail=shown)
        found = Seen()
        found.feed(told)
        labels = {a.get("data-label") for tag, a in found.elements if tag == "td"}
        assert ({"Key", "Value"} <= labels) == (HOSTILE in found.text) == asked


def test_a_batch_that_an_expectation_refused_leads_to_the_expectation_not_to_the_quarantine() -> None:
    refused = error("blocked")
    for exception, link in (
        (error_columns(ExpectationsFailedError("x"))["exception"], '<a href="#quality">Failed expectations</a>'),
        (error_columns(BlockedError("x"))["exception"], '<a href="#rejected">Quarantined records</a>'),
        (None, '<a href="#rejected">Quarantined records</a>'),  # a ledger of an older version
    ):
        each = table(last_error=replace(refused, exception=exception))
        told = page("table.html", table=each, verdicts=list(verdicts.list_verdicts(each)), detail=None)
        assert re.findall(r'<a href="#.*?">.*?</a>(?= ·)', told) == [link]


def test_failing_checks_say_what_is_expected_and_what_to_do() -> None:
    """In words, with what fails and what may, and with links to the results, the quarantine and the contract."""
    result = quality_table.ExpectationResult(
        "db.t", "t", 7, "expect_column_values_to_be_between", "amount", "quarantine_rows", False, 50, 3, at=NOW,
        parameters='{"min_value": 0, "max_value": 10000}',
    )  # fmt: skip
    tolerant = replace(result, column="id", parameters='{"min_value": 1, "mostly": 0.99}')
    others = [replace(result, column=f"c{n}") for n in range(3)]
    results = [tolerant, result, replace(result, topic="u", column="of_u"), *others]
    each = table(
        quarantined=3, expectations=ExpectationsSummary("t", 7, NOW, 0, 0, [r.summary for r in (result, tolerant)])
    )
    found = list(verdicts.list_verdicts(each))

    def lead(shown: detail.TableDetail | None) -> str:
        told = page("table.html", table=each, verdicts=found, detail=shown)
        return re.findall(r'<p class="lead">.*?</p>', told.replace("\n", " "))[0]

    told = lead(detail.TableDetail(trends=trends.group_results(results)))
    words = html.unescape(re.sub(r"\s+", " ", re.sub(r"<.*?>", "", told)))
    assert (
        "Expected: amount is between 0 and 10,000 (quarantine rows). In batch 7: 3 of 50 rows fail, 6 %; none may."
        in words
    )
    assert "at most 1 % of the rows fail (quarantine rows). In batch 7: 3 of 50 rows fail, 6 %." in lead(
        detail.TableDetail(trends=trends.group_results([tolerant]))
    ).replace("</b>", "")
    assert "And 2 more." in words and "of_u" not in words
    assert "Correct the records at their producer, or change the expectation in the contract: mostly allows" in words
    links = [("#quality", "Failed expectations"), ("#rejected", "Quarantined records"), ("#versions", "Contract")]
    assert re.findall('<a href="(#.*?)">(.*?)</a>', told) == links
    # Before the results were read the status says it.
    assert "expect_column_values_to_be_between(amount): 3 of 50 rows fail; 1 more failed." in lead(None)
    rows = page("tables.html", tables=[each])
    assert '<a href="/sluice/tables/db.t#quality">Failed expectations</a>' in rows


def test_every_column_explains_itself_and_moments_in_titles_are_in_words() -> None:
    each = hostile_table()
    told = seen("table.html", table=each, verdicts=list(verdicts.list_verdicts(each)), detail=hostile_detail())
    heads = [a for tag, a in told.elements if tag == "th" and a.get("scope") == "col"]
    assert len(heads) > 30 and all(a.get("title") for a in heads)
    clocks = replace(table(), topics=[TopicStatus("t", lag_records=0, stream_clock=NOW), TopicStatus("u")])
    listed = page("tables.html", tables=[clocks])
    heads = re.findall('<th scope="col".*?>', listed)
    assert len(heads) == 10 and all("title=" in each for each in heads)
    assert 'title="t: newest record in Kafka 2026-11-22 06:00:00 UTC, in the table none. u: newest' in listed


def end(number: int, **changes: Any) -> BatchEnd:
    """Of a batch that was published ten minutes after the one before it."""
    given: dict[str, Any] = {"topic": "t", "state": "published", "records": 100 * number, "rejected": 0}
    at = NOW - timedelta(minutes=100 - 10 * number)
    return BatchEnd(at=at, batch=number, **{**given, "unread": 10 * number, **changes})


def overview(tables: list[TableStatus], *, activity: Any = None, **chosen: str) -> Overview:
    return make_overview(tables, activity, View(**chosen))


def shown(found: Overview) -> list[str]:
    return [row.table.table for group in found.groups for row in group.rows]


def test_the_cards_tell_what_needs_a_person_and_how_much_goes_through() -> None:
    unknown = replace(table(as_of=NOW, unasked=["catalog"]), exists=None)
    checks = ExpectationsSummary("t", 3, NOW, 1, 0, ["warn: 3 of 5 rows fail"])
    each = [
        late(), replace(late(last_error=error()), table="db.u"), replace(table(), table="db.v", quarantined=1200),
        replace(unknown, table="db.w"), table(table="db.x", exists=False), table(table="db.y", expectations=checks),
        table(table="db.z", freshness_promised_seconds=900.0, freshness_now_seconds=1.0, freshness_kept=True),
    ]  # fmt: skip
    activity = {"db.t": TableActivity((), 600, 7), "db.z": TableActivity((), 3000), "db.secret": TableActivity((), 9)}

    def told(found: Overview) -> list[tuple[str, str, str, str]]:
        return [(card.figure, card.label, card.detail, card.tone) for card in found.cards]

    assert told(overview(each, activity=activity)) == [
        ("3", "need attention", "of 7 tables, 1 unknown, 1 never run", "bad"),
        ("33%", "within the freshness target", "2 of 3 stale", "bad"),
        ("60", "records published a minute", "mean of the last hour, 2 tables", ""),
        ("7", "records quarantined in 24 h", "1,200 in quarantine now", "warn"),
        ("1", "table has failing checks", "of 1 table with evaluated checks", "warn"),
    ]
    assert told(overview([table()], activity={})) == [
        ("0", "need attention", "of 1 table", "good"),
        ("-", "within the freshness target", "no contract has a target", "unknown"),
        ("0", "records published a minute", "mean of the last hour, 0 tables", ""),
        ("0", "records quarantined in 24 h", "0 in quarantine now", "good"),
        ("0", "tables have failing checks", "no checks were evaluated", "unknown"),
    ]
    # Before the ledger was read, nothing is said to be zero.
    assert [card[0] for card in told(overview(each))] == ["3", "33%", "-", "-", "1"]
    assert told(overview([unknown]))[0] == ("0", "need attention", "of 1 table, 1 unknown", "unknown")
    assert told(overview([each[4]]))[0][3] == "good"  # that no run was there yet is no trouble
    # A click on a card shows the tables that it counts.
    names = {card.name: shown(overview(each, activity=activity, show=card.name)) for card in overview(each).cards}
    assert names == {
        "attention": ["db.u", "db.t", "db.y"], "stale": ["db.u", "db.t"], "publishing": ["db.t", "db.z"],
        "quarantined": ["db.t"], "checks": ["db.y"],
    }  # fmt: skip
    links = seen("tables.html", tables=each, activity=activity, view=View(q="db", show="stale"))
    cards = [a for tag, a in links.elements if (a.get("class") or "").startswith("card ")]
    assert [(a["href"], a.get("aria-current")) for a in cards[:2]] == [
        ("/sluice/tables?q=db&show=attention", None), ("/sluice/tables?q=db", "true"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sort", "up", "down"),
    [
        ("table", "a b c", "c b a"), ("state", "b a c", "c a b"), ("freshness", "a b c", "b a c"),
        ("lag", "c a b", "a c b"), ("records", "a b c", "b a c"), ("batches", "a c b", "b a c"),
        ("commit", "a b c", "b a c"), ("quality", "a c b", "b a c"), ("quarantined", "a b c", "b a c"),
        ("nonsense", "b a c", "b a c"),
    ],
)  # fmt: skip
def test_rows_are_in_the_chosen_order_and_what_is_unknown_comes_last(sort: str, up: str, down: str) -> None:
    def at(minutes: int) -> SnapshotStatus:
        return SnapshotStatus(1, NOW + timedelta(minutes=minutes), 1.0, "t", 1, {}, 1, "r", "publish")

    lags = [[TopicStatus("t", lag_records=n)] for n in (10, 9)]
    checks = ExpectationsSummary("t", 3, NOW, 1, 0, ["warn: 3 of 5 rows fail"])
    tables = [
        table(table="a", freshness_now_seconds=9.0, topics=lags[0], snapshot=at(1), quarantined=2),
        late(table="b", topics=[TopicStatus("t")], snapshot=at(2), quarantined=10, expectations=checks),
        table(table="c", topics=lags[1]),
    ]
    activity = {"a": TableActivity([end(1)]), "b": TableActivity([end(2), end(3, state="blocked")])}
    for order, expected in (("asc", up), ("desc", down)):
        found = overview(tables, activity=activity, sort=sort, order=order)
        assert " ".join(shown(found)) == expected, order
    # A click on the header sorts, and a second one turns the order round.
    first = {column.name: (order, after) for column, order, after in overview(tables, sort=sort).columns}
    if sort != "nonsense":
        assert first[sort] in (("asc", "desc"), ("desc", "asc"))
        text = page("tables.html", tables=tables, view=View(sort=sort))
        assert text.count(f'aria-sort="{first[sort][0]}ending"') == text.count("aria-sort") == 1


def test_rows_may_be_grouped_as_the_contracts_are_each_group_with_its_dag() -> None:
    tables = [table(table="db.a"), late(table="db.b", group="h"), table(table="db.c"), table(table="db.d", group="h")]
    found = overview(tables, by="group", q="DB.")
    assert [(group.name, group.needing, len(group.rows)) for group in found.groups] == [("h", 1, 2), ("g", 0, 2)]
    text = page("tables.html", tables=tables, view=View(by="group"))
    assert text.count("<tbody>") == 2 and text.index('data-airflow-path="/dags/ingest_h"') < text.index("db.b</a>")
    assert page("tables.html", tables=tables).count("<tbody>") == 1
    assert shown(overview(tables, dag_id="ingest_h")) == ["db.b", "db.d"]
    assert len(shown(overview(tables, dag_id="backfill"))) == 4
    assert len(shown(overview(tables, q="APPEND"))) == 4 and shown(overview(tables, q="x")) == []
    assert "No table matches." in page("tables.html", tables=tables, view=View(q="x"))


def test_a_row_draws_its_last_batches_and_each_leads_to_its_time() -> None:
    ends = [
        end(1), end(2, rejected=5), end(3, state="blocked", records=9, rejected=9), end(4, records=None, unread=None),
        replace(end(5), at=NOW - timedelta(days=3)),
    ]  # fmt: skip
    each = table(topics=[TopicStatus("t", lag_records=12_345)])
    found = seen("tables.html", tables=[each], activity={"db.t": TableActivity(ends)})
    squares = [a for tag, a in found.elements if tag == "a" and a.get("tabindex") == "-1"]
    assert [a["class"] for a in squares] == ["good", "warn", "bad", "good", "good"]
    at = (NOW - timedelta(minutes=90)).isoformat().replace("+00:00", "Z")
    assert (squares[0]["href"] or "").endswith(f"at={at}#then") and squares[0]["title"] == ends[0].text
    # The page is made with the clock: of the day before, and of a week.
    recent = replace(end(1), at=datetime.now(UTC))
    (square,) = render.batch_squares([recent], "/p", datetime.now(UTC) - timedelta(days=1)).split("</a>")[:1]
    assert f'href="/p/timeline?at={recent.time}#then"' in square and "hours=168&" in (squares[-1]["href"] or "")
    text = "Last 5 batches, newest right: 3 published, 1 published with quarantined records, 1 not published"
    assert text in [a.get("aria-label") for _, a in found.elements]
    assert "Records of the last batches: 100, 195, 500" in found.text
    assert "Unread offsets before the last batches, and now: 10, 20, 30, 50, 12345" in found.text
    assert found.text.count("12.3k") == 1
    # The lag of a table is that of all its topics.
    both = Row(table(), verdicts.worst_verdict(table()), TableActivity([end(1), replace(end(2), topic="u"), end(3)]))
    assert both.lags == [10 + 20, 30 + 20, 0]
    # A table without a batch, or whose history was not read, has no line.
    for activity in (None, {}, {"db.t": TableActivity([end(1)])}):
        assert "Records of the last batches" not in page("tables.html", tables=[table()], activity=activity)


def test_a_line_goes_from_left_to_right_and_stays_within_its_box() -> None:
    assert [render.sparkline_points(each) for each in ([], [7])] == ["", ""]
    assert render.sparkline_points([0, 5, 10]) == "1,15 28,8 55,2"
    assert render.sparkline_points([0, 0]) == "1,15 55,15"
    assert [render.format_compact(n) for n in (None, 0, 9_999, 12_345, 999_499, 999_600, 4_560_000)] == [
        "-", "0", "9,999", "12.3k", "999k", "1M", "4.56M",
    ]  # fmt: skip


def test_a_table_that_never_ran_says_what_creates_it() -> None:
    new = verdicts.worst_verdict(replace(table(), exists=False))
    assert new.why == "The table does not exist: no run has published to it yet."
    assert new.todo == "The first run of DAG ingest_g creates it. If the DAG is paused, unpause it."


def test_a_row_shows_freshness_against_what_is_promised_and_the_clocks_of_each_topic_on_hover() -> None:
    topics = [
        TopicStatus("a", lag_seconds=5.0, stream_clock=NOW, table_clock=NOW),
        TopicStatus("b", lag_seconds=7200.0, stream_clock=NOW, table_clock=NOW - timedelta(hours=2)),
        TopicStatus("c"),
    ]
    found = seen("tables.html", tables=[replace(late(), topics=topics, quarantined=7)])
    assert "2h / 15m" in found.text
    clocks = "b: newest record in Kafka 2026-11-22 06:00:00 UTC, in the table 2026-11-22 04:00:00 UTC. c: newest"
    assert [a for _, a in found.elements if clocks in (a.get("title") or "")]
    assert ("a", "/sluice/quality?q=db.t") in [(tag, a.get("href")) for tag, a in found.elements]
    (gauge,) = [a for tag, a in found.elements if tag == "svg"]
    assert (gauge["class"], gauge["aria-label"]) == ("gauge bad", "stale")
    widths = {a["class"]: a["width"] for tag, a in found.elements if tag == "rect"}
    assert widths == {"ground": "100", "value": "100.0", "target": "2"}
    half = seen("tables.html", tables=[table(freshness_now_seconds=450.0, freshness_promised_seconds=900.0)])
    assert [a["width"] for tag, a in half.elements if a.get("class") == "value"] == ["33.3"]  # the target is at 66
    kept = seen("tables.html", tables=[replace(late(), freshness_kept=kept) for kept in (True, None)])
    assert [a["class"] for tag, a in kept.elements if tag == "svg"] == ["gauge good", "gauge unknown"]
    for each in (table(freshness_now_seconds=450.0), table(freshness_promised_seconds=900.0)):
        assert "svg" not in [tag for tag, _ in seen("tables.html", tables=[each]).elements]


@pytest.mark.parametrize("template", ["table.html", "contract.html", "timeline.html", "report.html"])
def test_every_fact_and_column_explains_itself(template: str) -> None:
    each, shown = hostile_table(), hostile_detail()
    totals = {"records": 1, "files": 2, "bytes": 3, "delete files": 4, "deleted records": 5}
    outcome = {
        "red": False, "state": "published", "error": None, "records": 1, "quarantined": 0, "snapshot_id": 1,
        "warnings": [], "batches": {"t": [1]}, "ranges": {"t": ["0: [0, 1)"]}, "gaps": {},
    }  # fmt: skip
    found = seen(
        template, table=replace(each, totals=totals), verdicts=[verdicts.worst_verdict(each)], detail=shown,
        readiness=[ReadinessCheck("Owner", True, "me")],
        **{**timeline_values(hostile_history(), tables=[HOSTILE]), "at": NOW},
        target=None, error=None, groups={}, outcome=outcome, run_id="r",
        contract=each, trends=shown.trends, error_groups=shown.quarantine.groups, totals=totals, style="",
    ).elements + (seen(
        template, **{**timeline_values(hostile_history(), "db.t"), "as_of": TableAsOf(NOW, 1, NOW, None, {}, totals)},
        target=None, error=None, groups={},
    ).elements if template == "timeline.html" else [])  # fmt: skip
    heads = [a for tag, a in found if tag == "dt" or (tag == "th" and a.get("scope") == "col")]
    assert len(heads) > 10 and not [a for a in heads if not a.get("title")]
    if template == "table.html":
        assert {"title": "Checks that are ready, of all"} in [a for tag, a in found if tag == "small"]


def test_moments_within_a_text_are_in_the_viewers_zone_too() -> None:
    lines = [ReadinessCheck("Replay drilled", True, f"last at 2026-11-22 06:00:00 UTC <b> {HOSTILE}")]
    each = table(as_of=NOW, unasked=["catalog"])
    found = page(
        "table.html",
        table=each,
        verdicts=list(verdicts.list_verdicts(each)),
        detail=detail.TableDetail(),
        readiness=lines,
    )
    time_of = (
        '<time datetime="2026-11-22T06:00:00+00:00" title="2026-11-22 06:00:00 UTC">2026-11-22 06:00:00 UTC</time>'
    )
    assert f">last at {time_of} &lt;b&gt; &#34;&#39;&gt;&lt;script&gt;" in found
    assert f"Shown as of {time_of}" in found
    assert render.with_code("Set `a: <b>` in `c") == "Set <code>a: &lt;b&gt;</code> in `c"
    assert render.with_links("Trigger DAG backfill: `sluice backfill <x>`, not DAG x.") == (
        'Trigger DAG <a data-airflow-path="/dags/backfill" href="#">backfill</a>: '
        "<code>sluice backfill &lt;x&gt;</code>, not DAG x."
    )
    assert render.with_time_elements("at 2026-99-22 06:00:00 UTC & so") == "at 2026-99-22 06:00:00 UTC &amp; so"


def test_each_next_step_of_readiness_has_its_link_or_button() -> None:
    steps = {
        "Freshness": "See the timeline.",
        "Rollback": "Roll back this table with DAG rollback.",
        "Replay": "Replay a range with DAG backfill.",
        "Small files": "Unpause DAG maintain_rewrite_data_files.",
    }
    each = table()
    found = page(
        "table.html", table=each, verdicts=list(verdicts.list_verdicts(each)), detail=detail.TableDetail(),
        readiness=[ReadinessCheck(name, False, "facts", step) for name, step in steps.items()],
    )  # fmt: skip
    cells = re.findall(r'data-label="Next step"[^>]*>(.*?)</td>', found, re.DOTALL)
    assert '<a href="/sluice/tables/db.t/timeline">' in cells[0] and '<a href="#batches">' in cells[1]
    told = [[one["label"] for one in operations_of(cell)] for cell in cells]
    assert told == [[], [], ["Backfill…"], ["Rewrite data files…"]]
    assert all('data-airflow-path="/dags/' in cell for cell in cells[1:])


def test_the_list_and_the_page_have_the_same_next_step() -> None:
    advice = "It failed. [table db.t] Next step: Ask `team` <x>."
    for state, step in (("failed", "Ask <code>team</code> &lt;x&gt;."), ("blocked", "Fix the contract or the records")):
        each = table(last_error=replace(error(state), error=advice))
        row = page("tables.html", tables=[each])
        lead = page("table.html", table=each, verdicts=list(verdicts.list_verdicts(each)), detail=None)
        assert [text.count(f"<strong>{step}") for text in (row, lead)] == [1, 1], state
        assert "It failed. <strong>" in row and "`" not in re.sub("<.*?>", "", row)


class Seen(HTMLParser):
    """The elements and attributes that a browser would find."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def table_operations(template: str, values: dict[str, Any]) -> Any:
    """As each page takes them."""
    if template == "tables.html":
        return lambda each: TableOperations(each, ANYTHING)
    if template == "quality.html":
        return {name: TableOperations(replace(table(), table=name), ANYTHING) for name in values.get("details", ())}
    return TableOperations(values.get("table", table()), values.get("rights", ANYTHING), values.get("review"))


def operations_of(text: str) -> list[dict[str, Any]]:
    """The operations of the buttons in a page."""
    found = Seen()
    found.feed(text)
    return [json.loads(a["data-operation"] or "") for _, a in found.elements if "data-operation" in a]


def page(template: str, **values: Any) -> str:
    made = make_overview(values.pop("tables", ()), values.pop("activity", None), values.pop("view", View()))
    common = {"base": "/sluice", "airflow": "", "refresh": 30, "reading": False, "read_at": NOW, "here": "tables"}
    return render.render_page(
        template,
        **{
            **common,
            "unread": False,
            "errors": [],
            "overview": made,
            "readiness": (),
            "checks": {"Key": ReadinessCheck("Key", True, "one row per record")},
            "window": None,
            "ledger": values.get("window") is not None,
            "max_groups": 9,
            "max_gaps": 2,
            "too_many": False,
            "missing": (),
            "reports": False,
            "details": {},
            "review": None,
            "gone_runs": (),
            "runs": (),
            "charts": None,
            "past": Reading(),
            "hours": 24,
            "ranges": RANGES,
            "operations": table_operations(template, values),
            "readable": {"ingest_g", f"ingest_{HOSTILE}", *OPERATOR_DAGS},
            **values,
        },
    )


def seen(template: str, **values: Any) -> Seen:
    found = Seen()
    found.feed(page(template, **values))
    return found


def hostile_table() -> TableStatus:
    snapshot = SnapshotStatus(1, NOW, 1.0, HOSTILE, 3, {0: OffsetRange(0, 10)}, 10, HOSTILE, "publish")
    topics = [TopicStatus(HOSTILE, lag_records=0, partitions=[PartitionStatus(0, 0, 5, 7, 10, 5)])]
    return TableStatus(
        HOSTILE, HOSTILE, "append", HOSTILE, exists=True, topics=topics, snapshot=snapshot, quarantined=3,
        totals={"records": 10, "bytes": 12_345_678},
        problems=[HOSTILE], risks=[RiskStatus("schema", HOSTILE, HOSTILE)],
        expectations=ExpectationsSummary(HOSTILE, 3, NOW, 0, 0, [HOSTILE]),
    )  # fmt: skip


def hostile_detail() -> detail.TableDetail:
    result = quality_table.ExpectationResult(
        HOSTILE, HOSTILE, 3, HOSTILE, HOSTILE, "warn", False, 10, 3, error=HOSTILE, at=NOW
    )
    line = detail.PublishedBatch(HOSTILE, 3, {0: OffsetRange(0, 10)}, HOSTILE, 1, NOW, HOSTILE, 10, 3, 1)
    row = {
        "at": NOW, "_kafka_topic": HOSTILE, "_kafka_partition": 0, "_kafka_offset": 1, "batch_seq": 3,
        "error_class": HOSTILE, "field": HOSTILE, "error": HOSTILE,
    }  # fmt: skip
    wrong = [
        ErrorGroup(HOSTILE, HOSTILE, 3, {HOSTILE: {0: [1, 9]}}, [row], by_time=[2, 0, 1], sql=HOSTILE),
        ErrorGroup("malformed", "", 1, by_time=[0, 1, 0]),
    ]
    quarantine = QuarantineSummary(wrong, {}, 200_000, NOW - timedelta(hours=40), NOW)
    trend = Trend(HOSTILE, HOSTILE, "warn", [result])
    files = detail.SnapshotSummary(7, NOW, HOSTILE, 2, 1, {"records": 10, "files": 4, "bytes": 8_000})
    version = SchemaRow(HOSTILE, SchemaState.APPLIED, 2, "id", words=[HOSTILE], who=HOSTILE, why=HOSTILE, at=NOW)
    column = ContractColumn(HOSTILE, HOSTILE, f"computed: `{HOSTILE}`", HOSTILE, [HOSTILE])
    promise = TableContract(
        HOSTILE, "15m", [column], {"auto": [HOSTILE]}, 1, HOSTILE, HOSTILE, 2, [(HOSTILE, HOSTILE)]
    )  # fmt: skip
    return detail.TableDetail(
        [line], [trend], quarantine, [files], {HOSTILE: {0: 5400.0}}, [version], contract=HOSTILE, promise=promise
    )  # fmt: skip


def hostile_history() -> history.History:
    events = [
        Event(
            NOW - timedelta(hours=n),
            lane,
            HOSTILE,
            HOSTILE,
            HOSTILE,
            True,
            HOSTILE,
            1.5,
            10,
            n,
            1,
            dag=INGEST,
        )
        for n, lane in enumerate(Lane)
    ]
    return history.History(NOW, events)


@pytest.mark.parametrize(
    "template", ["tables.html", "table.html", "contract.html", "quality.html", "timeline.html", "message.html"]
)
def test_hostile_text_stays_text_on_every_page(template: str) -> None:
    each = hostile_table()
    verdict, shown = verdicts.worst_verdict(each), hostile_detail()
    hostile_state = TableAsOf(NOW, 1, NOW, None, {HOSTILE: PublishedOffsets(3, HOSTILE, {0: 10})}, {})
    found = seen(
        template, errors=[HOSTILE], table=each, verdicts=[verdict], detail=shown, title=HOSTILE,
        states=[(HOSTILE, HOSTILE, 1)], message=HOSTILE,
        readiness=[ReadinessCheck(HOSTILE, False, HOSTILE, HOSTILE)],
        checks={"Key": ReadinessCheck("Key", True, HOSTILE)},
        total=1, q=HOSTILE, state=HOSTILE, run_id=HOSTILE, details={HOSTILE: shown},
        tables=[each], activity={HOSTILE: TableActivity([end(n, topic=HOSTILE) for n in (1, 2)])},
        view=View(q=HOSTILE, dag_id=HOSTILE, show=HOSTILE, sort=HOSTILE, order=HOSTILE, by="group"),
        shown=[TableQuality(HOSTILE, shown.trends, 1, 1, 3)],
        collapsed=[TableQuality(HOSTILE, (), 1, 1)], run_filter={"run_id": HOSTILE},
        **{
            **timeline_values(hostile_history(), HOSTILE, tables=[HOSTILE]),
            "at": HOSTILE, "asked": NOW, "as_of": hostile_state,
        },
        max_groups=1, target=None,
        error=None, groups={HOSTILE: HOSTILE},
    )  # fmt: skip
    scripts = [{"src": f"/sluice/static/{name}.js", "defer": None} for name in ("sluice", "operations")]
    assert [a for tag, a in found.elements if tag == "script"] == scripts
    assert not [tag for tag, _ in found.elements if tag in ("img", "style", "iframe", "object")]
    assert not [name for _, a in found.elements for name in a if name.startswith("on") or name == "style"]
    squares = [a for tag, a in found.elements if tag == "a" and HOSTILE in (a.get("title") or "")]
    assert len(squares) >= 2 or template != "tables.html"
    for name in ("href", "action"):
        links = [a[name] or "" for _, a in found.elements if a.get(name)]
        assert all(link.startswith(("#", "/sluice/")) for link in links), links
    assert "alert(1)" in found.text and "49" not in found.text


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("tables.html", "The status of the tables could not be read."),
        ("table.html", "The table's history could not be read."),
        ("contract.html", "The contract could not be read."),
        ("quality.html", "The results could not be read."),
        ("timeline.html", "The ledger could not be read."),
    ],
)
def test_what_could_not_be_read_is_not_told_as_empty_or_on_its_way(template: str, says: str) -> None:
    each = table()
    found = seen(
        template, errors=["The catalog did not answer."], unread=True, table=each,
        verdicts=list(verdicts.list_verdicts(each)),
        detail=None, total=0, q="", state="", run_id=None, states=[],
        **timeline_values(None), past=Reading(error="The catalog did not answer."),
    )  # fmt: skip
    assert says in found.text and "The catalog did not answer." in found.text
    assert "Reading" not in found.text and "No tables to show" not in found.text and "evaluated" not in found.text


def test_numbers_are_written_out_or_with_three_digits() -> None:
    assert [render.format_figure(n) for n in (5425.31, 12345, 0.12345, 999.6, 0.0)] == [
        "5,425",
        "12,345",
        "0.123",
        "1,000",
        "0",
    ]


def test_a_table_that_is_late_now_is_not_ready_though_what_landed_was_in_time() -> None:
    lines = [ReadinessCheck("Owner", True, "me"), ReadinessCheck(FRESHNESS, True, "1 of 1 batches landed within 15m")]
    assert with_current_freshness(lines, table()) == lines
    owner, fresh = with_current_freshness(lines, late())
    assert (owner, fresh.ready) == (lines[0], False)
    assert fresh.evidence == "currently 2h behind; 1 of 1 batches landed within 15m" and fresh.step


def test_a_contract_is_read_by_those_who_do_not_operate_the_table(tmp_path: Path) -> None:
    body: dict[str, Any] = {
        "table": "shop.orders", "topic": "orders", "group": "shop", "owner": "team-shop", "doc": "All orders",
        "mode": "upsert", "identifier": ["id"], "order": ["at"], "deletes": "ignore",
        "freshness": "15m", "key": {"format": "json"},
        "expectations": [{"type": "expect_column_values_to_not_be_null", "column": "total"}],
        "columns": [
            {"name": "id", "type": "string", "source": "$key.order", "doc": "The order's number"},
            {"name": "at", "type": "timestamptz", "required": True},
            {"name": "email", "type": "string", "source": "customer.email", "mask": "sha256"},
            {"name": "total", "type": "long", "expression": "coalesce(total_in, 0)"},
        ],
        "inputs": [{"name": "total_in", "type": "long"}],
    }  # fmt: skip
    contract = Contract.model_validate(body)
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/o'clock")
    made = tables.ensure_typed(catalog, contract)
    with made.update_schema() as update:
        update.add_column("theirs", IntegerType(), doc="of another team")
        update.update_column("at", doc="when it was placed")
    promise = describe_contract(made, contract)
    catalog.close()
    found = {c.name: (c.type, c.source, c.doc, list(c.notes)) for c in promise.columns}
    assert found["id"] == ("string", "field `order` of the record's key", "The order's number", ["key", "required"])
    assert found["at"][1:] == ("field `at` of the record's value", "when it was placed", ["order", "required"])
    assert found["email"][1:] == ("field `customer.email` of the record's value", "", ["masked (sha256)"])
    assert found["total"][1] == "computed: `coalesce(total_in, 0)`"
    assert found["_kafka_offset"] == ("long", "Kafka: offset of the record", "Kafka offset of the record", ["required"])
    assert found["theirs"] == ("int", "not in the contract", "of another team", [])
    given = late(table="shop.orders")
    shown = page("contract.html", table=given, detail=detail.TableDetail(promise=promise, version=3))
    assert "data-operation" not in shown and 'action="/sluice/tables/shop.orders/record"' in shown
    for words in (
        "All orders",
        "<dd>15m</dd>",
        '<span class="badge bad">stale</span>',
        ">3</a>",
        "one row per record",
        "<code>customer.email</code>",
        "1 expectation, of which none",
        "SELECT count(*), max(_kafka_timestamp) FROM lake.shop.orders",
        "drop column, rename column",
        "o&#39;&#39;clock",
    ):
        assert words in shown, words
    assert "does not describe the table" in page(
        "contract.html", table=given, detail=detail.TableDetail(promise=TableContract(policy={}))
    )
    assert '<a href="/sluice/tables/shop.orders/contract">' in page(
        "table.html", table=given, verdicts=list(verdicts.list_verdicts(given)), detail=None
    )


def test_a_page_tells_what_the_table_holds() -> None:
    each = hostile_table()
    found = seen("table.html", table=each, verdicts=list(verdicts.list_verdicts(each)), detail=hostile_detail())
    words = " ".join(found.text.split())
    assert "12.3 MB" in words and "partition 0: 0 to 9" in words
    assert "90m" in words and "2.0 kB" in words  # how long Kafka keeps what is unread; the size of a file
    bars = [a for tag, a in found.elements if tag == "rect" and a["height"] == "4"]
    assert [(b["class"], b["width"]) for b in bars] == [("unread", "100"), ("staged", "70.0"), ("done", "50.0")]


def test_a_table_says_all_that_is_wrong_with_it_and_leads_to_each_run() -> None:
    gaps = [AcceptedGap(0, OffsetRange(n, n + 5), NOW, HOSTILE, HOSTILE) for n in (10, 3_000, 4_000)]
    risks = [RiskStatus("unread", "t", f"t: {text}") for text in ("Kafka may delete", "and more of it")]
    risks += [RiskStatus("unread", f"t{n}", f"t{n}: too") for n in range(5)]
    each = replace(
        late(last_error=error(), schema="a column is gone", risks=risks),
        problems=["offsets are lost", "and more"], topics=[TopicStatus("t", lag_records=7, late={0: 7}, given_up=gaps)],
        slices=[SliceStatus("t", -1, "blocked", {}, NOW, "manual__1", "not these", None)],
    )  # fmt: skip
    found = page("table.html", table=each, verdicts=list(verdicts.list_verdicts(each)), detail=None)
    lead = re.findall(r'<p class="lead">(.*?)</p>', found, re.DOTALL)
    assert [re.search(r">([a-z ]+)</span>", line)[1] for line in lead[1:]] == [  # type: ignore[index]
        "failed", "stale", "schema change waiting", *["at risk"] * 5, "backfill refused",
    ]  # fmt: skip
    assert all("<strong>" in line for line in lead)
    runs = re.findall(r'data-airflow-path="(/dags/\w+/runs/\w+)" href="#">Run<', "".join(lead))
    assert runs == ["/dags/ingest_g/runs/run", "/dags/backfill/runs/manual__1"]
    assert re.findall('<p class="banner">(.*?)</p>', found) == ["and more", "t: and more of it", "t4: too"]
    text = seen("table.html", table=each, verdicts=list(verdicts.list_verdicts(each)), detail=None).text
    assert (
        "[3,000, 3,005) skipped permanently" in text and "[10, 15)" not in text and "And 1 older accepted gaps" in text
    )
    assert all(
        v.todo for t in (table(exists=False), replace(each, as_of=NOW)) for v in verdicts.list_verdicts(t) if v.tone < 3
    )


def test_a_review_that_waits_is_answered_here_and_no_other_is_advised() -> None:
    each = table(schema="under review: drops the column a", schema_state="open")
    values: dict[str, Any] = {"table": each, "verdicts": list(verdicts.list_verdicts(each)), "detail": None}

    def labels(text: str) -> list[str]:
        return [o["label"] for o in operations_of(text) if o["dag"] == "review_schema"]

    waits = page("table.html", **values, review="review__db.t__1_2")
    assert (
        '<a data-airflow-path="/dags/review_schema/runs/review__db.t__1_2/tasks/decide/required_actions" href="#">'
        in waits
    )
    assert labels(waits) == ["Approve…", "Reject…"]
    approve, reject = [o for o in operations_of(waits) if o["dag"] == "review_schema"]
    assert approve["path"] == reject["path"]
    assert approve["path"].endswith("/review_schema/dagRuns/review__db.t__1_2/taskInstances/decide/-1/hitlDetails")
    assert (approve["body"]["chosen_options"], reject["body"]["chosen_options"]) == (["Approve"], ["Reject"])
    assert [f["name"] for f in approve["fields"]] == ["republish", "why"]
    assert "review__db.t__1_2" in page("table.html", **values, review="review__db.t__1_2", readable=set())
    assert labels(page("table.html", **values)) == ["Review…"]
    # The page of all tables does not know whether one waits.
    listed = page("tables.html", tables=[each])
    assert labels(listed) == []


def test_a_batch_leads_to_the_run_that_brought_it() -> None:
    names = [(3, "scheduled__1"), (-2, "manual__2"), (4, "rollback by ann"), (5, None)]
    lines = [detail.PublishedBatch("t", seq, {}, "publish", 7, NOW, run_id, 10, 0, None) for seq, run_id in names]
    found = page(
        "table.html", table=table(), verdicts=list(verdicts.list_verdicts(table())), detail=detail.TableDetail(lines)
    )
    lines[1] = replace(lines[1], failed=2)
    told = page(
        "table.html", table=table(), verdicts=list(verdicts.list_verdicts(table())), detail=detail.TableDetail(lines)
    )
    assert '<a href="/sluice/quality?dag_id=backfill&amp;run_id=manual__2&amp;task_id=db.t">2 failed</a>' in told
    cells = re.findall(r'</code></a></td><td data-label="Run".*?>(.*?)</td>', found.replace("\n", ""))[: len(names)]
    cells = [re.sub(r" <button .*?</button>", "", cell) for cell in cells]
    assert [re.sub('<a data-airflow-path="(.*?)" href="#">', r"\1 ", cell).removesuffix("</a>") for cell in cells] == [
        "/dags/ingest_g/runs/scheduled__1 scheduled__1", "/dags/backfill/runs/manual__2 manual__2", "rollback by ann",
        "-",
    ]  # fmt: skip


def test_what_a_commit_of_several_batches_did_is_shown_once() -> None:
    lines = [
        detail.PublishedBatch("t", seq, {}, "publish", 7, NOW, "r", 1234, 0, None, 5, 3, ("t", 9)) for seq in (9, 8)
    ]
    lines += [detail.PublishedBatch("u", 4, {}, "publish", 7, NOW, "r", 1234, 0, None, 5, 3, ("t", 9))]
    lines += [detail.PublishedBatch("t", 7, {}, "publish", 6, NOW, "r", 77, 0, None, 6, 1, ("t", 7))]
    told = page(
        "table.html", table=table(), verdicts=list(verdicts.list_verdicts(table())), detail=detail.TableDetail(lines)
    )
    cells = re.findall(r'data-label="(?:Added|Removed)".*?>(.*?)</td>', told.replace("\n", ""))
    once = "<small>by the commit of 3 batches</small>"
    assert [each.strip() for each in cells] == [
        f"1,234{once}", f"5{once}", *["<small>see batch 9</small>"] * 2, *["<small>see batch 9 of t</small>"] * 2,
        "77", "6",
    ]  # fmt: skip


def test_a_run_is_a_link_for_those_who_may_read_its_dag() -> None:
    acts = [
        Event(NOW, Lane.OPERATOR, "did", "db.t", "t", run_id=f"by_{dag}", dag=dag) for dag in (INGEST, *OPERATOR_DAGS)
    ]
    drawn = timeline_values(history.History(NOW, acts), "db.t")
    values: dict[str, Any] = {**drawn, "error": None, "target": None, "groups": {"db.t": "g"}}
    run = re.compile('data-label="Run".*?>(?:<a data-airflow-path="(.*?)" href="#">)?(by_[a-z_]*)', re.DOTALL)
    every = [(f"/dags/{d}/runs/by_{d}", f"by_{d}") for d in OPERATOR_DAGS]
    assert run.findall(page("timeline.html", **values)) == [("/dags/ingest_g/runs/by_ingest", "by_ingest"), *every]
    mine = run.findall(page("timeline.html", **values, readable={"ingest_g", "rollback"}))
    assert [name for path, name in mine if path] == ["by_ingest", "by_rollback"] and len(mine) == 1 + len(OPERATOR_DAGS)
    each = late(last_error=error())
    told: dict[str, Any] = {"table": each, "verdicts": list(verdicts.list_verdicts(each)), "detail": None}
    assert "/dags/ingest_g/runs/run" in page("table.html", **told)
    assert "/runs/" not in page("table.html", **told, readable=set())


def test_what_a_run_left_is_linked_where_it_left_something() -> None:
    link = re.compile(r'<a href="(/sluice/tables/[^"]+/report\?run_id=[^"]*)">report</a>')
    each = late(last_error=error("blocked"))
    lines = [
        detail.PublishedBatch("t", seq, {}, step, 7, NOW, run_id, 10, 0, None)
        for seq, step, run_id in ((3, "publish", "a b&c"), (-2, "replay", "manual__2"), (4, "publish", None))
    ]
    values: dict[str, Any] = {
        "table": each,
        "verdicts": list(verdicts.list_verdicts(each)),
        "detail": detail.TableDetail(lines),
    }
    told = page("table.html", **values, reports=True)
    assert link.findall(told) == [f"/sluice/tables/db.t/report?run_id={run}" for run in ("run", "a%20b%26c")]
    assert not link.findall(page("table.html", **values))
    judged_here = [TableQuality(HOSTILE, (), 1, 1)]
    of_run = quality_page(shown=judged_here, collapsed=judged_here, total=1, run_id=HOSTILE, reports=True)
    hostile = quote(HOSTILE, safe="")
    assert link.findall(of_run) == [f"/sluice/tables/{hostile}/report?run_id={hostile}"] * 2


@pytest.mark.parametrize(
    ("marks", "says"), [(None, "unknown"), ([(5, 5), (0, 0)], "none"), ([(5, 5), (0, 3)], "unknown"), ([], "unknown")]
)
def test_a_topic_without_a_newest_record_is_empty_or_could_not_be_asked(marks: Any, says: str) -> None:
    ends = [(None, None)] if marks is None else marks
    lines = [PartitionStatus(p, low, 5, 5, end) for p, (low, end) in enumerate(ends)]
    each = replace(table(), topics=[TopicStatus("t", table_clock=NOW, partitions=lines)])
    judged_as = verdicts.worst_verdict(each)
    alone = seen("table.html", table=each, verdicts=[judged_as], detail=None).text
    assert f"Newest record in Kafka: {says}, in the table: 2026-11-22 06:00:00 UTC." in alone
    titles = [a.get("title") or "" for _, a in seen("tables.html", tables=[each]).elements]
    assert f"t: newest record in Kafka {says}, in the table 2026-11-22 06:00:00 UTC. " in titles


@pytest.mark.parametrize(("counted", "says"), [(None, "3"), (200_000, "≥ 3")])
def test_what_was_counted_in_part_is_said_to_be_at_least(counted: int | None, says: str) -> None:
    line = detail.PublishedBatch("t", 1, {}, "publish", 7, NOW, None, 10, 3, None)
    shown = detail.TableDetail([line], quarantine=QuarantineSummary(counted=counted))
    found = page("table.html", table=table(), verdicts=list(verdicts.list_verdicts(table())), detail=shown)
    added, rejected = (re.findall(rf'data-label="{name}".*?>(.*?)</td>', found) for name in ("Added", "Quarantined"))
    assert (added, rejected) == (["10"], [says])


@pytest.mark.parametrize(
    ("kept", "lag", "staged", "says"),
    [
        ({"t": {0: 5400.0}}, 5, 7, "90m"),
        ({"t": {}}, 0, 10, "all read"),
        ({"t": {}}, 5, 10, "all staged"),
        ({}, 5, 7, "unlimited"),
        (None, 5, 7, "-"),
        ({"t": {}}, None, 7, "-"),
    ],
)
def test_how_long_kafka_keeps_what_is_unread(kept: Any, lag: int | None, staged: int, says: str) -> None:
    topics = [TopicStatus("t", lag_records=lag, partitions=[PartitionStatus(0, 0, 5, staged, 10, lag)])]
    each = replace(table(), topics=topics)
    found = page(
        "table.html",
        table=each,
        verdicts=list(verdicts.list_verdicts(each)),
        detail=detail.TableDetail(retention_left=kept),
    )
    cells = re.findall("<td.*?>(.*?)</td>", found.partition('id="offsets"')[2].partition("</section>")[0], re.DOTALL)
    assert cells[5].strip() == says


@pytest.mark.parametrize(
    ("line", "kept", "says"),
    [
        (PartitionStatus(0, 0, 5, 7, 10, 5), {"t": {0: 5400.0}}, "3 unread; Kafka keeps the first for at least 90m."),
        (PartitionStatus(0, 0, 5, 7, 10, 5), {"t": {0: -1.0}}, "3 unread; Kafka may delete the first at any time."),
        (PartitionStatus(0, 0, 5, 7, 10, 5), {}, "3 unread; retention.ms does not delete them."),
        (PartitionStatus(0, 0, 5, 7, 10, 5), None, "3 unread."),
        (PartitionStatus(0, 0, 10, 10, 10, 0), {"t": {}}, "No offset is unread."),
        (PartitionStatus(0, 0, 5, 10, 10, 5), {"t": {}}, "All are staged: the next run publishes them."),
        (PartitionStatus(0, 8, 5, 7, 10, 5), {}, "1 offset was deleted before it was read. 2 unread; retention.ms"),
        (PartitionStatus(0, 8, None, None, 10, 2), None, "2 unread."),  # nothing was read yet: it begins at the start
        (PartitionStatus(0, None, 5, 7, None, None), None, "-"),
    ],
)
def test_what_kafka_may_delete_before_it_is_read_is_said_beside_the_bar(
    line: PartitionStatus, kept: Any, says: str
) -> None:
    each = replace(table(), topics=[TopicStatus("t", lag_records=line.lag, partitions=[line])])
    found = seen(
        "table.html", table=each, verdicts=list(verdicts.list_verdicts(each)),
        detail=detail.TableDetail(retention_left=kept),
    ).text  # fmt: skip
    assert says in " ".join(found.partition("Progress")[2].partition("The last 24 h")[0].split())


def link_to(at: datetime) -> str:
    return f"/sluice/tables/db.t/timeline?at={at.isoformat()}"


def test_a_tables_page_draws_its_batches_and_files() -> None:
    each = table(freshness_promised_seconds=900.0)
    hour = timedelta(hours=1)
    bars = [Bar(NOW - hour, 1, 7, 2, seconds=1.5), Bar(NOW, 1, 9, delay=1000.0, unread=30, seconds=2.5)]
    files = [history.FileTotals(NOW - n * hour, count, 4_000_000) for n, count in ((30, 9), (26, 8), (2, 2), (-1, 5))]
    day = (NOW - 24 * hour, NOW)
    made = charts.make_charts(Bars(bars), files, day, 900.0, link_to)
    values: dict[str, Any] = {"table": each, "verdicts": list(verdicts.list_verdicts(each)), "detail": None}
    values["past"] = Reading(history.History(NOW, (), counts=BatchCounts({24: Bars(bars)}), files=files))
    found = seen("table.html", **values, charts=made)
    (box,) = [a for _, a in found.elements if "data-charts" in a]
    drawn = json.loads(box["data-charts"] or "")
    batches, commits = drawn["tracks"]
    assert batches["times"] == [NOW.timestamp() - 3600, NOW.timestamp()] and batches["batches"] == [1, 1]
    # What was true at the beginning, and is at the end.
    assert commits["times"] == [day[0].timestamp(), NOW.timestamp() - 7200, NOW.timestamp()] and not commits["batches"]
    assert (drawn["end"] - drawn["start"], batches["links"][1]) == (24 * 3600, link_to(NOW))
    assert [(c["title"], c["unit"], c["limit"], c["track"]) for c in drawn["charts"]] == [
        ("Freshness", "seconds", 900.0, 0), ("Records per batch", "count", None, 0),
        ("Consumer lag before the batch", "count", None, 0), ("Duration of a publish", "seconds", None, 0),
        ("Data files", "count", None, 1), ("Mean file size", "bytes", None, 1),
    ]  # fmt: skip
    published, quarantined = drawn["charts"][1]["series"]
    assert (published["values"], quarantined["values"], quarantined["stacked"]) == ([5, 9], [2, 0], True)
    assert [c["series"][0]["values"] for c in drawn["charts"][4:]] == [[8, 2, 2], [500_000.0, 2e6, 2e6]]
    labels = [a["aria-label"] for _, a in found.elements if a.get("class") == "plot"]
    assert labels[0] == "Freshness: age of the oldest record up to 1,000 s, last 1,000 s; target 900 s"
    assert labels[1] == "Records per batch: published up to 9, last 9; quarantined up to 2, last 0"
    assert labels[5] == "Mean file size: mean up to 2.0 MB, last 2.0 MB"
    scripts = [a["src"] for tag, a in found.elements if tag == "script"]
    assert scripts[-2:] == ["/sluice/static/uplot.js", "/sluice/static/charts.js"]
    assert "The last 24 h 2 batches" in " ".join(found.text.split()) and "Each bar is" not in found.text
    ranges = [(a["href"], a.get("aria-current")) for tag, a in found.elements if "?hours=" in (a.get("href") or "")]
    assert ranges == [
        (f"/sluice/tables/db.t?hours={n}#day", "true" if n == 24 else None) for n in (1, 6, 24, 168, 720)
    ]  # fmt: skip
    # Nor is the library there where nothing is drawn.
    empty = {
        **values,
        "past": Reading(history.History(NOW, ())),
        "charts": charts.make_charts(Bars(), (), day, 1, link_to),
    }
    assert "uplot" not in page("table.html", **empty)
    assert "No batch was published in the last 24 h." in page("table.html", **empty)
    assert "Reading the last 30 d…" in page("table.html", **{**values, "past": Reading()}, hours=720)


def test_bars_that_sum_up_batches_say_how_long_they_are() -> None:
    summed = Bars([Bar(NOW - timedelta(minutes=1), 60, 600, 6, 90.0, 7, 2.5, 0.5)], 3600)
    made = charts.make_charts(summed, (), (NOW - timedelta(days=7), NOW), None, link_to)
    assert [c.title for c in made.charts] == [
        "Freshness", "Records", "Consumer lag before the batch", "Longest publish",
    ]  # fmt: skip
    assert made.tracks[0].times == [NOW.timestamp() - 1800] and made.batches == 60  # the middle of the bar
    found = seen(
        "table.html", table=table(), verdicts=list(verdicts.list_verdicts(table())), detail=None, charts=made,
        past=Reading(history.History(NOW, ())), hours=168,
    ).text  # fmt: skip
    assert "The last 7 d 60 batches" in " ".join(found.split()) and "Each bar is 1 h:" in found


def test_a_chart_without_a_value_is_left_out_and_a_commit_is_part_of_a_duration() -> None:
    bars = Bars([Bar(NOW, seconds=2.5, commit_seconds=0.5)])
    (only,) = charts.make_charts(bars, (), (NOW, NOW), None, link_to).charts
    assert [(each.label, each.values, each.stacked) for each in only.series] == [
        ("without commit", [2.0], False), ("commit", [0.5], True),
    ]  # fmt: skip


def test_a_timeline_draws_each_event_at_its_time_and_links_to_its_moment() -> None:
    common: dict[str, Any] = {"target": 1.0, "error": None, "groups": {HOSTILE: "g"}}
    found = seen("timeline.html", **common, **timeline_values(hostile_history(), "db.t"))
    lanes = [a for tag, a in found.elements if tag == "svg" and "events" in (a["aria-label"] or "")]
    assert [a["aria-label"] for a in lanes] == [f"{lane.replace('_', ' ')}: 1 events, 1 failed" for lane in Lane]
    at = [float(a["x"] or "") for tag, a in found.elements if tag == "rect"]
    assert at == pytest.approx([1000 * (24 - n) / 24 for n in range(len(Lane))], abs=11)  # in marks of 15 minutes
    moments = [a["href"] for tag, a in found.elements if tag == "a" and "&at=" in (a.get("href") or "")]
    assert moments[0] == "/sluice/tables/db.t/timeline?hours=24&at=2026-11-22T06%3A00%3A00%2B00%3A00#then"
    assert found.text.count(f"2026-11-22 06:00:00 UTC, {HOSTILE}: {HOSTILE}") == 1  # the newest mark of all lanes
    everything = seen("timeline.html", **common, **timeline_values(hostile_history(), tables=[HOSTILE]))
    led = {a["href"] for tag, a in everything.elements if tag == "a" and "&at=" in (a.get("href") or "")}
    assert led >= {
        f"/sluice/tables/{quote(HOSTILE, safe='')}/timeline?hours=24&at=2026-11-22T06%3A00%3A00%2B00%3A00#then"
    }
    of_topic = Event(NOW, Lane.STAGED, "staged", None, "t")  # all tables of a topic share it
    alone = page("timeline.html", **common, **timeline_values(history.History(NOW, [of_topic])))
    assert "&amp;at=" not in alone and ">staged</td>" in alone
    runs = [a["data-airflow-path"] for _, a in found.elements if a.get("data-airflow-path")]
    assert set(runs) == {f"/dags/ingest_g/runs/{quote(HOSTILE, safe='')}"} and len(runs) == len(Lane)
    empty = seen("timeline.html", **common, **timeline_values(history.History(NOW, ())), ledger=True)
    assert "No events in the last 24 h." in empty.text
    told = seen("timeline.html", **common, **timeline_values(hostile_history(), "db.t"), too_many=True).text
    assert "shown on each table's own timeline" in told


def test_the_events_are_listed_by_fifty_and_a_page_stays_where_it_is() -> None:
    events = [Event(NOW - timedelta(minutes=n), Lane.MAINTENANCE, f"event {n}.", "db.t") for n in range(130)]
    common: dict[str, Any] = {"target": 1.0, "error": None, "groups": {"db.t": "g"}}

    def shown(before: datetime | None = None) -> tuple[str, list[str], dict[str, str]]:
        told = page("timeline.html", **common, **timeline_values(history.History(NOW, events), "db.t", before=before))
        rows = re.findall(r'data-label="What".*?>(event \d+)\.', told)
        links = dict(reversed(each) for each in re.findall(r'<a href="([^"]*)#events">(Newest|Newer|Older)<', told))
        return " ".join(re.findall(r"<small>(\d+ to \d+ of \d+),", told)), [rows[0], rows[-1]], links

    first = shown()
    assert first[:2] == ("1 to 50 of 130", ["event 0", "event 49"])
    before = NOW - timedelta(minutes=49)
    assert first[2] == {
        "Older": f"/sluice/tables/db.t/timeline?hours=24&amp;before={quote(before.isoformat(), safe='')}"
    }
    second = shown(before)
    assert second[:2] == ("51 to 100 of 130", ["event 50", "event 99"]) and {*second[2]} == {"Newest", "Older"}
    last = shown(NOW - timedelta(minutes=99))
    assert last[:2] == ("101 to 130 of 130", ["event 100", "event 129"]) and {*last[2]} == {"Newest", "Newer"}
    assert last[2]["Newer"] == first[2]["Older"]


def test_a_bar_is_full_where_everything_is_read_or_nothing_is_there() -> None:
    values = ((10, 0, 10), (3, 0, 10), (None, 0, 10), (12, 0, 10), (5, 5, 5))
    assert [render.percent_between(*each) for each in values] == [
        100.0, 30.0, 0.0, 100.0, 0.0,
    ]  # fmt: skip


def test_a_partition_that_kafka_does_not_tell_of_has_no_bar() -> None:
    lines = [PartitionStatus(0, None, 100, 100, None, None), PartitionStatus(1, 5, 5, 5, 5, 0)]
    each = replace(table(), topics=[TopicStatus("t", partitions=lines)])
    found = page("table.html", table=each, verdicts=list(verdicts.list_verdicts(each)), detail=None)
    assert re.findall('<svg class="bar".*?aria-label="(Partition .)', found) == ["Partition 1"]
    assert found.count('<rect class="done" width="100"') == 1


def until(true: Callable[[], bool]) -> None:
    limit = time.monotonic() + 10
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.005)


def test_a_slow_reading_keeps_nobody_waiting_and_runs_once() -> None:
    gate, calls = threading.Event(), []

    def read() -> int:
        calls.append(1)
        gate.wait(10)
        return len(calls)

    mine = Feed(read, fresh=0.0)
    began = time.monotonic()
    assert [mine.get(wait=0.01).value for _ in range(20)] == [None] * 20
    assert time.monotonic() - began < 5 and len(calls) == 1
    gate.set()
    until(lambda: mine.get().value == 1)


def test_few_of_many_names_are_read_at_once_and_all_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, begun = threading.Event(), list[str]()

    def read(name: str) -> str:
        begun.append(name)
        gate.wait(60)
        return name

    mine = feed.Feeds(read, fresh=3600.0)
    names = [f"run {n}" for n in range(20)]
    assert [mine.get_feed(name).get().value for name in names] == [None] * 20
    until(lambda: len(begun) == feed.MAX_CONCURRENT)
    assert [mine.get_feed(name).get().error for name in names] == [None] * 20  # they wait, and nothing is wrong
    assert len(begun) == feed.MAX_CONCURRENT
    # Those that hang for ever hold nobody up for ever.
    monkeypatch.setattr(feed, "GIVEN_UP_S", 0.05)
    until(lambda: mine.get_feed(names[-1]).get() is not None and names[-1] in begun)
    monkeypatch.setattr(feed, "GIVEN_UP_S", 600.0)
    gate.set()
    until(lambda: [mine.get_feed(name).get().value for name in names] == names)


def test_an_error_is_told_beside_what_was_known_and_passes() -> None:
    answers: list[Any] = [1, CatalogUnavailableError("It is away."), ValueError("odd\nsecond line"), 4]

    def read() -> int:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    mine = Feed(read, fresh=0.0)
    told, kept = [], []

    def last() -> bool:
        reading = mine.get()
        kept.append(reading)
        told.append((reading.value, reading.error))
        return reading.value == 4 and reading.error is None

    until(last)
    times = dict.fromkeys((reading.at for reading in kept if reading.value), None)
    assert len(times) == 2 and all(
        earlier <= later for earlier, later in pairwise(times)
    )  # of what was read, not tried
    assert (1, None) in told
    assert any(value == 1 and "It is away." in (said or "") for value, said in told)
    assert (1, "ValueError: odd") in told


def test_a_reading_that_hangs_is_told_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "HANGS_S", 0.05)
    gate, calls = threading.Event(), list[int]()

    def read() -> int:
        calls.append(1)
        return gate.wait(10) and 1 if len(calls) == 1 else 2

    mine = Feed(read, fresh=0.0)
    until(lambda: "No answer for" in (mine.get().error or ""))
    assert len(calls) == 1
    monkeypatch.setattr(feed, "GIVEN_UP_S", 0.1)
    until(lambda: mine.get().value == 2)
    monkeypatch.setattr(feed, "HANGS_S", 60.0)
    monkeypatch.setattr(feed, "GIVEN_UP_S", 60.0)
    gate.set()  # what comes after all comes too late
    until(lambda: mine.get() and len(calls) > 3)
    # Nobody asks meanwhile: each question begins another reading, as what is read here is never fresh.
    until(lambda: all(thread.name != "sluice-pages" for thread in threading.enumerate()))
    assert (mine.get().value, mine.get().error) == (2, None)


def test_a_reading_is_kept_while_it_is_fresh() -> None:
    calls: list[int] = []
    mine = Feed(lambda: calls.append(1) or len(calls), fresh=3600.0)
    assert mine.get(wait=10).value == 1
    assert [mine.get().value for _ in range(5)] == [1] * 5
    assert len(calls) == 1


def test_a_value_of_before_a_change_is_read_again_at_once_and_waited_for() -> None:
    calls: list[int] = []
    mine = Feed(lambda: calls.append(1) or len(calls), fresh=3600.0)
    assert mine.get(wait=10).value == 1
    change = datetime.now(UTC)
    assert mine.get_since(change, wait=10).value == 2
    assert [mine.get_since(change, wait=10).value for _ in range(5)] == [2] * 5
    assert mine.get_since(None, wait=10).value == 2
    assert len(calls) == 2


def test_a_reading_that_was_under_way_before_a_change_is_followed_by_another() -> None:
    gate, calls = threading.Event(), list[int]()

    def read() -> int:
        calls.append(1)
        gate.wait(10)
        return len(calls)

    mine = Feed(read, fresh=3600.0)
    mine.get()
    until(lambda: len(calls) == 1)
    change = datetime.now(UTC)
    assert mine.get_since(change, wait=0.01).value is None  # nobody waits longer than that
    threading.Timer(0.05, gate.set).start()
    assert mine.get_since(change, wait=10).value == 2


def test_a_change_is_not_read_over_and_over_where_reading_fails_or_there_is_no_slot() -> None:
    calls: list[int] = []

    def read() -> int:
        calls.append(1)
        raise CatalogUnavailableError("It is away.")

    mine, change = Feed(read, fresh=3600.0), datetime.now(UTC)
    assert [mine.get_since(change, wait=10).value for _ in range(5)] == [None] * 5
    assert "It is away." in (mine.get().error or "") and len(calls) == 1
    slots, gate = feed.Slots(), threading.Event()
    hanging = [Feed(lambda: gate.wait(60), slots=slots).get().busy for _ in range(feed.MAX_CONCURRENT)]
    assert all(hanging)
    began = time.monotonic()
    assert Feed(read, slots=slots).get_since(datetime.now(UTC), wait=10).value is None
    assert time.monotonic() - began < 5
    gate.set()
