"""The readings behind the pages, from real tables in a local catalog."""

from __future__ import annotations

import gc
import html
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from sluice import timeouts
from sluice.contract import folder as contract_folder
from sluice.contract.contract import Contract
from sluice.errors import CatalogUnavailableError
from sluice.evolve import evolve
from sluice.evolve.pending_change import ReviewDecision
from sluice.iceberg import availability, table_names, tables
from sluice.iceberg import catalog as catalogs
from sluice.iceberg.active_contract import CONTRACT_PROPERTY
from sluice.kafka import login
from sluice.ledger import maintenance_table, quality_table
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.pages import detail, history, render, report
from sluice.pages.feed import Reading
from sluice.pages.operations import Rights
from sluice.pages.quality import overview as quality_overview
from sluice.pages.quality import trends as trends_of
from sluice.pages.table_operations import TableOperations
from sluice.status import status, timeline, verdicts
from sluice.status.events import RANGES, Lane, group_by_lane
from sluice.status.model import TableStatus, TopicStatus
from tests.support.timelines import timeline_values

pytestmark = pytest.mark.unit

NAME = "db.t"
ID, AMOUNT = {"name": "id", "type": "long"}, {"name": "amount", "type": "int"}


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlCatalog]:
    settings = {
        "TYPE": "sql", "URI": f"sqlite:///{tmp_path}/catalog.db", "WAREHOUSE": f"file://{tmp_path}/warehouse",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    monkeypatch.setenv("SLUICE_CONTRACTS", str(tmp_path / "contracts"))
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr(detail, "KAFKA_TIMEOUT_S", 0.01)
    (tmp_path / "contracts").mkdir()
    made = SqlCatalog("lake", **{name.lower(): value for name, value in settings.items()})
    yield made
    made.close()


def says(tmp_path: Path, **fields: Any) -> Contract:
    """The contract's file, written anew."""
    about = {"table": NAME, "topic": "t", "group": "g", "owner": "me", "columns": [ID, AMOUNT]}
    (tmp_path / "contracts" / "t.yaml").write_text(json.dumps(about | fields))
    return contract_folder.load_contracts().table(NAME)


def made(catalog: SqlCatalog, contract: Contract) -> Any:
    table = tables.ensure_typed(catalog, contract)
    evolve.record_created_tables(catalog, [contract], run_id="r")
    return table


def page(found: detail.TableDetail, **changes: Any) -> str:
    table = TableStatus(NAME, "g", "append", "me", **{"exists": True, "topics": [TopicStatus("t")], **changes})
    return render.render_page(
        "table.html", base="/sluice", airflow="", refresh=30, reading=False, unread=False, read_at=None, here="tables",
        errors=[], readiness=found.readiness, past=Reading(), hours=24,
        ranges=RANGES, max_groups=9, max_gaps=9, table=table, detail=found,
        verdicts=list(verdicts.list_verdicts(table)), reports=False, readable=(), review=None, runs=(), charts=None,
        gone_runs=(),
        operations=TableOperations(table, Rights()),
    )  # fmt: skip


def quality_page(*shown: quality_overview.TableQuality) -> str:
    return render.render_page(
        "quality.html", base="", airflow="", refresh=30, reading=False, unread=False, read_at=None, here="quality",
        errors=[], shown=shown, collapsed=[], total=1, q="", state="", states=[], run_id=None, run_filter={},
        reports=False,
        details={}, operations={},
    )  # fmt: skip


def test_the_contract_that_is_shown_is_the_one_in_force(catalog: SqlCatalog, tmp_path: Path) -> None:
    assert "Contract file (non-default settings)" in page(detail.read_detail(NAME), exists=False)
    keyed = {"mode": "upsert", "identifier": ["id"], "deletes": "ignore"}
    first = says(tmp_path, columns=[ID, AMOUNT], **keyed)
    made(catalog, first)
    same = detail.read_detail(NAME)
    assert (same.version, same.difference) == (1, "") and "name: amount" in same.contract
    assert "Active contract, version 1 (non-default settings)" in page(same)
    # The file drops a column: by default that waits for an answer.
    file = says(tmp_path, columns=[ID], freshness="15m", **keyed)
    assert evolve.apply_pending(catalog, file, run_id="r").review == "open"
    found = detail.read_detail(NAME)
    assert "name: amount" in found.contract and "freshness: 900s" in found.contract  # how it is run is the file's
    assert found.difference == "The contract file differs from the active contract and waits for approval."
    (change,) = found.changes
    assert "amount" in change and f"<li>{html.escape(change)}</li>" in page(found)
    evolve.decide(catalog, file, ReviewDecision(approve=False, who="ann", why="no", run_id="r"))
    assert ", and the change was rejected by " in detail.read_detail(NAME).difference
    # What is to come at once, what is ignored, what is refused.
    more = [ID, AMOUNT, {"name": "x", "type": "date"}]
    says(tmp_path, columns=more, **keyed)
    assert "takes effect with the next run." in detail.read_detail(NAME).difference
    says(tmp_path, columns=more, schema_policy={"add_column": "ignore"}, **keyed)
    assert detail.read_detail(NAME).difference.startswith("schema_policy ignores these differences: ")
    says(tmp_path, columns=more, schema_policy={"add_column": "refuse"}, **keyed)
    assert "The contract refuses this change" in detail.read_detail(NAME).difference
    # The scorecard is that of what is in force, not of a file that nobody has approved.
    says(tmp_path)
    keys = [line.evidence for line in detail.read_detail(NAME).readiness if line.subject == "Key"]
    assert keys == ["one row per id"]


def test_columns_that_a_schema_gave_are_shown(catalog: SqlCatalog, tmp_path: Path) -> None:
    made(catalog, says(tmp_path, value={"format": "avro"}))
    says(tmp_path, columns="auto", value={"format": "avro"})
    found = detail.read_detail(NAME)
    assert "name: amount" in found.contract and "auto" not in found.contract
    told = page(found, schema="The registry is away. The table goes on with version 1 of its contract")
    assert "with the columns of the newest schema" in told and "goes on with version 1 of its contract.<" in told


def test_a_mask_that_only_the_file_or_only_the_table_has_offers_no_replay_from_quarantine(
    catalog: SqlCatalog, tmp_path: Path
) -> None:
    masked = [ID, {"name": "mail", "type": "string", "mask": "sha256"}]
    plain = [ID, {"name": "mail", "type": "string"}]
    made(catalog, says(tmp_path, columns=masked))
    says(tmp_path, columns=plain, schema_policy={"change_mask": "review"})
    assert not detail.read_detail(NAME).keeps_raw
    says(tmp_path, columns=masked)
    assert not detail.read_detail(NAME).keeps_raw


def test_a_contract_in_force_that_cannot_be_read_is_said_to_be_so(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = made(catalog, says(tmp_path))
    with table.transaction() as transaction:
        transaction.set_properties({CONTRACT_PROPERTY: "no JSON"})
    found = detail.read_detail(NAME)
    assert "cannot be parsed" in found.missing["contract"] and "name: amount" in found.contract
    assert "The active contract cannot be read" in page(found)


def test_an_expectation_that_the_contract_has_no_more_is_history_and_not_red(
    catalog: SqlCatalog, tmp_path: Path
) -> None:
    expected = {"type": "expect_column_values_to_not_be_null", "column": "amount", "severity": "block"}
    made(catalog, says(tmp_path, expectations=[expected]))
    result = quality_table.ExpectationResult(
        NAME, "t", 1, expected["type"], "amount", "block", False, 10, 10, parameters="{}"
    )
    quality_table.write_results(catalog, [result], run_id="r")

    def shown() -> tuple[list[tuple[str, bool]], quality_overview.TableQuality, str]:
        found = trends_of.read_all_trends()
        alone = detail.read_detail(NAME)
        assert [(t.severity, t.judged) for t in alone.trends] == [(t.severity, t.judged) for t in found[NAME]]
        every = quality_overview.summarize_tables(found, [NAME], slices=False)
        (whole,), _ = quality_overview.split_expanded(every, found, "", slices=False)
        return [(t.severity, t.judged) for t in whole.trends], whole, quality_page(whole)

    trends, whole, told = shown()
    assert trends == [("block", True)] and (whole.failed, whole.state) == (1, quality_overview.FAILED)
    assert "1 failed</span>" in told and "amount is never null" in told
    assert '<span class="badge bad">failed</span> 100 % fail, none may' in told
    # Repaired by another severity: until a batch comes nothing that the contract has was judged.
    says(tmp_path, expectations=[{**expected, "severity": "warn"}])
    trends, whole, told = shown()
    assert trends == [("block", False)] and (whole.failed, whole.state) == (0, quality_overview.REMOVED)
    assert "badge bad" not in told and ">removed</span>" in told and 'class="results removed"' in told
    quality_table.write_results(
        catalog, [replace(result, batch_seq=2, severity="warn", success=True, unexpected=0)], run_id="r"
    )
    trends, whole, told = shown()
    assert trends == [("warn", True), ("block", False)] and (whole.expectations, whole.state) == (
        1,
        quality_overview.PASSED,
    )
    assert "1 failed</span>" not in told and told.count('class="results removed"') == 1
    # What a run judged stays what it was.
    assert [t.judged for t in trends_of.read_run_trends("r")[NAME]] == [True, True]


def test_one_expectation_or_topic_does_not_hide_another(catalog: SqlCatalog, tmp_path: Path) -> None:
    kind = "expect_column_values_to_match_regex"
    expected = [{"type": kind, "column": "amount", "regex": regex} for regex in ("^<a>", "z$")]
    says(tmp_path, topic=["t", "u"], columns=[ID, {"name": "amount", "type": "string"}], expectations=expected)
    contract = contract_folder.load_contracts(strict=False).table(NAME)
    first, second = (each.parameters for each in contract.expectations)
    kept = [(first, "t", False), (second, "t", True), (first, "u", True), (second, "u", True)]
    for parameters, topic, held in kept:
        result = quality_table.ExpectationResult(
            NAME, topic, 1, kind, "amount", "warn", held, 9, int(not held), parameters=parameters
        )
        quality_table.write_results(
            catalog, [*quality_table.read_run_results(catalog, NAME, topic), result], run_id=topic
        )
    found = trends_of.read_all_trends()
    assert sorted((t.parameters, t.topic, t.last.success) for t in found[NAME]) == sorted(kept)
    assert all(t.judged for t in found[NAME])
    (whole,) = quality_overview.summarize_tables(found, [NAME], slices=False)
    assert (whole.expectations, whole.failed, whole.state) == (2, 1, quality_overview.FAILED)
    told = quality_page(*quality_overview.split_expanded([whole], found, "", slices=False)[0])
    # A matrix for each topic, with both expectations.
    assert re.findall('<h3>(.)</h3>|>amount matches (.*?)</th>', told) == [
        ("t", ""), ("", "^&lt;a&gt;"), ("", "z$"), ("u", ""), ("", "^&lt;a&gt;"), ("", "z$"),
    ]  # fmt: skip
    # By other parameters it is another one, and of the old one nobody is to be told that it fails.
    says(tmp_path, topic=["t", "u"], columns=[ID, {"name": "amount", "type": "string"}], expectations=expected[1:])
    found = trends_of.read_all_trends()
    assert {t.parameters: t.judged for t in found[NAME]} == {first: False, second: True}
    assert quality_overview.summarize_tables(found, [NAME], slices=False)[0].failed == 0


def lose(catalog: SqlCatalog, name: Any) -> None:
    """Take a table's metadata file away."""
    Path(catalog.load_table(name).metadata_location.removeprefix("file://")).unlink()


def lived_in(catalog: SqlCatalog, contract: Contract) -> None:
    """Something in each part of the table's page."""
    made(catalog, contract)
    tables.ensure_quarantine(catalog, contract)
    Ledger(catalog).append([LedgerRow("t", LedgerState.FAILED, "i", 5, table=NAME, error="boom")], run_id="r")
    quality_table.write_results(
        catalog, [quality_table.ExpectationResult(NAME, "t", 1, "expect_a", "id", "warn", True, 10)], run_id="r"
    )
    maintenance_table.write_results(
        catalog, [maintenance_table.ActionResult(NAME, "expire_snapshots", "done", reason="3 are old")], run_id="r"
    )


def test_what_is_damaged_takes_its_own_part_of_the_page_alone(catalog: SqlCatalog, tmp_path: Path) -> None:
    contract = says(tmp_path)
    lived_in(catalog, contract)
    whole = detail.read_detail(NAME)
    assert not whole.missing and whole.trends and whole.effects and whole.versions and whole.readiness
    lose(catalog, table_names.quarantine(contract))
    found = detail.read_detail(NAME)
    assert list(found.missing) == ["quarantine"] and found.contract == whole.contract
    assert (found.trends, found.effects, found.versions) == (whole.trends, whole.effects, whole.versions)
    told = page(found)
    assert "No record is quarantined" not in told and told.count("This could not be read: The metadata of ") == 1
    for name, part, calm in (
        (table_names.QUALITY, "expectations", "none was judged"),
        (table_names.SCHEMAS, "versions", "None is kept yet"),
        (NAME, "readiness", "Nothing was written yet"),
    ):
        lose(catalog, name)
        found = detail.read_detail(NAME)
        assert part in found.missing and calm not in page(found), name
    assert {"table", "contract", "readiness"} < set(found.missing) and found.effects == whole.effects
    assert "No batch was published yet" not in page(found)


def test_data_that_is_gone_is_not_the_catalog_being_away(catalog: SqlCatalog, tmp_path: Path) -> None:
    lived_in(catalog, says(tmp_path))
    for path in catalog.load_table(table_names.QUALITY).inspect.files()["file_path"].to_pylist():
        Path(path.removeprefix("file://")).unlink()
    found, past = detail.read_detail(NAME), history.read_history(NAME)
    assert list(found.missing) == ["expectations"] and found.effects
    for told in (found.missing["expectations"], *past.unread):
        assert told.startswith("A file is missing: ") and ".parquet" in told
    assert len(past.unread) == 1 and len(past.events) == 3


def timeline_page(found: history.History) -> str:
    return render.render_page(
        "timeline.html", base="", airflow="", refresh=30, reading=False, unread=False, read_at=None, here="timeline",
        errors=[], ledger=True, missing=found.unread, groups={NAME: "g", "t": "g"}, too_many=False,
        error=found.trouble, target=None, readable=(), charts=None, **timeline_values(found, NAME),
    )  # fmt: skip


def test_the_timeline_of_a_damaged_table_tells_what_happened_to_it(catalog: SqlCatalog, tmp_path: Path) -> None:
    contract = says(tmp_path)
    lived_in(catalog, contract)
    before = history.read_history(NAME)
    assert (before.trouble, before.unread) == (None, ())
    lose(catalog, NAME)
    found = history.read_history(NAME)
    assert found.events == before.events and len(found.events) == 4
    told = timeline_page(found)
    assert "boom" in told and "The ledger could not be read" not in told
    assert (
        found.trouble is not None
        and "The metadata of db.t is gone" in found.trouble
        and found.trouble in html.unescape(told)
    )
    # What tells of one lane keeps the others from nothing, and is named; so is the ledger itself.
    lose(catalog, table_names.QUALITY)
    lose(catalog, table_names.LEDGER)
    for found in (history.read_history(NAME), history.read_group_history('["g"]')):
        assert {str(e.lane) for e in found.events} == {"schema", "maintenance"}
        assert len(found.unread) == 2 and found.ledger_rows == 0
        assert timeline_page(found).count("Some events are missing: The metadata of sluice.") == 2
    assert history.merge_histories(found, None).unread == found.unread  # type: ignore[union-attr]


def test_each_lane_is_cut_by_itself_and_says_so(catalog: SqlCatalog, tmp_path: Path, monkeypatch: Any) -> None:
    contract = says(tmp_path)
    now, most = datetime.now(UTC), 20
    monkeypatch.setattr(timeline, "MAX_EVENTS", most)
    rows = []
    for k in range(1, 29):  # staged more often than published: the two lanes took each other's places
        at = now - timedelta(hours=1) + timedelta(minutes=k)
        rows += [LedgerRow("t", LedgerState.STAGED, "i", seq, records=1, oldest=at, at=at) for seq in (k, 100 + k)]
        rows += [LedgerRow("t", LedgerState.PUBLISHED, "i", k, table=NAME, records=1, at=at + timedelta(seconds=5))]
    Ledger(catalog).append(rows, run_id="r")
    assert contract.table == NAME
    for found in (history.read_history(NAME), history.read_group_history('["g"]')):
        by_lane = dict(group_by_lane(found.events))
        assert [len(by_lane[lane]) for lane in (Lane.STAGED, Lane.PUBLISHED)] == [most, most]
        window = history.select_hours(found, 24, found.events)
        assert window.cut == [Lane.STAGED, Lane.PUBLISHED]
        assert {e.delay for e in by_lane[Lane.PUBLISHED]} == {5.0}  # told by staged rows that are cut off themselves
        assert history.select_hours(history.History(now, by_lane[Lane.PUBLISHED][:-1]), 24, ()).cut == []


def test_thirty_days_are_read_whole_for_a_table_and_counted_for_many(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: Any
) -> None:
    says(tmp_path)
    now, most = datetime.now(UTC), 5
    monkeypatch.setattr(timeline, "MAX_EVENTS", most)
    monkeypatch.setattr(timeline, "MAX_ROWS_KEPT", 10)  # fewer than there are
    for age in (40, 20, 9, 0):  # days; a commit each, and so a file
        at = now - timedelta(days=age, minutes=1)
        rows = [
            LedgerRow("t", LedgerState.PUBLISHED, "i", 100 - age + n, table=NAME, records=1, at=at) for n in range(4)
        ]
        rows += [LedgerRow("t", LedgerState.STAGED, "i", 100 - age + n, oldest=at, at=at) for n in range(4)]
        other = LedgerRow("u", LedgerState.PUBLISHED, "i", age, table="db.other", at=at)
        Ledger(catalog).append(
            [*rows, other, LedgerRow("t", LedgerState.BLOCKED, "i", age, table=NAME, at=at)], run_id="r"
        )
    week, month, groups = history.read_history(NAME), history.read_month(NAME), history.read_group_month('["g"]')
    assert {*week.counts.bars} == {1, 6, 24, 168} and {*month.counts.bars} == {*groups.counts.cells} == {720}
    assert [len(each.bars) for each in week.counts.bars.values()] == [4] * 4
    assert len(month.counts.bars[720].bars) == 12 and not groups.counts.bars
    whole = {(Lane.PUBLISHED, NAME): 12, (Lane.STAGED, "t"): 12}
    for found in (month, groups):
        assert {key: sum(numbers) for key, numbers in found.counts.cells[720].counts.items()} == whole
        lanes = {lane: len(each) for lane, each in group_by_lane(found.events)}
        assert lanes == {Lane.STAGED: most, Lane.PUBLISHED: most, Lane.REFUSED: 3}
    assert sum(groups.counts.cells[720].counts[Lane.PUBLISHED, NAME][-1:]) == 4
    assert [e.at for e in groups.events] == [e.at for e in month.events]


def test_what_is_read_again_and_again_leaves_no_connection_of_the_catalog(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading left one until Python's collector came by, and what is kept of each table's past one for good."""
    contract = says(tmp_path)
    lived_in(catalog, contract)
    monkeypatch.setenv("SLUICE_REPORTS", f"file://{tmp_path}/reports")
    opened, load = list[Any](), catalogs.load
    monkeypatch.setattr(catalogs, "load", lambda: opened.append(load()) or opened[-1])
    past = history.read_history(NAME)
    history.read_group_history('["g"]')
    detail.read_detail(NAME)
    trends_of.read_all_trends()
    trends_of.read_run_trends("r")
    report.read_report(json.dumps([NAME, "r"]))
    kafka = {"patience": 60, "kafka": {"security.protocol": "none of its own"}}
    status.read_status(contract_folder.load_contracts(), **kafka)
    lose(catalog, table_names.LEDGER)
    assert (
        history.read_history(NAME).unread
        and len(status.read_status(contract_folder.load_contracts(), **kafka).unavailable) == 2
    )
    monkeypatch.setattr(SqlCatalog, "list_namespaces", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        status.read_status(contract_folder.load_contracts(), **kafka)
    monkeypatch.setattr(SqlCatalog, "list_namespaces", lambda _: time.sleep(0.3))
    with pytest.raises(CatalogUnavailableError):  # what comes after nobody waits for it is closed as well
        availability.open_catalog(0.1)
    while any(thread.is_alive() for thread, _ in timeouts._unanswered):
        time.sleep(0.005)
    assert len(opened) == 11
    assert [each.engine.pool.checkedin() + each.engine.pool.checkedout() for each in opened] == [0] * len(opened)
    assert past.table is not None and past.table.catalog not in opened  # which is kept as long as the table is
    assert timeline.find_table_as_of(past.table, datetime.now(UTC)) is None


def test_while_kafka_is_away_no_reading_leaves_a_client_with_its_threads(catalog: SqlCatalog, tmp_path: Path) -> None:
    contract = says(tmp_path)
    lived_in(catalog, contract)
    lose(catalog, table_names.SCHEMAS)
    gc.collect()
    before, kept = len(login._login_errors), []
    gc.disable()
    try:
        for _ in range(2):
            kept.append(status.read_status(contract_folder.load_contracts(), patience=0.2))
            detail.read_detail(NAME)
        assert len(login._login_errors) == before
    finally:
        gc.enable()
    assert all("Kafka at 127.0.0.1:1 did not answer within 0.2 s" in str(each.unavailable[0]) for each in kept)
