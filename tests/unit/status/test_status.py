"""Status and timeline when data is lost, rolled back or never existed, with a fake Kafka."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from sluice.batch import PUBLISHED_THROUGH, RUN_ID, STEP, Batch, PublishedOffsets, encode_published_through
from sluice.cli import main as command
from sluice.contract import folder as contract_folder
from sluice.contract.groups import AlertSettings
from sluice.errors import BrokerUnavailableError, RegistryUnavailableError, TopicMissingError
from sluice.iceberg import availability, table_names, tables
from sluice.iceberg import catalog as catalogs
from sluice.kafka import broker
from sluice.ledger import maintenance_table
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.quality_table import ExpectationResult, write_results
from sluice.offsets import OffsetRange
from sluice.operate import rollback
from sluice.operate.operator_input import Decision
from sluice.operate.rollback_target import RestorePoint
from sluice.pages import last_known
from sluice.plan import plan, retention_warnings
from sluice.status import incidents, model, status, text
from sluice.status.timeline import find_table_as_of, read_events
from sluice.status.verdicts import list_verdicts

pytestmark = pytest.mark.unit

CONTRACT = "table: db.t\ntopic: t\ngroup: g\nowner: me\ncolumns: [{name: id, type: long}]\n"
NULLS = "expect_column_values_to_not_be_null"
JUDGED = f"expectations: [{{type: {NULLS}, column: id, severity: warn}}]\n"
OLD = timedelta(hours=3)


def batch(seq: int, start: int, end: int) -> Batch:
    return Batch("t", "id", seq, {0: OffsetRange(start, end)}, {0: end})


class Site:
    """One contract with its catalog; what Kafka says is set here."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "contracts"
        self.folder.mkdir()
        self.says("")
        self.kafka: dict[str, Any] = {}
        for name, value in {
            "TYPE": "sql",
            "URI": f"sqlite:///{folder}/c.db",
            "WAREHOUSE": f"file://{folder}/w",
        }.items():
            patch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
        patch.setenv("SLUICE_CONTRACTS", str(self.folder))
        patch.setattr(broker, "connect", lambda *_, **__: [])  # as false as an AdminClient that waits for nothing
        patch.setattr(broker, "describe_topics", lambda _, topics: {t: self.kafka[t] for t in topics})
        patch.setattr(broker, "read_stream_clocks", lambda _, topics: dict.fromkeys(topics, datetime.now(UTC)))
        patch.setattr(
            broker, "offsets_for_time", lambda _, __, marks, ___: dict.fromkeys(marks, -1)
        )  # all records are old
        patch.setattr(retention_warnings, "find_retention_risks", lambda *_, **__: [])
        self.catalog = catalogs.load()

    def says(self, more: str, **other: str) -> None:
        text = CONTRACT + more
        for old, new in other.items():
            text = text.replace(f"{old}: {old[0]}\n", f"{old}: {new}\n")
        (self.folder / "t.yaml").write_text(text)

    def holds(self, start: int, end: int, topic: str = "t", topic_id: str = "id") -> None:
        marks = {0: OffsetRange(start, end)}
        self.kafka[topic] = broker.TopicState(topic, topic_id, marks, compacted=False, retention_ms=-1)

    def stage(self, *batches: Batch) -> None:
        for each in batches:
            self._append(tables.ensure_staging(self.catalog, each.topic), each, {STEP: "stage"})

    def publish(self, *batches: Batch) -> list[int]:
        made = []
        for each in batches:
            tables.ensure_typed(self.catalog, self.contracts.table("db.t"))
            through = encode_published_through(
                {each.topic: PublishedOffsets(each.seq, each.topic_id, each.next_offsets)}
            )
            about = {STEP: "publish", RUN_ID: "run", PUBLISHED_THROUGH: through}
            made.append(self._append(self.typed, each, about))
        return made

    def _append(self, table: Table, each: Batch, about: dict[str, str]) -> int:
        there = table.schema().as_arrow()
        known_of = {"batch_seq": each.seq, "_kafka_topic": each.topic, "_kafka_timestamp": datetime.now(UTC) - OLD}
        rows = [
            {**known_of, "_kafka_partition": p, "_kafka_offset": o, "id": o}
            for p, r in each.ranges.items()
            for o in range(*r)
        ]
        rows = [{name: row[name] for name in there.names if name in row} for row in rows]
        table.append(pa.Table.from_pylist(rows, schema=there), snapshot_properties={**each.properties(), **about})
        time.sleep(0.02)
        snapshot = self.catalog.load_table(table.name()).current_snapshot()
        assert snapshot
        return snapshot.snapshot_id

    @property
    def contracts(self) -> contracts.Contracts:
        return contract_folder.load_contracts(self.folder)

    @property
    def typed(self) -> Table:
        return self.catalog.load_table("db.t")

    def look(self) -> model.Status:
        return status.read_status(self.contracts)

    def words(self) -> list[str]:
        return [each.word for each in list_verdicts(self.look().tables[0])]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


