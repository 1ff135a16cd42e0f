"""The web pages in a real Airflow after the runs of `test_dags.py`: permissions, content, alerts."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
import requests

from sluice.batch import PUBLISHED_THROUGH, RUN_ID
from sluice.embedded.home import REPOSITORY
from sluice.iceberg import cursor, snapshots
from sluice.ledger.ledger_rows import LedgerState
from sluice.ledger.offsets_table import Ledger
from tests.support.airflow_stack import GROUPS, AirflowStack

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]


def test_every_address_of_the_pages_asks_for_a_login_and_the_right_to_look(stack):
    sources = [path.read_text() for path in (REPOSITORY / "plugins").rglob("*.py")]
    paths = [path for text in sources for path in re.findall(r'@(?:app|router)\.get\("([^"]+)"', text)]
    paths = [path.replace("/tables/{name}", "/tables/mixed.bad").replace("{name}", "sluice.css") for path in paths]
    assert len(paths) > 12
    a_dry_run_is_for_those_who_may_trigger_the_dag(stack, next(path for path in paths if path.endswith("/dry-run")))
    paths = [path for path in paths if not path.endswith("/dry-run")]
    refused = Ledger(stack.catalog).rows({"mixed.bad": 0}, (LedgerState.BLOCKED,))[-1]
    paths = [f"{path}?run_id={quote(refused.run_id or '')}" if path.endswith("/report") else path for path in paths]
    paths = [f"{path}?at=0:0" if path.endswith("/record") else path for path in paths]
    stack.wait_until(lambda: stack.ask("/api/tables").status_code == 200)
    for path in paths:
        without = requests.get(f"{stack.env['SLUICE_PAGES_URL']}/sluice{path}", timeout=30)
        assert (without.status_code, stack.ask(path, None).status_code) == (401, 403), path
        assert stack.ask(path, token="eyJ.not.one").status_code in (401, 403), path
        assert stack.ask(path, token=stack.token("viewer", "another" * 10)).status_code in (401, 403), path
        # What answers programs says 503 until it was read once, and a report that it is being read.
        allowed = stack.wait_until(
            lambda path=path: (found := stack.ask(path)).status_code != 503 and "Refresh" not in found.headers and found
        )
        assert allowed.status_code == 200, path
        assert stack.ask(path, "op").status_code == 200, path
        if not path.startswith("/api"):
            report = "/report" in path
            assert ("script-src 'self'", "; sandbox")[report] in allowed.headers["Content-Security-Policy"], path
            assert not report or " in run " in allowed.text
    for path in (
        "/tables/no.such",
        "/tables/no.such/timeline",
        "/tables/mixed.bad/report?run_id=none",
        "/api/tables/no.such",
        "/api/tables/no.such/readiness",
    ):
        assert stack.ask(path).status_code == 404, path
    for role, words in (
        ("viewer", "you may not trigger ingest_mixed, backfill"),
        ("op", "you may trigger ingest_mixed, "),
    ):
        (access,) = [
            line for line in stack.ask("/api/tables/mixed.bad/readiness", role).json() if line["subject"] == "Access"
        ]
        assert access["ready"] is True and words in access["evidence"], access


def a_dry_run_is_for_those_who_may_trigger_the_dag(stack: AirflowStack, path: str) -> None:
    assert requests.get(f"{stack.env['SLUICE_PAGES_URL']}/sluice{path}", timeout=30).status_code == 401
    stack.wait_until(lambda: stack.ask("/api/tables").status_code == 200)
    assert stack.ask(path).status_code == 403
    query = f"{path}?dag=publish_blocked"
    shown = stack.wait_until(lambda: (found := stack.ask(query, "op")).status_code == 200 and found.json())
    (line,) = shown["lines"]
    assert line.startswith("published by the next run: mixed.bad batch 1 of mixed.bad: 50 of 50 records"), shown
    refused = stack.wait_until(lambda: (found := stack.ask(path, "op")).status_code == 200 and found.json())
    assert refused["lines"] == [] and "mixed.bad" in refused["error"], refused  # nothing is published yet


def test_the_pages_tell_where_every_table_stands(stack):
    ask = stack.ask

    def at(table: str, moment: datetime) -> str:
        return ask(f"/tables/{table}/timeline?at={quote(moment.isoformat())}").text

    stack.wait_until(lambda: {t["table"] for t in ask("/api/tables").json().get("tables", ())} >= set(GROUPS["mixed"]))
    page = ask("/tables").text
    assert page.index("mixed.bad</a>") < page.index("mixed.good</a>"), "what needs a person comes first"
    assert "mixed.good</a>" not in ask("/tables?state=blocked").text
    good = stack.catalog.load_table("mixed.good")
    page = stack.wait_until(lambda: "Contract versions" in (text := ask("/tables/mixed.good").text) and text)
    run = cursor.find_offset_snapshot(good, PUBLISHED_THROUGH).summary.additional_properties[RUN_ID]
    assert f"<code>{cursor.find_offset_snapshot(good, PUBLISHED_THROUGH).snapshot_id}</code>" in page and run in page
    assert re.search(r"partition \d: 0", page) and "No record is quarantined" in page
    assert "Rollback tested" in page
    # Who may only look reads what the table promises, and finds a record.
    promise = stack.wait_until(lambda: "How to read it" in (t := ask("/tables/mixed.good/contract").text) and t)
    assert "data-operation" not in promise and f"<code>{html.escape(good.location())}</code>" in promise
    assert "batches were published within" in promise or "no target is set" in promise
    found = stack.wait_until(lambda: "in the table" in (t := ask("/tables/mixed.good/record?at=0:0").text) and t)
    assert "its batch was published" in found
    # What was true at the moment of that snapshot, and just before it.
    moment = snapshots.committed_at(cursor.find_offset_snapshot(good, PUBLISHED_THROUGH))
    then = stack.wait_until(
        lambda: "VERSION AS OF" in (text := at("mixed.good", moment + timedelta(seconds=60))) and text
    )
    assert f"<code>{good.metadata.current_snapshot_id}</code>" in then and "records published" in then
    told = ask("/api/tables/mixed.good/timeline?hours=1").json()
    assert told["standing"]["snapshot_id"] == good.metadata.current_snapshot_id
    assert told["standing"]["through"]["mixed.good"]["next_offsets"], told
    assert {e["lane"] for e in told["events"]} >= {"staged", "published"}, told
    events = stack.wait_until(lambda: ask("/api/timeline").json().get("events"))
    assert {e["table"] for e in events} >= {"mixed.good", "mixed.bad"}
    the_run_that_failed_stands_on_the_timeline(stack)
    assert ask("/api/tables/mixed.good/timeline?at=soon").status_code == 400
    scored = {line["subject"]: line["ready"] for line in ask("/api/tables/mixed.good/readiness").json()}
    assert scored["Owner"] is True and scored["Rollback tested"] is False, scored
    (judged,) = ask("/api/quality").json()["mixed.good"]
    assert judged["column"] == "id" and judged["results"][-1]["success"] is True, judged
    assert "no longer reaches back" in at("mixed.good", datetime(2020, 1, 1, tzinfo=UTC))
    assert "not a time with a time zone" in ask("/tables/mixed.good/timeline?at=yesterday").text
    assert stack.wait_until(lambda: "mixed.bad</a>" in (text := ask("/timeline").text) and "refused" in text)
    told = stack.wait_until(lambda: "last_batch_seconds{" in (text := ask("/metrics").text) and text)
    assert (
        'sluice_table_failing{table="mixed.bad"} 1.0' in told and 'sluice_table_failing{table="mixed.good"} 0.0' in told
    )
    page = stack.wait_until(lambda: "Contract versions" in (text := ask("/tables/mixed.bad").text) and text)
    assert "data-operation" not in page and "Run now…" in stack.ask("/tables/mixed.bad", "op").text  # by role
    assert "(misfit)</b> in <code>id</code>" in page and "blocked</span>" in page
    # Nobody is kept waiting by the catalog or by Kafka.
    took = sorted(ask("/tables").elapsed.total_seconds() for _ in range(20))
    assert took[10] < 0.5, took


def the_run_that_failed_stands_on_the_timeline(stack: AirflowStack) -> None:
    """That of all tables; on their own the ledger tells of `mixed.bad`, and `mixed.good` had no part in it.

    A rollback that was refused, or whose worker died, stands on the timeline of the table that it was to take back.
    """

    def failed(path: str, dag: str = "ingest_mixed") -> list[dict[str, Any]]:
        told = stack.wait_until(lambda: (answer := stack.ask(path)).status_code == 200 and answer.json())
        assert told["unavailable"] == []
        return [e for e in told["events"] if (e["lane"], e["dag"]) == ("failed_runs", dag)]

    refused = Ledger(stack.catalog).rows({"mixed.bad": 0}, (LedgerState.BLOCKED,))[-1].run_id or ""
    event = {e["run_id"]: e for e in stack.wait_until(lambda: failed("/api/timeline"))}[refused]
    assert re.match(r"run of ingest_mixed: task (mixed\.bad|table) failed after 1 try; began 2", event["told"])
    assert event["bad"] is True and event["seconds"] > 0 and event["table"] is None
    assert [failed(f"/api/tables/mixed.{name}/timeline") for name in ("bad", "good")] == [[], []]
    for path in ("/api/timeline", "/api/tables/plain.orders/timeline"):
        assert {e["table"] for e in failed(path, "rollback")} == {"plain.orders"}
    assert failed("/api/tables/mixed.bad/timeline", "rollback") == []
    page = stack.wait_until(lambda: "topics and DAGs<small>" in (text := stack.ask("/timeline").text) and text)
    assert f'data-airflow-path="/dags/ingest_mixed/runs/{quote(refused, safe="")}"' in page
    assert "task mixed.bad failed" in page or "task table failed" in page


def test_who_is_to_be_told_is_told_once_and_again_after_mail_was_away(stack, mailbox):
    def look() -> str:
        return stack.end("alerts", stack.trigger("alerts", {"look"}))[0]

    mailbox.refuses = True
    assert look() == "failed" and not mailbox.messages
    mailbox.refuses = False
    assert look() == "failed"
    told = {m["Subject"]: m.get_body().get_content() for m in mailbox.messages}
    assert set(told) == {
        f"Sluice: mixed.{name} is blocked (batch 1 of {topic})"
        for name, topic in (("bad", "mixed.bad"), ("many_bad", "many-bad"))
    }
    assert len(mailbox.messages) == 2 and mailbox.messages[0]["To"] == "ops@example.org"
    body = told["Sluice: mixed.bad is blocked (batch 1 of mixed.bad)"]
    assert "50 of 50 records" in body
    (link,) = re.findall(r'href="([^"]+)"', body)
    assert link == f"{stack.env['SLUICE_PAGES_URL']}/sluice/tables/mixed.bad/timeline"
    assert look() == "success" and len(mailbox.messages) == 2
