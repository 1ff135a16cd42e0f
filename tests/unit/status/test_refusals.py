"""Rejected and quarantined records of a table's topics, in its status, from a real ledger and table."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.batch import PUBLISHED_THROUGH, PublishedOffsets, encode_published_through
from sluice.contract import folder as contract_folder
from sluice.contract.groups import AlertSettings
from sluice.iceberg import catalog as catalogs
from sluice.iceberg import tables
from sluice.kafka import broker
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.status import status, verdicts
from sluice.status.incidents import compare_incidents, find_incidents
from sluice.status.model import Status, TableStatus

pytestmark = pytest.mark.unit

AT = datetime.now(UTC) - timedelta(hours=2)
CONTRACT = "table: db.t\ntopic: [a, b]\ngroup: g\nowner: me\ncolumns: [{name: id, type: long}]\n"


class Site:
    """A table of two topics."""

    def __init__(self, folder: Path) -> None:
        (folder / "t.yaml").write_text(CONTRACT)
        self.contracts = contract_folder.load_contracts(folder)
        self.catalog = catalogs.load()
        self.ledger = Ledger(self.catalog)
        self.table = tables.ensure_typed(self.catalog, self.contracts.table("db.t"))
        self.minutes = 0

    def publish(self, **through: int) -> None:
        """Let the table hold each topic up to a batch."""
        self.table.refresh()
        value = encode_published_through({t: PublishedOffsets(seq, "id", {0: seq}) for t, seq in through.items()})
        rows = pa.Table.from_pylist([], schema=self.table.schema().as_arrow())
        self.table.append(rows, snapshot_properties={PUBLISHED_THROUGH: value})

    def refuse(self, run_id: str, *what: tuple[str, int, LedgerState]) -> None:
        """Write what one run was refused, in this order."""
        self.minutes += 1
        rows = [
            LedgerRow(
                topic,
                state,
                "id",
                seq,
                table="db.t",
                error=f"{topic} {seq}",
                at=AT + timedelta(minutes=self.minutes, seconds=n),
            )
            for n, (topic, seq, state) in enumerate(what)
        ]
        self.ledger.append(rows, run_id=run_id)

    def look(self) -> TableStatus:
        """What is told while Kafka is away."""
        return status.read_status(self.contracts, kafka={}).tables[0]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    (tmp_path / "contracts").mkdir()
    monkeypatch.delenv("SLUICE_KAFKA_CONFIG", raising=False)
    for name, value in {"TYPE": "sql", "URI": f"sqlite:///{tmp_path}/c.db", "WAREHOUSE": f"file://{tmp_path}"}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    return Site(tmp_path / "contracts")


def test_runs_are_counted_topic_by_topic(site: Site) -> None:
    for n in range(6):
        site.refuse(f"run{n}", ("a", 5, LedgerState.FAILED), ("b", 7, LedgerState.FAILED))
    found = site.look()
    assert [(e.topic, e.runs, e.open) for e in found.open_errors] == [("b", 6, True), ("a", 6, True)]
    told = find_incidents(Status(AT, [found]), AlertSettings(failed_runs=6), "")
    assert [each.why for each in told] == ["b 7", "a 5"]
    assert find_incidents(Status(AT, [found]), AlertSettings(failed_runs=7), "") == []


def test_what_lands_of_one_topic_cures_no_other(site: Site) -> None:
    site.publish(a=4, b=6)
    site.refuse("run", ("b", 7, LedgerState.BLOCKED), ("a", 5, LedgerState.FAILED))
    both = site.look()
    assert [(v.word, v.why) for v in verdicts.list_verdicts(both)][:2] == [("blocked", "b 7"), ("failed", "a 5")]
    site.publish(a=5, b=6)
    one = site.look()
    assert one.last_error and (one.last_error.topic, one.last_error.open, one.further_errors) == ("b", True, [])
    site.publish(a=5, b=7)
    none = site.look()
    assert none.last_error and (none.last_error.topic, none.last_error.open, none.open_errors) == ("a", False, [])


def test_of_a_run_that_is_refused_several_batches_the_first_that_waits_is_told(site: Site) -> None:
    site.publish(a=4)
    for n in range(3):  # a commit of several, then the first of them alone, and one more that can't be staged
        several = [("a", 8 + n, LedgerState.FAILED), ("a", 5, LedgerState.BLOCKED), ("a", 20 + n, LedgerState.FAILED)]
        site.refuse(f"run{n}", *several)
    (found,) = site.look().open_errors
    assert (found.batch, found.state, found.runs) == (5, "blocked", 3)
    site.publish(a=9)
    (later,) = site.look().open_errors
    assert (later.batch, later.runs) == (10, 1)


def test_who_decided_to_publish_a_blocked_batch_is_shown_until_it_is_refused_again(site: Site) -> None:
    site.refuse("run1", ("a", 5, LedgerState.BLOCKED), ("b", 5, LedgerState.BLOCKED))
    decided = LedgerRow("a", LedgerState.TOLERATED, "id", 5, table="db.t", who="ann", why="x", at=datetime.now(UTC))
    elsewhere = [replace(decided, table="db.u", topic="b"), replace(decided, topic="b", topic_id="created again")]
    site.ledger.append([replace(decided, at=AT + timedelta(minutes=2)), *elsewhere], run_id="decision")
    assert {e.topic: (e.state, e.decided_by) for e in site.look().open_errors} == {
        "a": ("blocked", "ann"), "b": ("blocked", None),
    }  # fmt: skip
    told = [(v.word, v.decided) for v in verdicts.list_verdicts(site.look())]
    assert sorted(told[:2]) == [("blocked", False), ("blocked", True)]
    site.minutes = 5
    site.refuse("run2", ("a", 5, LedgerState.BLOCKED))
    assert {e.topic: e.decided_by for e in site.look().open_errors} == {"a": None, "b": None}


def test_where_no_contract_can_be_read_that_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = site.contracts.folder
    site.refuse("run", ("a", 1, LedgerState.FAILED))
    known = find_incidents(Status(AT, [site.look()]), AlertSettings(), "")
    (folder / "groups.yaml").write_text("defaults: {retrys: 3}\nalerts: {}\n")
    broken = contract_folder.load_contracts(folder, strict=False)
    assert not broken.tables and broken.common.alerts
    monkeypatch.setattr(broker, "connect", lambda *_: object())  # it answered, and is asked for nothing more
    found = status.read_status(broken)
    (told,) = find_incidents(found, AlertSettings(), "")
    assert told.title == "Sluice: broken contract groups.yaml"
    assert "groups.yaml:1: defaults.retrys: unknown field" in told.why and "these groups" in told.why
    assert compare_incidents([told], known, found) == (
        [told],
        known,
        [],
    )  # what was told before is neither over nor news


def test_a_batch_that_was_rolled_back_and_published_again_counts_once(site: Site) -> None:
    done = [("a", 1, 10, 4), ("a", 2, 10, 0), ("b", 1, 7, 1), ("a", 1, 10, 3)]
    for n, (topic, seq, records, rejected) in enumerate(done):
        at = AT + timedelta(seconds=n)
        row = LedgerRow(
            topic, LedgerState.PUBLISHED, "id", seq, table="db.t", records=records, rejected=rejected, at=at
        )
        site.ledger.append([row], run_id=f"run{n}")
    found = site.look()
    assert (found.day_records, found.day_rejected) == (27, 4)


def test_of_what_the_last_day_set_apart_it_is_told_what_is_not_replayed_yet(site: Site) -> None:
    held = tables.ensure_quarantine(site.catalog, site.contracts.table("db.t"))

    def apart(topic: str, seq: int, *offsets: int) -> None:
        about = {"_kafka_topic": topic, "_kafka_partition": 0, "error_class": "malformed"}
        times = {"_kafka_timestamp": AT, "quarantined_at": AT}
        rows = [{**about, **times, "batch_seq": seq, "_kafka_offset": n} for n in offsets]
        held.append(pa.Table.from_pylist(rows, schema=held.schema().as_arrow()))

    apart("a", 1, *range(50))  # of days ago, as are the batches of the other topic that bear the same numbers
    apart("b", 2, *range(40))
    apart("a", -1, *range(100, 130))  # a backfill's
    for seq in (2, 3, 4):
        rejected = 10 if seq < 4 else 0
        row = LedgerRow("a", LedgerState.PUBLISHED, "id", seq, table="db.t", records=100, rejected=rejected, at=AT)
        site.ledger.append([row], run_id=f"run{seq}")
    apart("a", 2, *range(50, 60))
    apart("a", 3, *range(60, 70))
    found = site.look()
    assert (found.day_records, found.day_rejected, found.day_apart, found.quarantined) == (300, 20, 20, 140)
    assert [each.title for each in find_incidents(Status(AT, [found]), AlertSettings(), "")] == [
        "db.t quarantines too many records"
    ]
    held.delete("batch_seq = 3")
    held.delete("batch_seq = 2 and _kafka_topic = 'a' and _kafka_offset < 58")  # replayed, all but two
    assert site.look().day_apart == 2
    held.delete("batch_seq = 2 and _kafka_topic = 'a'")
    over = site.look()
    assert (over.day_rejected, over.day_apart, over.quarantined) == (20, 0, 120)
    assert find_incidents(Status(AT, [over]), AlertSettings(), "") == []


def test_nothing_waits_for_a_topic_that_is_no_longer_read(site: Site) -> None:
    site.refuse("run", ("c", 1, LedgerState.BLOCKED))
    assert site.look().last_error is None