@pytest.mark.parametrize(("lost", "word"), [(table_names.LEDGER, "blocked"), (table_names.QUALITY, "stopped")])
def test_what_needs_a_person_goes_on_while_sluices_own_tables_can_not_be_read(
    site: Site, lost: tuple[str, ...], word: str
) -> None:
    site.says(JUDGED)
    site.holds(0 if word == "blocked" else 15, 20)
    site.stage(batch(1, 0, 10))
    site.publish(batch(1, 0, 10))
    ledger = Ledger(site.catalog)
    if word == "blocked":
        site.stage(batch(2, 10, 20))
        ledger.append([LedgerRow("t", LedgerState.BLOCKED, "id", 2, table="db.t", error="50 of 50 bad")], run_id="run")
    held = ExpectationResult("db.t", "t", 1, NULLS, "id", "warn", success=True, records=10, parameters="{}")
    write_results(site.catalog, [held], run_id="run")
    before = site.look()
    told = incidents.find_incidents(before, AlertSettings(), "")
    assert [each.word for each in told] == [word]
    Path(site.catalog.load_table(lost).metadata_location.removeprefix("file://")).unlink()
    now = site.look()
    (table,) = last_known.fill_from_last(now, before).tables
    assert next(list_verdicts(table)).word == word and now.tables[0].unknown
    _, _, over = incidents.compare_incidents(incidents.find_incidents(now, AlertSettings(), ""), told, now)
    assert not over


@pytest.mark.parametrize("lost", [table_names.MAINTENANCE, table_names.QUALITY, table_names.LEDGER])
def test_while_one_of_sluices_own_tables_is_damaged_the_pages_tell_the_rest_as_it_is_now(
    site: Site, lost: tuple[str, ...]
) -> None:
    """They showed for good what was known before, and no table that was blocked since."""
    site.says(JUDGED)
    site.holds(0, 10)
    site.stage(batch(1, 0, 10))
    site.publish(batch(1, 0, 10))
    ledger = Ledger(site.catalog)
    ledger.append([LedgerRow("t", LedgerState.PUBLISHED, "id", 1, table="db.t", records=10)], run_id="run")
    write_results(
        site.catalog, [ExpectationResult("db.t", "t", 1, NULLS, "id", "warn", True, 10, parameters="{}")], run_id="run"
    )
    maintenance_table.write_results(
        site.catalog, [maintenance_table.ActionResult("db.t", "expire_snapshots", "done", reason="x")], run_id="run"
    )
    before = site.look()
    (was,) = before.tables
    assert was.maintenance and was.expectations and was.day_records == 10
    ledger.append([LedgerRow("t", LedgerState.BLOCKED, "id", 2, table="db.t", error="50 of 50 bad")], run_id="run2")
    Path(site.catalog.load_table(lost).metadata_location.removeprefix("file://")).unlink()
    site.holds(0, 500)
    site.stage(batch(2, 10, 20))
    for _ in range(2):
        now = before = last_known.fill_from_last(site.look(), before)
    (table,) = now.tables
    assert (table.lag_records, table.topics[0].staged_batch, len(table.open_batches)) == (490, 2, 1)
    assert table.unknown and table.unasked == ["catalog"]
    assert next(list_verdicts(table)).word == ("unknown" if lost == table_names.LEDGER else "blocked")
    # What the lost one told stays, and is said to be of then where it does not say so itself.
    assert (table.maintenance, table.expectations, table.day_records) == (was.maintenance, was.expectations, 10)
    assert (table.as_of is not None) == (lost == table_names.LEDGER)


