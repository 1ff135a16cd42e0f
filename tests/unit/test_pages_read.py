"""What the pages read, against real tables in a catalog of their own."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from sluice import contracts, evolve, quality, tables, verdicts
from sluice.contract import Contract
from sluice.evolve_force import CONTRACT
from sluice.pages import detail, judged, render
from sluice.status_model import TableStatus, TopicStatus

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
    monkeypatch.setattr(detail, "KAFKA_PATIENCE_S", 0.01)
    (tmp_path / "contracts").mkdir()
    made = SqlCatalog("lake", **{name.lower(): value for name, value in settings.items()})
    yield made
    made.close()


def says(tmp_path: Path, **fields: Any) -> Contract:
    """The contract's file, written anew."""
    about = {"table": NAME, "topic": "t", "group": "g", "owner": "me", "columns": [ID, AMOUNT]}
    (tmp_path / "contracts" / "t.yaml").write_text(json.dumps(about | fields))
    return contracts.load().table(NAME)


def made(catalog: SqlCatalog, contract: Contract) -> Any:
    table = tables.ensure_typed(catalog, contract)
    evolve.created(catalog, [contract], run_id="r")
    return table


def page(found: detail.Detail, **changes: Any) -> str:
    table = TableStatus(NAME, "g", "append", "me", **{"exists": True, "topics": [TopicStatus("t")], **changes})
    return render.page(
        "table.html", base="/sluice", airflow="", again=30, reading=False, unread=False, read_at=None, here="tables",
        troubles=[], readiness=found.readiness, window=None, kinds=9, gaps=9, table=table, detail=found,
        verdicts=list(verdicts.said(table)), reports=False,
    )  # fmt: skip


def test_the_contract_that_is_shown_is_the_one_in_force(catalog: SqlCatalog, tmp_path: Path) -> None:
    assert "As its file says," in page(detail.read(NAME), exists=False)
    keyed = {"mode": "upsert", "identifier": ["id"], "deletes": "ignore"}
    first = says(tmp_path, columns=[ID, AMOUNT], **keyed)
    made(catalog, first)
    same = detail.read(NAME)
    assert (same.version, same.differs) == (1, "") and "name: amount" in same.contract
    assert "As it is in force, version 1, without" in page(same)
    # The file drops a column: by default that waits for an answer.
    file = says(tmp_path, columns=[ID], freshness="15m", **keyed)
    assert evolve.settle(catalog, file, run_id="r").review == "open"
    found = detail.read(NAME)
    assert "name: amount" in found.contract and "freshness: 900s" in found.contract  # how it is run is the file's
    assert found.differs.startswith("The contract's file differs and waits for an answer: ")
    assert "amount" in found.differs and found.differs in html.unescape(page(found))
    evolve.decide(catalog, file, approve=False, who="ann", why="no", run_id="r")
    assert "differs, which was rejected: " in detail.read(NAME).differs
    # What is to come at once, what is ignored, what is refused.
    more = [ID, AMOUNT, {"name": "x", "type": "date"}]
    says(tmp_path, columns=more, **keyed)
    assert "comes into force with the next run: " in detail.read(NAME).differs
    says(tmp_path, columns=more, schema_policy={"add_column": "ignore"}, **keyed)
    assert detail.read(NAME).differs.startswith("What it says otherwise and schema_policy ignores: ")
    says(tmp_path, columns=more, schema_policy={"add_column": "refuse"}, **keyed)
    assert "The contract refuses this change" in detail.read(NAME).differs
    # The scorecard is that of what is in force, not of a file that nobody has approved.
    says(tmp_path)
    keys = [line.evidence for line in detail.read(NAME).readiness if line.subject == "Key"]
    assert keys == ["one row per id"]


def test_columns_that_a_schema_gave_are_shown(catalog: SqlCatalog, tmp_path: Path) -> None:
    made(catalog, says(tmp_path, value={"format": "avro"}))
    says(tmp_path, columns="auto", value={"format": "avro"})
    found = detail.read(NAME)
    assert "name: amount" in found.contract and "auto" not in found.contract
    told = page(found, schema="The registry is away. The table goes on with version 1 of its contract")
    assert "with the columns that the newest schema gave" in told and "goes on with version 1 of its contract.<" in told


def test_a_mask_that_only_the_file_or_only_the_table_has_offers_no_replay_from_quarantine(
    catalog: SqlCatalog, tmp_path: Path
) -> None:
    masked = [ID, {"name": "mail", "type": "string", "mask": "sha256"}]
    plain = [ID, {"name": "mail", "type": "string"}]
    made(catalog, says(tmp_path, columns=masked))
    says(tmp_path, columns=plain, schema_policy={"change_mask": "review"})
    assert not detail.read(NAME).keeps_raw
    says(tmp_path, columns=masked)
    assert not detail.read(NAME).keeps_raw


def test_a_contract_in_force_that_cannot_be_read_is_said_to_be_so(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = made(catalog, says(tmp_path))
    with table.transaction() as transaction:
        transaction.set_properties({CONTRACT: "no JSON"})
    found = detail.read(NAME)
    assert "can't be read" in found.unclear and "name: amount" in found.contract
    assert "Which contract is in force can't be told" in page(found)


def test_an_expectation_that_the_contract_has_no_more_is_history_and_not_red(
    catalog: SqlCatalog, tmp_path: Path
) -> None:
    expected = {"type": "expect_column_values_to_not_be_null", "column": "amount", "severity": "block"}
    made(catalog, says(tmp_path, expectations=[expected]))
    result = quality.Result(NAME, "t", 1, expected["type"], "amount", "block", False, 10, 10)
    quality.keep(catalog, [result], run_id="r")

    def shown() -> tuple[list[tuple[str, bool]], judged.Judged, str]:
        found = detail.trends_of_all()
        alone = detail.read(NAME)
        assert [(t.severity, t.judged) for t in alone.trends] == [(t.severity, t.judged) for t in found[NAME]]
        every = judged.of_all(found, [NAME], slices=False)
        (whole,), _ = judged.opened(every, found, "", slices=False)
        told = render.page(
            "quality.html", base="", airflow="", again=30, reading=False, unread=False, read_at=None, here="quality",
            troubles=[], shown=[whole], named=[], total=1, q="", state="", words=[], run_id=None, of={}, reports=False,
        )  # fmt: skip
        return [(t.severity, t.judged) for t in whole.trends], whole, told

    trends, whole, told = shown()
    assert trends == [("block", True)] and (whole.failed, whole.state) == (1, judged.FAILED)
    assert "1 failed</span>" in told and 'class="mark failed"' in told
    # Repaired by another severity: until a batch comes nothing that the contract has was judged.
    says(tmp_path, expectations=[{**expected, "severity": "warn"}])
    trends, whole, told = shown()
    assert trends == [("block", False)] and (whole.failed, whole.state) == (0, judged.PAST)
    assert "badge bad" not in told and "mark failed" not in told and ">no longer judged</span>" in told
    quality.keep(catalog, [replace(result, batch_seq=2, severity="warn", success=True, unexpected=0)], run_id="r")
    trends, whole, told = shown()
    assert trends == [("warn", True), ("block", False)] and (whole.expectations, whole.state) == (1, judged.HELD)
    assert "1 failed" not in told and "mark failed" not in told
    # What a run judged stays what it was.
    assert [t.judged for t in detail.trends_of_run("r")[NAME]] == [True, True]
