"""Each check of the readiness scorecard passes and fails on real tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from sluice import dag_ids
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts, load_contracts
from sluice.iceberg import requirements_check, tables
from sluice.ledger import maintenance_table, pilot_table
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.pilot_table import PilotRow, Stage
from sluice.status import pilot, readiness

pytestmark = pytest.mark.unit

NOW = datetime.now(UTC)
NAME = "ns.t"


@pytest.fixture
def catalog(tmp_path) -> Iterator[SqlCatalog]:
    made = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    yield made
    made.close()


def contracts(folder, **fields: Any) -> Contracts:
    about = {"table": NAME, "topic": "t", "group": "g", "owner": "me"}
    written = {**about, "columns": [{"name": "id", "type": "long"}], **fields}
    folder.joinpath("t.yaml").write_text(json.dumps(written))
    return load_contracts(folder)


def lines(catalog: SqlCatalog, known: Contracts) -> dict[str, readiness.ReadinessCheck]:
    return {line.subject: line for line in readiness.check_table(known.table(NAME), known, catalog)}


def grown(catalog: SqlCatalog, contract: Contract, files: int) -> None:
    table = tables.ensure_typed(catalog, contract)
    values = {"string": "t", "int": 0, "long": 1, "timestamptz": NOW}
    row = {f.name: values.get(str(f.field_type)) for f in table.schema().fields}
    for _ in range(files):
        table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))


def test_a_bare_contract_says_what_it_lacks_and_a_full_one_is_ready(catalog, tmp_path) -> None:
    bare = lines(catalog, contracts(tmp_path))
    assert {s: line.ready for s, line in bare.items()} == {
        "Owner": True, "Key": True, "Schema change policy": True, "Expectations": False,
        "Freshness of the last 7 days": False,
    }  # fmt: skip
    assert all(bool(line.step) == (line.ready is False) for line in bare.values())
    full = contracts(
        tmp_path, mode="upsert", identifier=["id"], key={"format": "long"}, freshness="15m", deletes="ignore",
        columns=[
            {"name": "id", "type": "long", "source": "$key"}, {"name": "at", "type": "timestamptz", "required": True},
        ],
        order=["at"], schema_policy={"drop_column": "ignore"},
        expectations=[{"type": "expect_column_values_to_not_be_null", "column": "at", "severity": "block"}],
    )  # fmt: skip
    told = lines(catalog, full)
    assert told["Key"].evidence == "one row per id" and "latest record of a key by at wins" in told["Order"].evidence
    assert told["Deletes"].evidence == "tombstones are ignored"
    assert told["Expectations"].evidence == "1 are evaluated per batch, 1 of them can block it"
    assert (
        told["Schema change policy"].ready is False and "ignore: drop column" in told["Schema change policy"].evidence
    )
    assert told["Freshness of the last 7 days"].ready is None


def test_freshness_is_told_by_the_batches_that_landed(catalog, tmp_path) -> None:
    known = contracts(tmp_path, freshness="15m")
    for seq, minutes in ((1, 10), (2, 40)):
        at = NOW - timedelta(hours=seq)
        rows = [
            LedgerRow("t", LedgerState.STAGED, "id", seq, oldest=at - timedelta(minutes=minutes), newest=at, at=at),
            LedgerRow("t", LedgerState.PUBLISHED, "id", seq, table=NAME, at=at),
        ]
        Ledger(catalog).append(rows, run_id="r")
        line = lines(catalog, known)["Freshness of the last 7 days"]
        assert line.ready is (seq == 1)
    assert line.evidence.startswith("1 of 2 batches were published within 15m") and "slowest 40m" in line.evidence


def test_rehearsed_failures_are_what_the_last_play_of_each_scenario_came_to(catalog, tmp_path) -> None:
    known = contracts(tmp_path)
    grown(catalog, known.table(NAME), 1)
    line = lines(catalog, known)["Failures rehearsed"]
    assert (line.ready, line.evidence) == (False, "never, according to `sluice.pilot`")
    assert "DAG rehearse" in line.step

    def play(scenario: str, state: str, days: float, table: str = NAME) -> None:
        evidence = {"scenario": scenario, "state": state}
        at = NOW - timedelta(days=days)
        pilot_table.record(catalog, PilotRow(table, Stage.REHEARSED, state != "failed", "", evidence, at=at))

    play("rollback", "failed", 3)
    play("deny-access", "skipped", 3)
    pilot_table.record(catalog, PilotRow(NAME, Stage.COMPARED, False, "different", at=NOW))
    line = lines(catalog, known)["Failures rehearsed"]
    assert not line.ready and line.evidence.endswith("0 of 1 as expected, not: rollback; skipped: deny-access")
    play("rollback", "passed", 2)
    play("rollback", "failed", 1, "db.other")
    line = lines(catalog, known)["Failures rehearsed"]
    assert line.ready and line.evidence.endswith("1 of 1 as expected; skipped: deny-access") and not line.step
    checks = readiness.check_table(known.table(NAME), known, catalog, NOW + timedelta(days=100))
    later = {line.subject: line for line in checks}
    assert not later["Failures rehearsed"].ready


def test_drills_files_and_restore_point_are_facts_of_the_tables(catalog, tmp_path) -> None:
    known = contracts(tmp_path, maintenance={"min_input_files": 3, "snapshot_age": "1h"})
    grown(catalog, known.table(NAME), 2)
    told = lines(catalog, known)
    assert {s: told[s].ready for s in ("Small files", "Rollback tested", "Replay tested", "Orphan files")} == {
        "Small files": True, "Rollback tested": False, "Replay tested": False, "Orphan files": False,
    }  # fmt: skip
    assert told["Restore point"].ready and "the first one is kept" in told["Restore point"].evidence

    grown(catalog, known.table(NAME), 2)
    assert not lines(catalog, known)["Small files"].ready
    states = ((LedgerState.ROLLED_BACK, timedelta(days=1)), (LedgerState.REPLAYED, timedelta(days=100)))
    rows = [LedgerRow("t", state, batch_seq=1, table=NAME, at=NOW - ago) for state, ago in states]
    Ledger(catalog).append(rows, run_id="r")
    maintenance_table.write_results(
        catalog, [maintenance_table.ActionResult(NAME, "remove_orphan_files", "idle")], run_id="r"
    )
    told = lines(catalog, known)
    assert {s: told[s].ready for s in ("Rollback tested", "Replay tested", "Orphan files")} == {
        "Rollback tested": True, "Replay tested": False, "Orphan files": True,
    }  # fmt: skip

    # Whose parent PyIceberg's expiry has taken is not the table's first.
    table = catalog.load_table(NAME)
    table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in table.snapshots()[:2]]).commit()
    cut = lines(catalog, known)["Restore point"]
    assert not cut.ready and "first one is kept" not in cut.evidence


@pytest.mark.parametrize(
    ("paused", "step"),
    [
        ({}, "Check that DAG {} is not paused, and that its last run succeeded."),
        ({True}, "Unpause DAG {}."),
        ({False}, "The next run of DAG {} does it, or trigger it. If this stays, see the log of its last run."),
    ],
)
def test_nobody_is_told_to_unpause_a_dag_that_is_not_paused(catalog, tmp_path, paused, step) -> None:
    known = contracts(tmp_path, maintenance={"min_input_files": 3})
    grown(catalog, known.table(NAME), 4)
    states = {dag: each for dag in dag_ids.MAINTENANCE_DAGS for each in paused}
    told = {c.subject: c.step for c in readiness.check_table(known.table(NAME), known, catalog, paused=states)}
    assert told["Small files"] == step.format("maintain_rewrite_data_files")
    assert told["Orphan files"] == step.format("maintain_remove_orphan_files")


def test_whether_the_catalog_enforces_requirements_is_what_planning_kept_in_the_ledger(catalog, tmp_path) -> None:
    known = contracts(tmp_path)
    grown(catalog, known.table(NAME), 1)
    assert lines(catalog, known)["Commit requirements"].ready is None
    requirements_check.check(catalog, Ledger(catalog).table)
    line = lines(catalog, known)["Commit requirements"]
    assert line.ready and "(pyiceberg.catalog.sql.SqlCatalog) refuses a commit" in line.evidence and not line.step
    with Ledger(catalog).table.transaction() as transaction:
        transaction.set_properties({requirements_check.ENFORCED: requirements_check.NOT_ENFORCED})
    line = lines(catalog, known)["Commit requirements"]
    assert line.ready is False and "accepts" in line.evidence and line.step


def test_a_table_that_nobody_writes_to_need_not_be_cleaned_again(catalog, tmp_path) -> None:
    known = contracts(tmp_path)
    grown(catalog, known.table(NAME), 1)

    def line(days: int) -> readiness.ReadinessCheck:
        found = readiness.check_table(known.table(NAME), known, catalog, NOW + timedelta(days=days))
        return next(each for each in found if each.subject == "Orphan files")

    assert line(0).ready is False and line(0).evidence.startswith("never checked for orphan files")
    maintenance_table.write_results(
        catalog,
        [maintenance_table.ActionResult(NAME, "remove_orphan_files", "done", at=NOW + timedelta(days=2))],
        run_id="r",
    )
    assert line(10).ready  # not long ago
    # What was written just before was too young to be taken for an orphan then, and must be looked for once more.
    assert not line(30).ready and line(30).step.startswith("Check that DAG maintain_remove_orphan_files is not paused")
    maintenance_table.write_results(
        catalog,
        [maintenance_table.ActionResult(NAME, "remove_orphan_files", "done", at=NOW + timedelta(days=6))],
        run_id="r",
    )
    quiet = line(30)  # the DAG ran each week, and found nothing to do
    assert (quiet.ready, quiet.step) == (True, "") and "24 d ago, metadata last written 30 d ago" in quiet.evidence


def test_without_a_login_nobody_is_kept_out() -> None:
    closed = readiness.check_access("g", "SimpleAuthManager", {"ingest_g": True, "rollback": False}, anybody=False)
    assert closed.ready and not closed.step
    assert closed.evidence.endswith("(SimpleAuthManager); you may trigger ingest_g; you may not trigger rollback")
    opened = readiness.check_access("g", "SimpleAuthManager", {"ingest_g": True}, anybody=True)
    assert opened.ready is False and opened.evidence.startswith("anybody") and opened.step


def test_the_stages_of_a_pilot_come_from_what_was_recorded(catalog, tmp_path) -> None:
    bare = contracts(tmp_path).table(NAME)

    def stages(contract: Contract = bare) -> dict[str, readiness.ReadinessCheck]:
        return {line.subject.rpartition(": ")[2]: line for line in pilot.check_pilot(contract, catalog)}

    (before,) = stages().values()
    assert (before.subject, before.ready) == ("Pilot", None)
    side = {"rows": 5, "interval_seconds": 60.0, "delay_seconds": 90.0}
    facts = {"with": "old.t", "ours": side, "theirs": side}
    at = [NOW + timedelta(minutes=n) for n in range(6)]
    rows = [
        PilotRow(NAME, Stage.COMPARED, False, "different: 1 key", facts, at=at[0]),
        PilotRow(NAME, Stage.COMPARED, True, "equal: 5 rows", facts, at=at[1]),
        PilotRow(NAME, Stage.REHEARSED, False, "kill failed: rows were lost", {"scenario": "kill"}, at=at[2]),
        PilotRow(NAME, Stage.REHEARSED, True, "rollback passed", {"scenario": "rollback"}, at=at[3]),
        PilotRow(NAME, Stage.REHEARSED, True, "skipped", {"scenario": "outage", "state": "skipped"}, at=at[3]),
    ]
    pilot_table.record(catalog, *rows)
    found = stages()
    assert {name: line.ready for name, line in found.items()} == {
        "baseline recorded": True, "contract defined": False, "parallel run compared": True,
        "failures rehearsed": False, "decision": False,
    }  # fmt: skip
    assert found["baseline recorded"].evidence.endswith(": 5 rows, a commit every 60s, 90s after its newest value")
    assert found["contract defined"].step == "Add `freshness:` to the contract."
    assert found["parallel run compared"].evidence.endswith("equal: 5 rows; 1 of 2 comparisons found them equal")
    assert found["failures rehearsed"].evidence.endswith("1 of 2 as expected, not: kill; skipped: outage")

    expectation = {"type": "expect_column_values_to_not_be_null", "column": "id"}
    full = contracts(tmp_path, freshness="1h", expectations=[expectation]).table(NAME)
    grown(catalog, full, 1)
    pilot_table.record(
        catalog,
        PilotRow(NAME, Stage.COMPARED, True, "equal: 0 rows", {**facts, "ours": {"rows": 0}}, at=at[4]),
        PilotRow(NAME, Stage.REHEARSED, True, "as expected", {"scenario": "kill"}, at=at[4]),
        PilotRow(NAME, Stage.DECIDED, True, "relied on", who="eve", why="a good week", at=at[5]),
    )
    found = stages(full)
    assert [line.ready for line in found.values()] == [True, True, False, True, True]
    assert found["parallel run compared"].step, "an empty window proves nothing"
    assert found["decision"].evidence.startswith("relied on, decided by eve at ")
    pilot_table.record(catalog, PilotRow(NAME, Stage.DECIDED, False, "not relied on", at=NOW + timedelta(hours=1)))
    assert stages(full)["decision"].ready is False