def test_an_expectation_that_the_contract_has_no_more_is_no_doubt(site: Site) -> None:
    site.says(JUDGED)
    site.stage(batch(1, 0, 10))
    site.publish(batch(1, 0, 10))
    results = [ExpectationResult("db.t", "t", 1, NULLS, "id", "warn", held, 10, parameters=given)
               for given, held in [("{}", True), ('{"mostly": 0.5}', False)]]  # fmt: skip
    write_results(site.catalog, results, run_id="run")
    site.holds(0, 10)
    (table,) = site.look().tables
    assert table.expectations and (table.expectations.held, table.failed_expectations) == (1, [])
    site.says(JUDGED.replace("column: id", "column: id, mostly: 0.5"))
    (table,) = site.look().tables
    assert [(each.held, len(each.failed)) for each in table.failed_expectations] == [(0, 1)]


def test_a_refusal_that_was_cured_stays_so_when_its_batch_is_rolled_back(site: Site) -> None:
    site.holds(0, 30)
    ledger, now = Ledger(site.catalog), datetime.now(UTC)
    batches = [batch(n, 10 * n - 10, 10 * n) for n in (1, 2, 3)]
    site.stage(*batches)
    blocked = [
        LedgerRow("t", LedgerState.BLOCKED, "id", 2, table="db.t", error="bad", at=now - timedelta(days=n))
        for n in (5, 4)
    ]
    for number, row in enumerate(blocked):
        ledger.append([row], run_id=f"old {number}")
    first, *_ = site.publish(*batches)
    ledger.append(
        [LedgerRow("t", LedgerState.PUBLISHED, "id", n, table="db.t", records=10) for n in (2, 3)], run_id="cured"
    )
    found = rollback.preview_rollback("db.t", site.contracts, site.catalog, ledger, RestorePoint(snapshot_id=first))
    rollback.roll_back(found, site.catalog, ledger, Decision("ann", "x", "back"))
    status_of = site.look().tables[0]
    assert next(list_verdicts(status_of)).word == "reading"
    assert status_of.last_error and not status_of.last_error.open
    again = replace(blocked[0], at=now + timedelta(seconds=9), state=LedgerState.FAILED, exception="some.Error")
    ledger.append([again], run_id="new")
    status_of = site.look().tables[0]
    assert status_of.last_error and status_of.last_error.exception == "some.Error"
    assert (status_of.last_error.state, status_of.last_error.open, status_of.last_error.runs) == ("failed", True, 1)


def test_of_a_topic_that_was_made_anew_nothing_counts_as_read(site: Site) -> None:
    site.says("freshness: 1h\n")
    site.stage(batch(1, 0, 100))
    site.publish(batch(1, 0, 100))
    Ledger(site.catalog)
    site.holds(0, 30, topic_id="new")
    table = site.look().tables[0]
    assert (table.lag_records, table.freshness_now_seconds, table.freshness_kept) == (30, None, False)
    assert next(list_verdicts(table)).word == "stopped"


@pytest.mark.parametrize(("promised", "kept"), [("1h", False), ("4h", True)])
def test_what_kafka_holds_no_more_and_no_table_holds_yet_is_late_all_the_same(
    site: Site, promised: str, kept: bool
) -> None:
    site.says(f"freshness: {promised}\n")
    site.holds(20, 20)
    site.stage(batch(1, 0, 10), batch(2, 10, 20))
    site.publish(batch(1, 0, 10))
    table = site.look().tables[0]
    assert (table.lag_records, table.freshness_kept) == (10, kept)
    assert table.topics[0].late == ({} if kept else {0: 10})


@pytest.mark.parametrize("start", ["latest", "2026-01-01T00:00:00Z", "{0: 5}"])
def test_a_table_that_never_ran_is_not_late_for_what_it_will_not_read(site: Site, start: str) -> None:
    site.says(f"freshness: 1h\nstart: {start}\n")
    site.holds(0, 1_000_000)
    assert site.words() == ["new"]
    site.says("freshness: 1h\n")
    assert site.words() == ["late", "new"]


