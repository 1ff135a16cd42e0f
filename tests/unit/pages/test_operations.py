"""The buttons of the pages: what each sends to Airflow, and who has them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from sluice import dag_ids
from sluice.ledger.slices import Origin
from sluice.pages import table_operations
from sluice.pages.detail import TableDetail
from sluice.pages.operations import Operation, Rights
from sluice.pages.quarantine_summary import ErrorGroup, QuarantineSummary
from sluice.pages.table_operations import TableOperations
from sluice.status import verdicts
from sluice.status.model import LastError, TableStatus, TopicStatus
from sluice.status.open_work import IngestRun

pytestmark = pytest.mark.unit

AT = datetime(2026, 11, 22, 6, 0, tzinfo=UTC)
HOSTILE = "\"'><script>alert(1)</script>/../{{ 7*7 }}"
EVERYTHING = Rights(lambda _: True, lambda _: True, lambda _: True)
APART = TableDetail(quarantine=QuarantineSummary([ErrorGroup("misfit", "id", 3, {"t": {"0": [1, 9]}})]))


def table(name: str = "db.t", *topics: str, **changes: Any) -> TableStatus:
    found = [TopicStatus(topic, lag_records=0) for topic in topics or ("t",)]
    return TableStatus(name, "g", "append", "me", exists=True, topics=found, **changes)


def every(known: TableOperations) -> list[Operation]:
    """All that there is to start on a table."""
    found = [
        known.unpause(), known.run_now(), known.replay(APART, "t", {"0": [1, 9]}), *known.replay_all(APART),
        known.backfill(), known.roll_back("scheduled__1"), known.accept_gap(), known.review(), known.publish_blocked(),
        known.answer("Approve"), known.answer("Reject"), *known.maintain(),
    ]  # fmt: skip
    return [each for each in found if each]


def test_who_may_do_nothing_has_no_button_and_who_may_start_one_dag_has_its_own() -> None:
    assert every(TableOperations(table(), Rights(), "review__1")) == []
    one = Rights(start=lambda dag: dag == dag_ids.ROLLBACK)
    (rollback,) = every(TableOperations(table(), one, "review__1"))
    assert (rollback.dag, rollback.then) == ("rollback", None)
    answers = Rights(answer=lambda dag: dag == dag_ids.REVIEW_SCHEMA)
    found = every(TableOperations(table(), answers, "review__1"))
    assert [each.label for each in found] == ["Approve…", "Reject…"]
    assert every(TableOperations(table(), answers)) == []


def test_each_run_is_a_real_one_whose_id_says_the_table_and_what_is_done() -> None:
    found = every(TableOperations(table(paused=True), EVERYTHING, "review__1"))
    starting = [each for each in found if each.method == "POST"]
    assert [each.run for each in starting] == [
        "run__db.t", "replay__db.t", "replay__db.t", "backfill__db.t", "rollback__db.t", "accept_gap__db.t",
        "review__db.t", "publish_blocked__db.t", *(f"{dag}__db.t" for dag in dag_ids.MAINTENANCE_DAGS),
    ]  # fmt: skip
    for each in starting:
        assert each.path == f"/api/v2/dags/{each.dag}/dagRuns"
        assert each.body["logical_date"] is None and each.body["note"] == each.title
        reason = [field for field in each.fields if field.name == "why"]
        # What the ledger records needs a reason; that is what the forms of these DAGs ask for.
        assert (each.values_in == "conf") == any(field.required for field in reason)
        assert each.body["conf"].get("dry_run", False) is False
        assert ("dry_run" in each.body["conf"]) == (each.values_in == "conf")
    assert {each.path for each in found if each.method == "PATCH"} == {
        "/api/v2/dags/ingest_g?update_mask=is_paused",
        "/api/v2/dags/review_schema/dagRuns/review__1/taskInstances/decide/-1/hitlDetails",
    }


def test_a_rollback_says_where_it_goes_back_to_and_asks_for_the_loss_last() -> None:
    rollback = TableOperations(table(), EVERYTHING).roll_back("scheduled__1")
    assert rollback and rollback.label == "Roll back to before this run…" and "scheduled__1" in rollback.text[0]
    assert [field.name for field in rollback.fields] == ["why", "accept_loss"]
    assert "dry run above shows LOST" in rollback.fields[-1].hint


def test_what_only_the_next_run_shows_leads_to_that_run() -> None:
    for paused, label in ((True, "Unpause…"), (False, "Run now…")):
        found = {each.dag: each.then for each in every(TableOperations(table(paused=paused), EVERYTHING))}
        after = {dag: then.label for dag, then in found.items() if then and dag != "ingest_g"}
        assert after == dict.fromkeys((dag_ids.ROLLBACK, dag_ids.ACCEPT_GAP, dag_ids.PUBLISH_BLOCKED), label)


def test_a_dag_that_is_unpaused_is_offered_a_run_because_its_schedule_may_be_far_off() -> None:
    unpause = TableOperations(table(paused=True), EVERYTHING).unpause()
    assert (
        unpause and unpause.then and (unpause.then.path, unpause.then.then) == ("/api/v2/dags/ingest_g/dagRuns", None)
    )


def test_a_paused_dag_without_a_schedule_needs_a_run_and_not_only_to_be_unpaused() -> None:
    each = table(freshness_kept=False, paused=True, scheduled=False)
    known = TableOperations(each, EVERYTHING)
    told = [
        (v.word, v.todo, [o.label for o in buttons]) for v, buttons in known.by_verdict(verdicts.list_verdicts(each))
    ]
    assert told == [
        ("late", "DAG ingest_g has no schedule: start a run.", ["Run now…", "Unpause…"]),
        ("paused", "It has no schedule: start a run, which unpauses it first.", []),
    ]
    run, unpause = known.run_now(), known.unpause()
    assert run and run.unpause and run.text[-1] == "DAG ingest_g is paused: it is unpaused first."
    assert unpause and unpause.text == ["It has no schedule: it runs when somebody starts a run."]
    scheduled = TableOperations(table(paused=True), EVERYTHING).unpause()
    assert scheduled and scheduled.text == ["Runs of its schedule start again, for all tables of group g."]
    only_edits = TableOperations(each, Rights(edit=lambda _: True))
    assert [o.label for o in only_edits.for_verdict(verdicts.worst_verdict(each))] == ["Unpause…"]


def test_a_run_of_a_paused_dag_would_wait_so_that_it_is_unpaused_first() -> None:
    paused = {"backfill": True}
    may, may_not = Rights(*[lambda _: True] * 3, paused), Rights(lambda _: True, paused=paused)
    first = TableOperations(table(), may).backfill()
    waits = TableOperations(table(), may_not).backfill()
    assert first is not None and first.unpause and first.text[-1].endswith("is paused: it is unpaused first.")
    assert waits is not None and not waits.unpause and "waits until somebody unpauses it" in waits.text[-1]
    run = TableOperations(table(), may).run_now()
    assert run is not None and not run.unpause and len(run.text) == 1


@pytest.mark.parametrize(
    ("word", "labels"),
    [
        ("blocked", ["Run now…", "Publish anyway…"]), ("failed", ["Run now…"]), ("stopped", ["Skip lost offsets…"]),
        ("late", ["Run now…"]), ("at risk", ["Run now…"]), ("new", ["Run now…"]), ("paused", ["Run now…"]),
        ("doubtful", []), ("backfill refused", []), ("unknown", []), ("reading", []), ("fresh", []),
    ],
)  # fmt: skip
def test_each_state_has_the_button_that_may_end_it(word: str, labels: list[str]) -> None:
    assert word in verdicts.URGENCY
    verdict = verdicts.Verdict(word, verdicts.Tone.BAD, "why")
    assert [each.label for each in TableOperations(table(), EVERYTHING).for_verdict(verdict)] == labels
    if labels[:1] == ["Run now…"]:
        paused = TableOperations(table(paused=True), EVERYTHING)
        assert [each.label for each in paused.for_verdict(verdict)] == [
            "Unpause…",
            *labels[1:],
        ]


@pytest.mark.parametrize(
    ("state", "review", "labels", "step"),
    [
        ("open", None, ["Review…"], "Review it, then approve or reject it here."),
        ("open", "review__1", ["Approve…", "Reject…"], "Approve or Reject it."),
        ("rejected", None, ["Review again…"], "Or take the rejection back: Review again, then Approve."),
        ("rejected", "review__1", ["Approve…", "Reject…"], "Or take the rejection back: Approve."),
        ("due", None, ["Run now…"], "The next run applies it."),
        (None, None, [], ""),
    ],
)
def test_a_contract_change_has_the_buttons_of_its_state(
    state: str | None, review: str | None, labels: list[str], step: str
) -> None:
    each = table(schema="a change", schema_state=state)
    verdict = next(verdicts.list_verdicts(each))
    assert (verdict.word, verdict.label == "change rejected") == ("review", state == "rejected")
    known = TableOperations(each, EVERYTHING, review)
    assert [operation.label for operation in known.for_verdict(verdict)] == labels
    assert known.next_step(verdict).endswith(step)
    nobody = TableOperations(each, Rights(), review)
    assert (nobody.for_verdict(verdict), nobody.next_step(verdict)) == ([], verdict.todo)


def test_who_rejects_a_change_reads_beforehand_that_the_file_keeps_it() -> None:
    known = TableOperations(table(schema_state="open"), EVERYTHING, "review__1")
    reject, approve = known.answer("Reject"), known.answer("Approve")
    assert reject and reject.text[0].startswith("The contract file keeps the change: take it out afterwards")
    assert approve and approve.text == []


def test_an_operation_that_may_end_several_states_stands_once() -> None:
    each = table(freshness_kept=False, paused=True)
    found = TableOperations(each, EVERYTHING).by_verdict(verdicts.list_verdicts(each))
    told = [(verdict.word, [operation.label for operation in buttons]) for verdict, buttons in found]
    assert told == [("late", ["Unpause…"]), ("paused", [])]
    well = TableOperations(table(), EVERYTHING).by_verdict(verdicts.list_verdicts(table()))
    assert [verdict.word for verdict, _ in well] == ["fresh"]


def test_a_batch_that_an_expectation_blocked_is_not_published_by_a_button() -> None:
    verdict = verdicts.Verdict("blocked", verdicts.Tone.BAD, "why", by_expectation=True)
    assert [each.label for each in TableOperations(table(), EVERYTHING).for_verdict(verdict)] == ["Run now…"]


def test_what_is_decided_already_has_no_second_button_but_the_run_that_it_waits_for() -> None:
    error = LastError(AT, "blocked", "t", 3, "50 of 50 records", "run", open=True, decided_by="ann", decided_at=AT)
    verdict, *_ = verdicts.list_verdicts(table(last_error=error))
    assert (verdict.word, verdict.label) == ("blocked", "publish decided")
    assert verdict.why.startswith("ann decided at 2026-11-22 06:00:00 UTC to publish batch 3 of t anyway.")
    assert [each.label for each in TableOperations(table(), EVERYTHING).for_verdict(verdict)] == ["Run now…"]
    under_way = table(last_error=error, run=IngestRun("r", "running", AT))
    verdict = verdicts.worst_verdict(under_way)
    assert "waits for a run" not in verdict.why
    assert (verdict.todo, TableOperations(under_way, EVERYTHING).for_verdict(verdict)) == ("A run is under way.", [])


def test_records_are_replayed_topic_by_topic_from_where_they_are() -> None:
    groups = [ErrorGroup("misfit", "id", 3, {"t": {"0": [1, 9]}, "u": {"1": [0, 2]}}), ErrorGroup("misfit", "id", 1)]
    groups.append(ErrorGroup("misfit", "id", 5, {"v": {"0": [3, 4]}}, waiting=True))
    shown = TableDetail(quarantine=QuarantineSummary(groups))
    known = TableOperations(table("db.t", "t", "u", "v"), EVERYTHING)
    assert [each.body["conf"]["topic"] for each in known.replay_all(shown)] == ["t", "u"]
    masked = TableDetail(quarantine=QuarantineSummary(groups), keeps_raw=False)
    assert known.replay_all(masked) == []  # of staging, all would be every record
    part = known.replay(masked, "u", {"1": [0, 2]})
    assert part is not None
    assert (part.body["conf"]["source"], part.body["conf"]["ranges"]) == ("staging", {"1": [0, 2]})
    backfill = known.backfill()
    assert backfill is not None and backfill.fields[0].name == "topic"
    assert set(table_operations.SOURCES) == set(Origin)


def test_what_comes_from_outside_stays_data() -> None:
    for each in every(TableOperations(table(HOSTILE, HOSTILE), EVERYTHING, HOSTILE)):
        assert re.fullmatch(r"/api/v2/dags/[A-Za-z0-9_./?=%-]+", each.path), each.path
        if each.method == "POST":
            assert re.fullmatch(r"[A-Za-z0-9_.~:+-]+", each.run), each.run
        assert json.loads(json.dumps(each.as_json()))["title"] == each.title
