"""The incidents of a status; each is reported once."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from sluice.contract.folder import load_contracts
from sluice.contract.groups import AlertSettings
from sluice.errors import BrokerUnavailableError, CatalogUnavailableError, ConfigError, ContractError, TopicMissingError
from sluice.kafka import broker
from sluice.kafka.broker import TopicState
from sluice.offsets import OffsetRange
from sluice.plan.risk import RiskStatus
from sluice.status import sources
from sluice.status.incidents import Incident, compare_incidents, find_incidents
from sluice.status.model import ExpectationsSummary, LastError, Status, TableStatus, TopicStatus
from sluice.status.open_work import SliceStatus
from sluice.status.sources import StatusSources
from sluice.status.status import read_status

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 22, tzinfo=UTC)
ALERTS = AlertSettings()
PAGES = "http://airflow/sluice"
CONTRACT = "table: db.t\ntopic: t\ngroup: g\nowner: me\ncolumns: [{name: id, type: long}]\n"


def table(name: str = "db.t", **changes: Any) -> TableStatus:
    topics = {"topics": [TopicStatus("t", lag_records=0)]}
    return TableStatus(name, "g", "append", "me", exists=True, **(topics | changes))


def late(name: str = "db.t", **changes: Any) -> TableStatus:
    freshness = {"freshness_now_seconds": 7200.0, "freshness_promised_seconds": 900.0}
    return table(name, freshness_kept=False, **freshness, **changes)


def status(*tables: TableStatus, away: bool = False) -> Status:
    return Status(NOW, list(tables), [CatalogUnavailableError("no answer")] if away else [])


def risk(kind: str, *texts: str) -> list[RiskStatus]:
    """Texts begin with the topic, as the planner's do."""
    return [RiskStatus(kind, text.partition(":")[0], text) for text in texts]


def titles(found: list[Incident]) -> list[str]:
    return [each.title for each in found]


def test_a_table_may_be_in_several_incidents_and_only_in_those_that_are_asked_for() -> None:
    failed = LastError(NOW, "failed", "t", 3, "no space left", "run", open=True)
    both = late(
        last_error=failed,
        schema="a change waits",
        risks=[*risk("unread", "t: Kafka deletes it."), *risk("unread", "t: And that.")],
    )
    found = find_incidents(status(table("db.fine"), both), ALERTS, PAGES)
    assert titles(found) == ["db.t is failed (batch 3 of t)", "db.t is late", "db.t is at risk (unread: t)"]
    assert found[0].why == "no space left" and found[2].why == "t: Kafka deletes it. And 1 more like it."
    assert found[0].url == "http://airflow/sluice/tables/db.t/timeline"
    assert titles(find_incidents(status(both), AlertSettings(states=("review",)), PAGES)) == [
        "db.t waits for a schema review"
    ]


def test_what_is_blocked_is_told_as_one_thing() -> None:
    blocked = table(last_error=LastError(NOW, "blocked", "t", 3, "50 of 50 records", "run", open=True))
    assert titles(find_incidents(status(blocked), ALERTS, PAGES)) == ["db.t is blocked (batch 3 of t)"]


def test_a_broker_that_dies_while_tables_are_read_stops_none_of_them(tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.yaml").write_text(
            CONTRACT.replace("db.t", f"db.{name}").replace("topic: t", f"topic: {name}")
        )

    def newest(_: Any, topics: dict[str, Any]) -> dict[str, datetime]:
        for topic in topics:
            if topic != "a":
                raise BrokerUnavailableError("Kafka did not answer: Local: Timed out", topic=topic)
        return dict.fromkeys(topics, NOW)

    def described(_: Any, topics: list[str]) -> dict[str, TopicState]:
        return {t: TopicState(t, "id", {0: OffsetRange(0, 5)}, compacted=False, retention_ms=-1) for t in topics}

    world = StatusSources(client=cast("Any", object()))
    monkeypatch.setattr(sources, "open_sources", lambda *_: world)
    monkeypatch.setattr(broker, "describe_topics", described)
    monkeypatch.setattr(broker, "read_stream_clocks", newest)
    found = read_status(load_contracts(tmp_path))
    assert titles(find_incidents(found, ALERTS, PAGES)) == ["Sluice: BrokerUnavailableError"]
    assert {t.table: (t.problems, t.unasked) for t in found.tables} == {
        "db.a": ([], ["catalog"]), "db.b": ([], ["kafka", "catalog"]), "db.c": ([], ["kafka", "catalog"]),
    }  # fmt: skip
    assert found.unasked == ["kafka", "catalog"] and found.tables[0].topics[0].stream_clock == NOW


