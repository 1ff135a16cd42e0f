"""Costs divided among tables: nothing is counted twice, and nothing of a table is left out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from pyiceberg.catalog import Catalog

from sluice.contract import folder as contract_folder
from sluice.iceberg import table_names
from sluice.plan import resolve_topics
from sluice.usage import overview, storage, table_costs
from sluice.usage.costs_table import Cost, read_costs, write_costs
from sluice.usage.prices import Prices

pytestmark = pytest.mark.unit
NOW = datetime.now(UTC).replace(microsecond=0)
PRICES = Prices(currency="EUR", per_cpu_hour=3600.0)
OWNERS = {"db.a": ("db.a",), "db.b": ("db.b",), "sluice_staging.t": ("db.a", "db.b"), "sluice_quarantine.a": ("db.a",)}


def cost(step: str, table: str | None, cpu: float, at: datetime = NOW, **values: object) -> Cost:
    since = at - timedelta(minutes=1)
    return Cost(at, since, f"run {at}", "sluice ingest g", step, table, None, 1, None, 1.0, cpu, cpu, **values)  # type: ignore[arg-type]


def test_shared_reads_and_the_application_are_divided_and_sums_stay_the_same() -> None:
    rows = [
        cost("stage", "sluice_staging.t", 2.0, bytes_added=10),
        cost("publish", "db.a", 5.0, bytes_added=7),
        cost("publish", "db.b", 1.0),
        cost("application", None, 6.0, tables=3),
    ]
    found = {name: runs[0] for name, runs in table_costs.divide(rows, OWNERS).items()}
    # Driver and executors: twice the number. The application has three tables, and staging belongs to both others.
    assert dict(found["db.a"].cpu) == {"stage": 2.0, "publish": 10.0, "application": 6.0}
    assert dict(found["db.b"].cpu) == {"stage": 2.0, "publish": 2.0, "application": 6.0}
    assert sum(run.cpu_seconds for run in found.values()) == sum(row.cpu_seconds for row in rows)
    assert (found["db.a"].staged_bytes, found["db.a"].written_bytes, found["db.a"].kind) == (5.0, 7.0, "ingest")
    # Read for one table alone, the rows give the same.
    alone = [row for row in rows if row.table != "db.b"]
    assert table_costs.divide(alone, OWNERS)["db.a"][0] == found["db.a"]


def test_tables_without_a_contract_bear_their_share_of_an_application() -> None:
    rows = [
        cost("rewrite_data_files", "sluice_quarantine.a", 1.0),
        cost("rewrite_data_files", "sluice.offsets", 1.0),
        cost("application", None, 4.0, tables=2),
    ]
    (run,) = table_costs.divide(rows, OWNERS)["db.a"]
    assert (run.kind, run.cpu_seconds) == ("maintain", 2.0 + 4.0)


def test_days_and_prices_of_a_table_and_of_all(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = {"name": "id", "type": "string", "source": "$key"}
    body = {"table": "db.a", "topic": "t", "group": "g", "owner": "me", "mode": "append", "columns": [column]}
    folder = tmp_path / "contracts"
    folder.mkdir()
    (folder / "a.yaml").write_text(yaml.safe_dump(body))
    contracts = resolve_topics.resolve(contract_folder.load_contracts(folder), catalog, None)
    assert overview.read_all(catalog, contracts, 7) == {}
    days = [NOW - timedelta(days=n) for n in (9, 1, 0)]
    for at in days:
        write_costs(catalog, [
            cost("publish", "db.a", 1.0, at, files_added=2), cost("publish", "db.z", 9.0, at),
            cost("application", None, 1.0, at, tables=2),
        ])  # fmt: skip
    assert len(read_costs(catalog, NOW - timedelta(days=30))) == 9
    assert {row.table for row in read_costs(catalog, NOW - timedelta(days=30), ["db.a"])} == {"db.a", None}
    found = overview.read_table(catalog, contracts.table("db.a"), contracts, 7)
    assert [day for day, _ in found.by_day.items()] == [at.date() for at in days[1:]]
    facts = found.facts(PRICES)
    assert [(each.cpu_seconds, each.files, each.price) for each in facts.days] == [(3.0, 2.0, 3.0)] * 2
    assert (facts.storage, facts.orphan_files, facts.currency) == ([], None, "EUR")
    (everything,) = overview.read_all(catalog, contracts, 7).values()
    assert everything.cpu_seconds == 6.0


def test_storage_counts_files_that_only_older_snapshots_need(catalog: Catalog) -> None:
    write_costs(catalog, [cost("publish", "db.a", 1.0)])
    table = catalog.load_table(table_names.COSTS)
    once = storage.measure("own", table)
    assert once.live > 0 and (once.files, once.older) == (1, 0)
    table.overwrite(table.scan().to_arrow())
    twice = storage.measure("own", table.refresh())
    files = table.inspect.all_files().select(["file_path", "file_size_in_bytes"]).to_pylist()
    assert twice.stored == sum({each["file_path"]: each["file_size_in_bytes"] for each in files}.values())
    assert twice.older == once.live
