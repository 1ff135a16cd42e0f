"""The report is one self-contained HTML file, and hostile text stays text."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from sluice.contract.contract import Contract
from sluice.errors import NameCollisionError
from sluice.evolve import evolve
from sluice.iceberg import table_names, tables
from sluice.ingest.outcome import Outcome
from sluice.ledger import quality_table
from sluice.odcs.standard_file import read_standard
from sluice.pages import report

pytestmark = pytest.mark.unit

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)></style>"
NOW = datetime(2026, 11, 22, 6, 0, tzinfo=UTC)


class Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def read(address: str) -> Seen:
    seen = Seen()
    seen.feed(Path(address.removeprefix("file://")).read_text(encoding="utf-8"))
    return seen


def test_a_report_holds_all_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(report.FOLDER_VARIABLE, raising=False)
    assert not report.is_enabled()
    monkeypatch.setenv(report.FOLDER_VARIABLE, f"file://{tmp_path}/reports/")
    assert report.is_enabled()
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/warehouse")
    body: dict[str, Any] = {"table": "db.t", "topic": "t", "group": "g", "owner": HOSTILE}
    body |= {"columns": [{"name": "id", "type": "long"}]}
    body |= {"expectations": [{"type": "expect_column_values_to_not_be_null", "column": "id"}]}
    contract = Contract.model_validate(body)
    tables.ensure_typed(catalog, contract)
    for seq, fail in ((2, 0), (3, 4)):  # what is told is the newest
        name = "expect_column_values_to_not_be_null"
        judged = quality_table.ExpectationResult("db.t", "t", seq, name, "id", "warn", not fail, 10, fail)
        quality_table.write_results(catalog, [judged], run_id=HOSTILE)
    outcome = Outcome("db.t", "published", {"t": [3]}, {"t": ['{"0":[5,15]}']}, {}, 77, 10, 0, error=HOSTILE)
    told = asdict(outcome) | {"red": False, "warnings": [HOSTILE]}

    address = report.write_report(catalog, contract, told, run_id=HOSTILE, now=NOW)
    assert address.startswith(f"file://{tmp_path}/reports/db_t_") and address.endswith(".html")
    seen = read(address)
    assert not seen.tags & {"script", "img", "link", "iframe"}
    assert not seen.attributes & {"src", "onerror", "onclick"}
    # Its links are those back to the pages, relative to its own address.
    links = re.findall(r'href="([^"]*)"', Path(address.removeprefix("file://")).read_text(encoding="utf-8"))
    assert links[0] == "../db.t" and [each.partition("?")[0] for each in links[1:]] == ["../../quality"]
    words = " ".join(seen.text.split())
    for part in ('{"0":[5,15]}', "4 of 10 rows fail", "77", "alert(1)", "2026-11-22 06:00:00 UTC"):
        assert part in words, part
    assert "Records in quarantine" not in words
    # Run again, it is the same file; of a table that was refused there is one, too.
    assert report.write_report(catalog, contract, told, run_id=HOSTILE, now=NOW) == address
    refused = asdict(Outcome("db.t", "blocked", error="too many", quarantined=560)) | {"red": True}
    other = report.write_report(catalog, contract, refused, run_id="manual__2026-11-22T06:00:00+00:00", now=NOW)
    assert other != address and "too many" in read(other).text
    assert "Records in published batches 0 Quarantined 560" in " ".join(read(other).text.split())
    assert len(list(tmp_path.glob("reports/*/*.html"))) == 2
    # The pages find it by the table and the run, and nothing else that lies about.
    for name, value in {"TYPE": "sql", "URI": f"sqlite:///{tmp_path}/c.db"}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    assert report.read_report(json.dumps(["db.t", HOSTILE])) == Path(address.removeprefix("file://")).read_text()
    (tmp_path / "secret.html").write_text("mine")
    for names in (
        ["db.t", "another"],
        ["db.u", HOSTILE],
        ["db.t", "../../secret"],
        ["..", "secret"],
        ["../..", "secret"],
    ):
        assert report.read_report(json.dumps(names)) == "", names
    monkeypatch.delenv(report.FOLDER_VARIABLE)
    assert report.read_report(json.dumps(["db.t", HOSTILE])) == ""


def test_the_active_contract_is_beside_the_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As an ODCS document, written again only where it differs, and not deleted with old reports."""
    monkeypatch.setenv(report.FOLDER_VARIABLE, f"file://{tmp_path}/reports")
    monkeypatch.setenv(report.RETENTION_VARIABLE, "1d")
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/warehouse")
    body: dict[str, Any] = {"table": "db.t", "topic": "t", "group": "g", "owner": HOSTILE, "doc": "Ours"}
    body |= {"columns": [{"name": "id", "type": "long", "doc": HOSTILE}], "freshness": "15m"}
    contract = Contract.model_validate(body)
    outcome = asdict(Outcome("db.t", "published", {"t": [3]})) | {"red": False, "warnings": []}

    def run(file: Contract) -> Path:
        assert report.write_reports(catalog, [file], {"db.t": outcome}, run_id="r")
        return next(tmp_path.glob("reports/*/r.html")).with_name(report.CONTRACT_FILE)

    assert not run(contract).exists()  # there is no table
    tables.ensure_typed(catalog, contract)
    path = run(contract)
    found = read_standard(path).contract
    (column,) = found.schema_[0].properties
    assert (found.id, found.version, found.team.name, column.description) == ("db.t", "1.0.0", HOSTILE, HOSTILE)
    (level,) = found.slaProperties
    assert (level.property, level.value, level.unit) == ("latency", 15, "minutes")
    long_ago = NOW.timestamp() - 400 * 86400
    os.utime(path, (long_ago, long_ago))
    wider = Contract.model_validate({**body, "columns": [*body["columns"], {"name": "n", "type": "int"}]})
    assert run(wider).stat().st_mtime == long_ago  # not applied yet, so nobody can rely on it
    evolve.apply_pending(catalog, wider, run_id="r")
    (standard,) = read_standard(run(wider)).contract.schema_
    assert [each.name for each in standard.properties] == ["id", "n"]
    assert read_standard(path).contract.version == "2.0.0" and path.stat().st_mtime != long_ago
    assert [p.value for p in standard.customProperties] == [{"topic": "t", "group": "g"}]
    monkeypatch.setattr(table_names, "safe_identifier", lambda _: path.parent.name)
    other = Contract.model_validate({**body, "table": "db.t2"})
    tables.ensure_typed(catalog, other)
    with pytest.raises(NameCollisionError, match="is the contract of another table"):
        report.write_contract(catalog, other)