def test_how_often_a_run_must_fail_and_how_much_be_rejected_before_it_is_told() -> None:
    def told(found: TableStatus, **settings: Any) -> list[str]:
        return titles(find_incidents(status(found), AlertSettings(**settings), PAGES))

    failed = LastError(NOW, "failed", "t", 3, "no space left", "run", open=True, runs=2)
    twice = table(last_error=failed)
    assert told(twice) == told(twice, failed_runs=2) == ["db.t is failed (batch 3 of t)"]
    assert told(twice, failed_runs=3) == []
    refused = table(last_error=replace(failed, state="blocked", runs=1))
    assert told(refused, failed_runs=3) == ["db.t is blocked (batch 3 of t)"]  # no run cures it
    (few,) = find_incidents(status(table(day_records=200, day_rejected=2)), ALERTS, PAGES)
    assert few.title == "db.t quarantines too many records" and "2 of 200 records" in few.why and "1.00%" in few.why
    assert told(table(day_records=201, day_rejected=2)) == []
    assert told(table(day_records=201, day_rejected=2), quarantine_ratio=0.001) == ["db.t quarantines too many records"]
    assert told(table(day_records=0, day_rejected=0)) == []
    (all_of_them,) = find_incidents(status(table(day_records=0, day_rejected=2)), ALERTS, PAGES)
    # What was replayed since is over, whatever else the quarantine holds.
    assert told(table(day_records=200, day_rejected=2, day_apart=0, quarantined=900)) == []
    (left,) = find_incidents(
        status(table(day_records=200, day_rejected=20, day_apart=5, quarantined=900)), ALERTS, PAGES
    )
    assert "5 of 200 records" in left.why and "of the last 24 hours are quarantined (2.50%)" in left.why
    assert "2 of 2 records" in all_of_them.why and "100.00%" in all_of_them.why


def test_a_contract_that_can_not_be_read_is_told_and_ends_nothing() -> None:
    broken = replace(status(), broken=["/c/a.yaml:3: modee: unknown field", "/c/b.yaml:4: x", "/c/a.yaml:5: y"])
    found = find_incidents(broken, ALERTS, PAGES)
    names = ["Sluice: broken contract a.yaml", "Sluice: broken contract b.yaml"]
    assert titles(found) == names and "modee" in found[0].why and "5: y" in found[0].why
    known = find_incidents(status(late(), late("db.u"), away=True), ALERTS, PAGES)
    new, goes_on, over = compare_incidents(found, known, replace(broken, tables=[table("db.u")]))
    assert (titles(new), titles(goes_on), titles(over)) == (
        names, ["db.t is late"], ["Sluice: CatalogUnavailableError", "db.u is late"],
    )  # fmt: skip
    # It names files and fields of tables that not everybody may know of.
    mine = broken.filter_groups(lambda group: group == "mine")
    assert mine.broken == [] and "modee" not in str(mine.errors) and "3 problems" in str(mine.errors[0])


def test_each_is_told_once_and_again_when_it_comes_back() -> None:
    known: list[Incident] = []

    def look(now: Status) -> tuple[list[str], list[str]]:
        nonlocal known
        new, goes_on, over = compare_incidents(find_incidents(now, ALERTS, PAGES), known, now)
        known = [*goes_on, *new]
        return titles(new), titles(over)

    assert look(status(late())) == (["db.t is late"], [])
    assert look(status(late())) == ([], [])
    assert look(status(late(), late("db.u"))) == (["db.u is late"], [])
    # Nobody knows where they stand: neither news nor an end.
    unknown = [replace(table(name), exists=None) for name in ("db.t", "db.u")]
    assert look(status(*unknown, away=True)) == (["Sluice: CatalogUnavailableError"], [])
    assert look(status(*unknown, away=True)) == ([], [])
    assert look(status(table(), late("db.u"))) == ([], ["db.t is late", "Sluice: CatalogUnavailableError"])
    assert look(status(late(), late("db.u"))) == (["db.t is late"], [])


