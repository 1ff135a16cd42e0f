"""`ledger rebuild` and the corrections by planning: the rows that stay, are added or are corrected."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.batch import PUBLISHED_THROUGH, RUN_ID, STEP, Batch, PublishedOffsets, encode_published_through
from sluice.contract import folder as contract_folder
from sluice.contract.folder import Contracts
from sluice.iceberg import catalog as catalogs
from sluice.iceberg import cursor, snapshots, table_names, tables
from sluice.ledger import backlog, rebuild
from sluice.ledger.ledger_rows import LedgerRow, LedgerState, batches_from_rows, plan_rows
from sluice.ledger.offsets_table import Ledger
from sluice.offsets import OffsetRange

pytestmark = pytest.mark.unit

NAME, STAGING = "db.t", "sluice_staging.t"
WHO = "ledger rebuild by ann"
CONTRACT = """table: db.t
topic: t
group: g
owner: me
columns: [{name: id, type: long}]
"""


def batch(seq: int) -> Batch:
    """Five offsets of each of three partitions."""
    ranges = {p: OffsetRange(5 * seq - 5, 5 * seq) for p in range(3)}
    return Batch("t", "id", seq, ranges, {p: r.end for p, r in ranges.items()})


class Site:
    """A topic with its two tables, in which a batch is two rows."""

    def __init__(self, folder: Path) -> None:
        (folder / "t.yaml").write_text(CONTRACT)
        self.catalog: Catalog = catalogs.load()
        self.contracts: Contracts = contract_folder.load_contracts(folder)
        tables.ensure_staging(self.catalog, "t")
        tables.ensure_typed(self.catalog, self.contracts.table(NAME))

    def commit(self, name: str, seq: int, run_id: str = "") -> int:
        """What a stage commit adds, or a publish commit; its snapshot."""
        table = self.catalog.load_table(name)
        schema = table.schema().as_arrow()
        values = {"batch_seq": seq, "_kafka_topic": "t", "_kafka_partition": 0, "_kafka_offset": seq, "id": 1}
        row = {n: v for n, v in {**values, "_kafka_timestamp": datetime.now(UTC)}.items() if n in schema.names}
        about = {STEP: "stage", RUN_ID: run_id or f"run {seq}", **batch(seq).properties()}
        if name == NAME:
            through = {"t": PublishedOffsets(seq, "id", batch(seq).next_offsets)}
            about |= {STEP: "publish", PUBLISHED_THROUGH: encode_published_through(through)}
        table.append(pa.Table.from_pylist([row, row], schema=schema), snapshot_properties=about)
        head = table.current_snapshot()
        assert head is not None
        return head.snapshot_id

    def tell(self, *rows: LedgerRow, run_id: str = "") -> None:
        Ledger(self.catalog).append(rows, run_id=run_id)

    def run(self, seq: int) -> None:
        """A batch planned, staged, published and settled, as runs tell it: two records, of which one was rejected."""
        mine, run_id = batch(seq), f"run {seq}"
        self.tell(*plan_rows(mine), run_id=run_id)
        places = {STAGING: self.commit(STAGING, seq), NAME: self.commit(NAME, seq)}
        now = datetime.now(UTC)
        measured: dict[str, Any] = {"records": 2, "seconds": 3.5, "commit_seconds": 0.5}
        self.tell(
            LedgerRow(
                "t", LedgerState.STAGED, "id", seq, oldest=now - timedelta(hours=1), newest=now, unread=70, **measured
            ),
            LedgerRow(
                "t",
                LedgerState.PUBLISHED,
                "id",
                seq,
                table=NAME,
                snapshots={NAME: places[NAME]},
                rejected=1,
                **measured,
            ),
            *plan_rows(mine, LedgerState.SETTLED, places),
            run_id=run_id,
        )

    def rebuild(self) -> list[str]:
        return rebuild.rebuild(self.contracts, self.catalog, run_id=WHO)

    def rows(self, *states: LedgerState) -> list[LedgerRow]:
        return Ledger(self.catalog).rows({"t": 0}, states or None)

    def lose(self) -> None:
        self.catalog.drop_table(table_names.LEDGER)

    def table(self) -> Table:
        return self.catalog.load_table(NAME)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/iceberg.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/warehouse")
    (tmp_path / "contracts").mkdir()
    return Site(tmp_path / "contracts")


def measures(rows: Iterable[LedgerRow]) -> list[dict[str, Any]]:
    """The rows without their snapshots, in an order of their own."""
    told = [{**asdict(r), "snapshots": None} for r in rows]
    return sorted(told, key=lambda r: (r["batch_seq"], r["state"], r["partition"] or 0, r["at"]))


def test_what_a_sound_ledger_tells_stays(site: Site) -> None:
    for seq in (1, 2):
        site.run(seq)
    before = site.rows()
    site.rebuild()
    assert measures(site.rows()) == measures(before)
    head = site.table().current_snapshot()
    assert head and site.rows(LedgerState.PUBLISHED)[-1].snapshots == {NAME: head.snapshot_id}
    assert [set(r.snapshots or ()) for r in site.rows(LedgerState.STAGED)] == [{STAGING}] * 2, "what it lacked is added"
    again = site.rows()
    site.rebuild()
    assert site.rows() == again


def test_a_lost_ledger_is_told_as_runs_tell_it(site: Site) -> None:
    for seq in (1, 2):
        site.run(seq)
    before = batches_from_rows(site.rows())
    site.lose()
    site.rebuild()
    rows = site.rows()
    assert batches_from_rows(rows) == before == {("t", seq): batch(seq) for seq in (1, 2)}
    for state, partition in ((LedgerState.STAGED, None), (LedgerState.PUBLISHED, None)):
        told = [(r.batch_seq, r.partition, r.records, r.run_id, r.who) for r in rows if r.state == state]
        assert told == [(seq, partition, 2, f"run {seq}", WHO) for seq in (1, 2)], "a batch is one row"
    assert sorted((r.batch_seq, r.partition) for r in rows if r.state == LedgerState.SETTLED) == [
        (seq, p) for seq in (1, 2) for p in range(3)
    ]


def test_what_planning_heals_is_told_so_too(site: Site) -> None:
    for seq in (1, 2):
        site.run(seq)
    site.lose()
    ledger = Ledger(site.catalog)
    loaded = backlog.load_staging(site.catalog, ["t"], {})
    through = {NAME: cursor.read_table_cursor(site.table())}
    known = backlog.find_known_batches([site.contracts.table(NAME)], loaded, through, ledger)
    site.tell(*known.missing_rows, run_id="run 3")
    staged = site.rows(LedgerState.STAGED)
    assert [(r.batch_seq, r.partition, r.records, r.run_id, r.who) for r in staged] == [
        (seq, None, 2, f"run {seq}", "plan") for seq in (1, 2)
    ]
    visible = snapshots.visible_times(site.catalog.load_table(STAGING).metadata)
    assert [r.at for r in staged] == [visible[(r.snapshots or {})[STAGING]] for r in staged]
    assert (
        batches_from_rows(site.rows())
        == {("t", seq): b for seq, b in known.for_topic("t").items()}
        == {("t", 1): batch(1)} | {("t", 2): batch(2)}
    )
    known = backlog.find_known_batches([site.contracts.table(NAME)], loaded, through, Ledger(site.catalog))
    assert known.missing_rows == ()


def test_what_the_tables_tell_otherwise_is_corrected(site: Site) -> None:
    places = {STAGING: site.commit(STAGING, 1), NAME: site.commit(NAME, 1)}
    wrong = replace(batch(1), ranges={0: OffsetRange(0, 4)}, next_offsets={0: 4, 1: 5, 2: 5})
    site.tell(
        *plan_rows(wrong),
        *plan_rows(wrong, LedgerState.SETTLED, {NAME: 5}),
        *plan_rows(batch(1), LedgerState.STAGED, {STAGING: 7}),  # as healing once wrote it
        LedgerRow("t", LedgerState.STAGED, "id", 1, records=9, seconds=1.5),
        LedgerRow("t", LedgerState.PUBLISHED, None, 1, table=NAME, snapshots={NAME: 5}, rejected=1, seconds=2.5),
        run_id="run 1",
    )
    site.rebuild()
    rows = site.rows()
    assert batches_from_rows(rows) == {("t", 1): batch(1)}
    (staged,) = (r for r in rows if r.state == LedgerState.STAGED)
    assert (staged.snapshots, staged.records, staged.seconds) == ({STAGING: places[STAGING]}, 2, 1.5)
    (published,) = (r for r in rows if r.state == LedgerState.PUBLISHED)
    assert (published.topic_id, published.snapshots, published.records) == ("id", {NAME: places[NAME]}, 2)
    assert (published.rejected, published.seconds, published.run_id) == (1, 2.5, "run 1")
    assert [r.snapshots for r in rows if r.state == LedgerState.SETTLED] == [places] * 3


def test_what_was_rolled_back_since_is_history(site: Site) -> None:
    for seq in (1, 2):
        site.run(seq)
    before = site.rows()
    first = site.table().history()[0].snapshot_id
    site.table().manage_snapshots().rollback_to_snapshot(first).commit()
    site.rebuild()
    kept = [r for r in before if r.state != LedgerState.SETTLED or r.batch_seq == 1]
    assert measures(site.rows()) == measures(kept), "that all tables hold the second batch is no longer so"
    again = site.commit(NAME, 2, "run 3")
    site.rebuild()
    rows = [r for r in site.rows(LedgerState.PUBLISHED) if r.batch_seq == 2]
    assert [(r.run_id, r.rejected) for r in rows] == [("run 2", 1), ("run 3", None)]
    assert rows[-1].snapshots == {NAME: again} != rows[0].snapshots


def test_what_the_ledger_remembers_of_a_table_that_cannot_tell_stays(site: Site, tmp_path: Path) -> None:
    site.run(1)
    settled = site.rows(LedgerState.SETTLED)
    path = Path(site.table().metadata_location.removeprefix("file://"))
    path.rename(path.with_suffix(".away"))
    assert any("Could not be read" in line for line in site.rebuild())
    assert settled and site.rows(LedgerState.SETTLED) == settled
    assert [r.rejected for r in site.rows(LedgerState.PUBLISHED)] == [1]


def test_a_ledger_of_an_older_version_is_widened_and_never_away(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for seq in (1, 2):
        site.run(seq)
    table = site.catalog.load_table(table_names.LEDGER)
    with table.update_schema() as update:
        update.delete_column("exception")
    before = len(table.refresh().scan().to_arrow())

    def drop(*_: object) -> None:
        raise AssertionError("the ledger was dropped")

    with monkeypatch.context() as patch:
        patch.setattr(type(site.catalog), "drop_table", drop)
        rebuild.rebuild(site.contracts, site.catalog, run_id="r")
    ledger = site.catalog.load_table(table_names.LEDGER)
    assert "exception" in ledger.schema().column_names and len(ledger.scan().to_arrow()) >= before
