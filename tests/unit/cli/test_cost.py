"""`sluice cost`: tables, one table by day, and estimates, from rows of `sluice.costs`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from pyiceberg.catalog import Catalog

from sluice.cli import main
from sluice.usage.costs_table import Cost, write_costs

pytestmark = pytest.mark.unit


def hourly_rows(count: int) -> list[Cost]:
    """Runs of 10 s of CPU and 20 s a million records, one an hour, of 0.1 to 1 million records."""
    rows = []
    for n in range(count):
        at = datetime.now(UTC) - timedelta(hours=count - n)
        records = 100_000 * (1 + n % 10)
        common = (at, at - timedelta(minutes=1), f"run {n}", "sluice ingest g")
        rows.append(Cost(*common, "publish", "db.a", "t", 1, records, 5.0, 20 * records / 1e6, 0.0, files_added=3))
        rows.append(Cost(*common, "application", None, None, 1, None, 9.0, 10.0, 0.0, tables=1))
    return rows


@pytest.fixture
def prices(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A price file, and a contract whose table has two days of runs."""
    column = {"name": "id", "type": "string", "source": "$key"}
    body = {"table": "db.a", "topic": "t", "group": "g", "owner": "me", "mode": "append", "columns": [column]}
    folder = tmp_path / "contracts"
    folder.mkdir()
    (folder / "a.yaml").write_text(yaml.safe_dump(body))
    file = tmp_path / "prices.yaml"
    file.write_text("currency: EUR\nper_cpu_hour: 3.6\nper_1000_requests: {put: 1}\n")
    monkeypatch.setenv("SLUICE_CONTRACTS", str(folder))
    monkeypatch.setenv("SLUICE_PRICES", str(file))
    write_costs(catalog, hourly_rows(48))
    return file


def test_what_tables_cost_and_what_another_cadence_would(prices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def sluice(*arguments: str, code: int = 0) -> str:
        assert main.main(["cost", *arguments]) == code
        shown = capsys.readouterr()
        return shown.err if code else shown.out

    head, line = sluice().splitlines()
    records = sum(row.records or 0 for row in hourly_rows(48))
    cpu = 48 * 10 + 20 * records / 1e6
    assert head.split()[-1] == "EUR" and line.split()[:3] == ["db.a", f"{records:,}", f"{cpu:,.1f}"]
    assert float(line.split()[-1]) == pytest.approx(cpu / 1000 + 48 * 3 / 1000, abs=0.005)
    days = json.loads(sluice("db.a", "--json"))["days"]
    assert sum(day["cpu_seconds"] for day in days) == pytest.approx(cpu) and sum(day["runs"] for day in days) == 48
    assert "APPLICATION S" in sluice("db.a").splitlines()[0]
    text = sluice("db.a", "--what-if", "every=30m")
    assert "48 runs in 2.0 days" in text and "how sure: high" in text
    assert "of these, a month: " in text and "not included: more and smaller files need more maintenance" in text
    made = json.loads(sluice("db.a", "--what-if", "every=30m", "--json"))
    assert made["estimate"]["fit"]["fixed"] == pytest.approx(10) and made["per_month"][1] > made["per_month"][0]
    prices.unlink()
    assert "prices.yaml: cannot be read" in sluice(code=3)
    assert "--what-if needs a table" in sluice("--what-if", "every=1m", code=3)