def test_a_risk_of_another_kind_is_news_while_the_first_goes_on() -> None:
    schema = risk("schema", "t: a field is gone")
    known = find_incidents(status(table(risks=schema)), ALERTS, PAGES)
    both = status(table(risks=[*schema, *risk("unread", "t: Kafka may delete it")]))
    new, goes_on, over = compare_incidents(find_incidents(both, ALERTS, PAGES), known, both)
    assert [(i.title, i.why) for i in new] == [("db.t is at risk (unread: t)", "t: Kafka may delete it")]
    assert [i.why for i in goes_on] == ["t: a field is gone"] and not over
    # What an older version remembers has no kind, and is no other incident.
    stored = json.loads(json.dumps([{k: v for k, v in asdict(i).items() if k not in ("kind", "about")} for i in known]))
    new, goes_on, over = compare_incidents(
        find_incidents(both, ALERTS, PAGES), [Incident(**each) for each in stored], both
    )
    assert [i.why for i in new] == ["t: Kafka may delete it"] and len(goes_on) == 1 and not over


def test_a_risk_of_another_topic_is_news_to_who_remembers_the_kind_alone() -> None:
    first = find_incidents(status(table(risks=risk("unread", "t: Kafka may delete it"))), ALERTS, PAGES)
    told = [replace(each, about="") for each in first]  # as the version before this wrote it
    both = status(table(risks=risk("unread", "t: Kafka may delete it", "u: and this")))
    new, goes_on, over = compare_incidents(find_incidents(both, ALERTS, PAGES), told, both)
    assert ([i.about for i in new], goes_on, over) == (["u"], first, [])


def failed(batch: int, why: str = "no space left", topic: str = "t", **changes: Any) -> LastError:
    return LastError(NOW, "failed", topic, batch, why, "run", open=True, **changes)


def piece(number: int, run_id: str) -> SliceStatus:
    return SliceStatus("t", number, "failed", {}, NOW, run_id, f"slice {number}", None)


def no_topics(*names: str) -> Status:
    errors = [(n, TopicMissingError("No topic matches.", table=f"{n}.{{topic}}", pattern=n)) for n in names]
    return replace(status(), stopped=errors)


def stopped(topic: str) -> TopicStatus:
    return TopicStatus(topic, lag_records=0, problem=f"no access to {topic}")


def judged(topic: str) -> ExpectationsSummary:
    return ExpectationsSummary(topic, 3, NOW, 0, 0, [f"warn: of {topic}"])


ALL = AlertSettings(states=(*ALERTS.states, "backfill refused", "doubtful"))


def of(now: Status) -> list[Incident]:
    return find_incidents(now, ALL, PAGES)


@pytest.mark.parametrize(
    ("first", "both", "news"),
    [
        (no_topics("a"), no_topics("a", "b"), "b.{topic}"),
        (
            status(table(last_error=failed(5))),
            status(table(last_error=failed(5), further_errors=[failed(5, "of u", "u")])),
            "of u",
        ),
        (status(table(slices=[piece(-1, "r1")])), status(table(slices=[piece(-2, "r2"), piece(-1, "r1")])), "slice -2"),
        (
            status(table(topics=[stopped("a")], problems=["no access to a"])),
            status(table(topics=[stopped("b"), stopped("a")], problems=["no access to b", "no access to a"])),
            "no access to b",
        ),
        (
            status(table(expectations=judged("a"))),
            status(table(expectations=judged("b"), further_expectations=[judged("a")])),
            "of b",
        ),
        (
            status(table(risks=risk("unread", "a: Kafka may delete it"))),
            status(table(risks=risk("unread", "b: Kafka may delete this", "a: Kafka may delete it"))),
            "b: Kafka",
        ),
        (
            replace(status(), unavailable=[ConfigError("No Kafka.")]),
            replace(status(), unavailable=[ConfigError("No Kafka."), ConfigError("No catalog.")]),
            "No catalog",
        ),
    ],
)
def test_none_is_swallowed_by_another_of_its_word(first: Status, both: Status, news: str) -> None:
    (known,) = of(first)
    new, goes_on, over = compare_incidents(of(both), [known], both)
    assert len(new) == 1 and news in new[0].why and goes_on == [known] and not over
    assert len(compare_incidents(of(both), [], both)[0]) == 2
    assert len(set(titles(of(both)))) == 2  # nor do two mails have one subject
    # An older version remembers no more than its word: what it told is not told again, what it swallowed is.
    stored = json.loads(json.dumps({k: v for k, v in asdict(known).items() if k != "about"}))
    new, goes_on, over = compare_incidents(of(both), [Incident(**stored)], both)
    assert len(new) == 1 and news in new[0].why and len(goes_on) == 1 and not over
    assert compare_incidents(of(both), [*new, *goes_on], both)[0] == []