def test_two_tables_or_runs_never_share_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the short hashes agree, or the storage ignores case."""
    monkeypatch.setenv(report.FOLDER_VARIABLE, f"file://{tmp_path}/reports")
    for name, value in {"TYPE": "sql", "URI": f"sqlite:///{tmp_path}/c.db"}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/warehouse")
    monkeypatch.setattr(table_names, "safe_identifier", lambda _: "the_same")
    columns = [{"name": "id", "type": "long"}]
    bodies = [{"table": t, "topic": "t", "group": "g", "owner": "o", "columns": columns} for t in ("db.t", "db.T")]
    mine, other = (Contract.model_validate(body) for body in bodies)
    outcome = asdict(Outcome("db.t", "published", {"t": [3]})) | {"red": False, "warnings": []}
    address = report.write_report(catalog, mine, outcome, run_id="r", now=NOW)
    text = Path(address.removeprefix("file://")).read_text()
    for contract, run in ((other, "r"), (mine, "R"), (other, "r in run r")):
        with pytest.raises(NameCollisionError, match=f"table {contract.table}, run {run}]"):
            report.write_report(catalog, contract, outcome, run_id=run)
        assert report.read_report(json.dumps([contract.table, run])) == ""
    assert report.read_report(json.dumps(["db.t", "r"])) == text
    assert report.write_reports(catalog, [other], {"db.T": outcome}, run_id="r") == {}
    assert "is the report of another table or run" in caplog.text
    # A file that no report was completely written to is replaced.
    Path(address.removeprefix("file://")).write_text("")
    assert report.write_report(catalog, other, outcome, run_id="r") == address


def test_reports_stay_as_long_as_they_are_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(report.FOLDER_VARIABLE, f"file://{tmp_path}/reports")
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/warehouse")
    columns = [{"name": "id", "type": "long"}]
    bodies = [{"table": t, "topic": "t", "group": "g", "owner": "o", "columns": columns} for t in ("db.t", "db.quiet")]
    here = [Contract.model_validate(body) for body in bodies]
    published = asdict(Outcome("db.t", "published", {"t": [3]})) | {"red": False, "warnings": []}
    outcomes = {"db.t": published, "db.quiet": published | {"batches": {}}}

    def there() -> set[str]:
        return {file.name for file in tmp_path.glob("reports/*/*")}

    def run(name: str) -> dict[str, str]:
        return report.write_reports(catalog, here, outcomes, run_id=name)

    # Without a retention they stay for ever; those of other tables, and what is no report, always.
    assert set(run("first")) == {"db.t"}
    (folder,) = tmp_path.glob("reports/*")
    others = [
        folder / "notes.txt",
        tmp_path / "reports" / "other.html",
        tmp_path / "reports" / "db_other" / "first.html",
    ]
    others[-1].parent.mkdir()
    for file in others:
        file.write_text("mine")
    for file in (*others, folder / "first.html"):
        os.utime(file, (NOW.timestamp(), NOW.timestamp() - 400 * 86400))
    run("second")
    assert there() >= {"first.html", "second.html"}
    monkeypatch.setenv(report.RETENTION_VARIABLE, "500d")
    run("third")
    assert (folder / "first.html").exists()
    monkeypatch.setenv(report.RETENTION_VARIABLE, "300d")
    run("fourth")
    assert {file.name for file in folder.iterdir()} == {"second.html", "third.html", "fourth.html", "notes.txt"}
    assert all(file.exists() for file in others)
    # A setting that is no duration deletes nothing, keeps no report from being written, and is told.
    for wrong in ("soon", "-1d", "0d"):
        monkeypatch.setenv(report.RETENTION_VARIABLE, wrong)
        caplog.clear()
        assert set(run(f"fifth {wrong}")) == {"db.t"}
        assert report.RETENTION_VARIABLE in caplog.text and "90d" in caplog.text
    assert (folder / "second.html").exists()