def test_a_topic_that_does_not_exist_stops_only_a_table_that_a_run_has_created(site: Site) -> None:
    site.kafka["t"] = TopicMissingError("Kafka has no topic 't'.", topic="t")
    before = site.look()
    verdict, *others = list_verdicts(before.tables[0])
    assert (verdict.word, others, incidents.find_incidents(before, AlertSettings(), "")) == ("new", [], [])
    assert "Kafka has no topic 't'" in verdict.why and verdict.todo.startswith("Create the topic")
    assert "! db.t: new: Kafka has no topic 't'." in text.as_text(before, details=False)
    assert before.tables[0].problems  # the next run stops
    site.publish(batch(1, 0, 10))
    assert site.words()[0] == "stopped"


def test_what_main_was_is_not_told_where_expiry_took_the_entry_that_told_it(site: Site) -> None:
    moments = []
    for n in (1, 2, 3):
        site.publish(batch(n, 10 * n - 10, 10 * n))
        moments.append(datetime.now(UTC))
    ids = [entry.snapshot_id for entry in site.typed.history()]
    assert [found and found.snapshot_id for found in (find_table_as_of(site.typed, at) for at in moments)] == ids
    site.typed.manage_snapshots().create_tag(ids[0], "audit").commit()
    later = datetime.now(UTC).replace(tzinfo=None) + timedelta(days=1)
    site.typed.maintenance.expire_snapshots().older_than(later).commit()
    assert [s.snapshot_id for s in site.typed.metadata.snapshots] == [ids[0], ids[2]]
    assert [found and found.snapshot_id for found in (find_table_as_of(site.typed, at) for at in moments)] == [
        None,
        None,
        ids[2],
    ]


def test_a_tables_history_stays_its_own_when_its_contract_names_another_topic(site: Site) -> None:
    site.publish(batch(1, 0, 10))
    rows = [
        LedgerRow("t", LedgerState.PUBLISHED, "id", 1, table="db.t", records=10),
        LedgerRow("t", LedgerState.ROLLED_BACK, "id", table="db.t", who="ann", why="x"),
        LedgerRow("t", LedgerState.PUBLISHED, "id", 1, table="db.other", records=10),
    ]
    Ledger(site.catalog).append(rows, run_id="run")

    def told() -> set[str]:
        since = datetime.now(UTC) - timedelta(days=1)
        return {str(e.lane) for e in read_events(site.catalog, since, [site.contracts.table("db.t")])}

    before = told()
    assert {"operator", "published"} <= before
    site.says("", topic="t2")
    assert site.contracts.table("db.t").topics == ("t2",)
    assert told() == before


def test_the_exit_code_tells_whether_to_try_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.holds(0, 10)

    def away(*_: Any, **__: Any) -> Any:
        raise RegistryUnavailableError("It did not answer.")

    monkeypatch.setattr(plan, "plan_topic", away)
    assert command.main(["plan", "g"]) == 2


def test_a_plan_warns_of_a_masking_key_that_this_shell_lacks(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site.holds(0, 10)
    (site.folder / "t.yaml").write_text(CONTRACT.replace("type: long", "type: string, mask: sha256"))
    monkeypatch.delenv("SLUICE_MASK_KEY", raising=False)
    assert command.main(["plan", "g"]) == 0  # Airflow's workers may have it
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "warn    a run from this shell would stop db.t: The masking key SLUICE_MASK_KEY is not set."
    )
    assert others[0].startswith("stage   t batch 1 ")
    assert site.words() == ["new"]


def test_a_table_of_a_pattern_while_nobody_answers(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (site.folder / "t.yaml").write_text(
        CONTRACT.replace("db.t", "db.{topic}").replace("topic: t", "topic: {pattern: t.*}")
    )

    def away(*_: Any, **__: Any) -> Any:
        raise BrokerUnavailableError("Kafka did not answer.")

    monkeypatch.setattr(broker, "connect", away)
    monkeypatch.setattr(availability, "open_catalog", away)
    assert command.main(["status", "db.t1"]) == 2
    assert "did not answer" in capsys.readouterr().err
    assert command.main(["status"]) == 2
    assert "names none." not in capsys.readouterr().out