def test_the_next_batch_that_is_refused_is_news_and_a_further_try_is_none() -> None:
    known = of(status(table(last_error=failed(5))))
    again = status(table(last_error=replace(failed(5, "other words"), run_id="next", runs=2, state="failed")))
    assert compare_incidents(of(again), known, again) == ([], known, [])
    # A slice more of one backfill is no news: it is the run that a person looks at.
    more = [status(table(slices=slices)) for slices in ([piece(-1, "r")], [piece(-2, "r"), piece(-1, "r")])]
    assert compare_incidents(of(more[1]), of(more[0]), more[1])[0] == []
    later = status(table(last_error=failed(6)))
    new, goes_on, over = compare_incidents(of(later), known, later)
    assert (titles(new), titles(over)) == (["db.t is failed (batch 6 of t)"], ["db.t is failed (batch 5 of t)"])
    assert not goes_on


def test_of_many_topics_that_stop_or_endanger_a_table_a_few_are_told_and_then_the_next() -> None:
    names = [f"t{n}" for n in range(40)]
    found = table(topics=[stopped(n) for n in names], problems=[f"no access to {n}" for n in names])
    assert titles(of(status(found))) == [f"db.t is stopped (t{n})" for n in range(5)]
    found = table(topics=[stopped(n) for n in names[1:]], problems=[f"no access to {n}" for n in names[1:]])
    assert titles(of(status(found)))[-1] == "db.t is stopped (t5)"
    lost = [f"{n}: Kafka may delete it" for n in names]
    found = table(risks=[*risk("unread", *lost), *risk("left behind", "old: 5 records")])
    told = [f"db.t is at risk (unread: t{n})" for n in range(5)]
    assert titles(of(status(found))) == [*told, "db.t is at risk (left behind: old)"]
    whole = table(problems=["it was altered by other hands"])  # about no topic, or about all
    assert titles(of(status(whole))) == ["db.t is stopped"]


def test_a_title_is_one_line_of_some_words() -> None:
    title = Incident("", "ConfigError", "w", about="Kafka takes no\r\nBcc: x " + "y" * 200).title
    assert title.startswith("Sluice: ConfigError (Kafka takes no Bcc: x yyy") and len(title) < 110


def test_a_pattern_that_nobody_could_ask_about_is_as_it_was() -> None:
    known = of(no_topics("a"))
    for away in (replace(status(away=True), unasked=["kafka"]), replace(status(), broken=["/c/a.yaml:3: x"])):
        assert compare_incidents(of(away), known, away)[1] == known
    assert compare_incidents([], known, status())[2] == known


def test_hostile_text_is_escaped_in_a_mail() -> None:
    hostile = '<script>alert(1)</script>"&'
    html = Incident("db.t", "failed", hostile, hostile, "http://a/?b=1&c").html
    assert "<script>" not in html and "&lt;script&gt;" in html and 'href="http://a/?b=1&amp;c"' in html


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alerts: {schedule: soon}", "neither five cron fields"),
        ("alerts: {schedule: '61 * * * *'}", "is not a cron expression"),
        ("alerts: {states: [sad]}", "alerts.states[0]"),
        ("alerts: {notifiers: [{notifier: 'os; rm'}]}", "alerts.notifiers[0].notifier"),
        ("alerts: {notifiers: [{notifier: a.B, arguments: {smtp_password: x}}]}", "looks like a secret"),
        ("alerts: {whom: me}", "unknown field"),
        ("alerts: {quarantine_ratio: 1.5}", "alerts.quarantine_ratio"),
        ("alerts: {failed_runs: 0}", "alerts.failed_runs"),
    ],
)
def test_wrong_settings_are_named_and_hide_no_table(tmp_path, text: str, said: str) -> None:
    (tmp_path / "t.yaml").write_text(CONTRACT)
    (tmp_path / "groups.yaml").write_text(text)
    with pytest.raises(ContractError, match=r"groups.yaml:1: alerts") as error:
        load_contracts(tmp_path)
    assert said in str(error.value)
    lax = load_contracts(tmp_path, strict=False)
    assert list(lax.tables) == ["db.t"] and lax.common.alerts is None and lax.common.maintenance


def test_without_alerts_there_are_none_and_with_them_they_have_defaults(tmp_path) -> None:
    (tmp_path / "t.yaml").write_text(CONTRACT)
    assert load_contracts(tmp_path).common.alerts is None
    (tmp_path / "groups.yaml").write_text("alerts:\n")
    assert load_contracts(tmp_path).common.alerts == AlertSettings()
