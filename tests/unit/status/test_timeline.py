"""The timeline and the state of tables at a given time, from real tables in a local catalog."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema

from sluice import batch
from sluice.batch import PUBLISHED_THROUGH, RUN_ID, STEP, TOPIC, Batch, encode_published_through
from sluice.cli import main
from sluice.contract import folder as contract_folder
from sluice.contract.contract import Contract
from sluice.errors import CatalogUnavailableError, CursorUnknownError
from sluice.iceberg import refs, snapshots, table_names, tables
from sluice.ingest import settle
from sluice.kafka import broker
from sluice.ledger import maintenance_table, quality_table, rebuild, schemas_table
from sluice.ledger.ledger_rows import SCHEMA, SPEC, LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.offsets import OffsetRange
from sluice.pages import detail, history, metrics, render
from sluice.pages.feed import Reading
from sluice.pages.operations import Rights
from sluice.pages.table_operations import TableOperations
from sluice.plan import retention_warnings
from sluice.plan.risk import RiskStatus
from sluice.status import sources, timeline, verdicts
from sluice.status.events import INGEST, RANGES, Event, Lane, group_by_lane
from sluice.status.model import LastError, PartitionStatus, SnapshotStatus, Status, TableStatus, TopicStatus
from sluice.status.status import read_status
from sluice.status.timeline import Timeline, TimelineQuery

pytestmark = pytest.mark.unit

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
NAME = "ns.t"
ICEBERG = "org.apache.iceberg.exceptions"
FIELDS = {"table": NAME, "topic": "t", "group": "g", "owner": "me", "columns": [{"name": "id", "type": "long"}]}


@pytest.fixture
def catalog(tmp_path, monkeypatch) -> Iterator[SqlCatalog]:
    settings = {
        "TYPE": "sql", "URI": f"sqlite:///{tmp_path}/catalog.db", "WAREHOUSE": f"file://{tmp_path}/warehouse",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    made = SqlCatalog("lake", **{name.lower(): value for name, value in settings.items()})
    yield made
    made.close()


def contract() -> Contract:
    return Contract.model_validate(FIELDS)


def publish(table: Any, seq: int | None) -> datetime:
    """Commit a row, as a batch that ends at offset 10 times its number, or as a writer who says nothing of offsets."""
    told = {} if seq is None else {PUBLISHED_THROUGH: encode_published_through({"t": through(seq)})}
    table.append(pa.Table.from_pylist([row(table)], schema=table.schema().as_arrow()), snapshot_properties=told)
    time.sleep(0.01)  # Iceberg's clock has milliseconds
    moment = datetime.now(UTC)
    time.sleep(0.01)
    return moment


def through(seq: int) -> Any:
    return batch.PublishedOffsets(seq, "id", {0: 10 * seq})


def row(table: Any) -> dict[str, Any]:
    values = {"string": "t", "int": 0, "long": 1, "timestamptz": LONG_AGO}
    return {f.name: values.get(str(f.field_type)) for f in table.schema().fields}


def typed(catalog: SqlCatalog) -> Any:
    tables.ensure_typed(catalog, contract())
    return catalog.load_table(NAME)


def seq_at(table: Any, moment: datetime) -> int | None:
    found = timeline.find_table_as_of(table, moment)
    assert found is None or (found.since <= moment and (found.until is None or moment < found.until))
    return found.through["t"].seq if found and found.through else None


def test_a_moment_tells_the_snapshot_that_readers_saw_and_its_offsets(catalog: SqlCatalog) -> None:
    table = typed(catalog)
    before = datetime.now(UTC)
    time.sleep(0.01)
    assert timeline.find_table_as_of(table, before) is None
    moments = [publish(table, seq) for seq in (1, 2)]
    rewritten = publish(table, None)  # maintenance, or another writer: the offsets are those of before
    last = publish(table, 3)
    assert timeline.find_table_as_of(table, before) is None
    assert [seq_at(table, m) for m in (*moments, rewritten, last)] == [1, 2, 2, 3]
    found = timeline.find_table_as_of(table, rewritten)
    assert found is not None and (found.totals["records"], found.totals["deleted records"]) == (3, 0)
    assert table.scan(snapshot_id=found.snapshot_id).count() == 3


def test_a_rollback_does_not_change_what_was_true_before_it(catalog: SqlCatalog) -> None:
    table = typed(catalog)
    moments = [publish(table, seq) for seq in (1, 2, 3)]
    table.manage_snapshots().rollback_to_snapshot(table.history()[0].snapshot_id).commit()
    time.sleep(0.01)
    rolled_back = datetime.now(UTC)
    time.sleep(0.01)
    again = publish(table, 2)
    assert [seq_at(table, m) for m in (*moments, rolled_back, again)] == [1, 2, 3, 1, 2]


def test_a_click_on_a_snapshot_shows_the_moment_from_which_readers_saw_it(
    catalog: SqlCatalog, tmp_path, monkeypatch
) -> None:
    (tmp_path / "t.yaml").write_text(json.dumps(FIELDS))
    monkeypatch.setenv("SLUICE_CONTRACTS", str(tmp_path))
    table = typed(catalog)
    publish(table, 1)
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "b").commit()  # type: ignore[union-attr]
    batch = Batch("t", "id", 2, {0: OffsetRange(10, 20)}, {0: 20})
    told = {**batch.properties(), STEP: "publish", PUBLISHED_THROUGH: encode_published_through({"t": through(2)})}
    rows = pa.Table.from_pylist([row(table)], schema=table.schema().as_arrow())
    table.append(rows, snapshot_properties=told, branch="b")
    head = table.refs()["b"].snapshot_id
    time.sleep(0.05)  # somebody looks at it, and the clock goes on
    refs.commit(catalog, table, (), (refs.set_ref(refs.MAIN, head),))
    table = catalog.load_table(NAME)
    snapshot = table.snapshot_by_id(head)
    assert snapshot is not None and seq_at(table, snapshots.committed_at(snapshot)) == 1
    seen = snapshots.visible_at(table.metadata, snapshot)
    assert (seq_at(table, seen), SnapshotStatus.from_snapshot(table.metadata, snapshot).at) == (2, seen)
    found = detail.read_detail(NAME)
    html = render.render_page(
        "table.html", base="/sluice", airflow="", refresh=30, reading=False, unread=False, read_at=seen, here="tables",
        errors=[], readiness=(), past=Reading(), hours=24, ranges=RANGES,
        max_groups=9, max_gaps=9, gone_runs=(), table=status(NAME), detail=found,
        verdicts=list(verdicts.list_verdicts(status(NAME))), reports=False, readable=(), runs=(), review=None,
        charts=None, operations=TableOperations(status(NAME), Rights()),
    )  # fmt: skip
    link = f"/sluice/tables/{NAME}/timeline?at={quote(seen.isoformat())}#then"
    assert re.findall(rf'<a href="(.*?)" title="The table at that time"><code>{head}<', html) == [link] * 2
    # What an application that was killed left untold, and a ledger that is written anew.
    promises = contract_folder.load_contracts(tmp_path)
    promised = {"tables": {NAME: {"t": [2]}}, "stops": {}, "warnings": {}}
    settle.settle(promises.group("g"), catalog, promised, run_id="r")
    assert [r.at for r in Ledger(catalog).rows({"t": 0}, (LedgerState.PUBLISHED,))] == [seen]
    rebuild.rebuild(promises, catalog, run_id="r")
    assert [r.at for r in Ledger(catalog).rows({"t": 0}, (LedgerState.PUBLISHED,))] == [seen]


def test_what_expiry_took_is_not_guessed(catalog: SqlCatalog) -> None:
    table = typed(catalog)
    moments = [publish(table, seq) for seq in (1, None, 2)]  # type: ignore[arg-type]
    first, _, _ = (entry.snapshot_id for entry in table.history())
    table.maintenance.expire_snapshots().by_id(first).commit()
    table = catalog.load_table(NAME)
    assert timeline.find_table_as_of(table, moments[0]) is None
    # PyIceberg forgets the parent of what it expired; Spark leaves it, and then nobody may say "no offsets".
    second, *later = table.metadata.snapshots
    cut = [second.model_copy(update={"parent_snapshot_id": first}), *later]
    table.metadata = table.metadata.model_copy(update={"snapshots": cut})
    with pytest.raises(CursorUnknownError):
        timeline.find_table_as_of(table, moments[1])
    assert seq_at(table, moments[2]) == 2


def test_the_command_tells_it(catalog: SqlCatalog, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "t.yaml").write_text(json.dumps(FIELDS))
    monkeypatch.setenv("SLUICE_CONTRACTS", str(tmp_path))
    moment = publish(typed(catalog), 7)
    assert main.main(["at", NAME, moment.isoformat()]) == 0
    told = capsys.readouterr().out
    assert "t: batch 7, end offsets (exclusive) 0: 70" in told and "until now" in told and "1 records" in told
    assert main.main(["at", NAME, moment.isoformat(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["through"]["t"]["next_offsets"] == {"0": 70}
    assert main.main(["at", NAME, "2020-01-01T00:00:00Z"]) == 0
    assert "no snapshot" in capsys.readouterr().out
    assert main.main(["at", NAME, "yesterday"]) == 3
    assert "not a time with a time zone" in capsys.readouterr().err
    assert main.main(["at", "no.table", moment.isoformat()]) == 3


def happened(catalog: SqlCatalog) -> datetime:
    """One of everything for `ns.t`, and a published batch of another table of another topic."""
    publish(typed(catalog), None)
    start = datetime.now(UTC) - timedelta(seconds=1)
    batch = Batch("t", "id", 4, {0: OffsetRange(0, 10)}, {0: 10})
    rows = [
        LedgerRow("t", LedgerState.PLANNED, "id", 4, 0, 0, 10),
        LedgerRow("t", LedgerState.STAGED, "id", 4, records=10, seconds=0.5, oldest=start, newest=start, unread=30),
        LedgerRow(
            "t",
            LedgerState.PUBLISHED,
            "id",
            4,
            table=NAME,
            records=9,
            rejected=1,
            seconds=2.5,
            snapshots={NAME: 77},
            commit_seconds=0.25,
        ),
        LedgerRow("t", LedgerState.BLOCKED, "id", 5, table=NAME, error="too many bad records"),
        LedgerRow("t", LedgerState.FAILED, "id", 5, table="ns.sister", error="not this one"),
        LedgerRow(
            "t",
            LedgerState.RETRIED,
            "id",
            4,
            table=NAME,
            error="no answer",
            exception=f"{ICEBERG}.CommitStateUnknownException",
        ),
        LedgerRow(
            "t",
            LedgerState.FAILED,
            "id",
            6,
            table=NAME,
            error="is away",
            exception="sluice.errors.RegistryUnavailableError",
        ),
        LedgerRow("t", LedgerState.GAP, "id", 0, 1, 3, 8, who="ann", why="Kafka was slow"),
        LedgerRow("u", LedgerState.PUBLISHED, "id", 1, table="ns.other", records=5),
    ]
    Ledger(catalog).append(rows, run_id="run 1")
    judged = [
        quality_table.ExpectationResult(NAME, "t", batch.seq, "expect_a", "id", "warn", success, 10, 2)
        for success in (True, False)
    ]
    quality_table.write_results(catalog, judged, run_id="run 1")
    schemas_table.append_rows(
        catalog, [schemas_table.SchemaRow(NAME, schemas_table.SchemaState.REVIEW, 2, "c", words=["drop n"])]
    )
    done = maintenance_table.ActionResult(NAME, "rewrite_data_files", "done", reason="9 small files", seconds=3.0)
    maintenance_table.write_results(
        catalog,
        [done, maintenance_table.ActionResult("ns.other", "expire_snapshots", "failed", error="no")],
        run_id="run 2",
    )
    return start


def test_everything_that_happened_stands_in_its_lane(catalog: SqlCatalog) -> None:
    assert timeline.read_events(catalog, LONG_AGO) == []
    start = happened(catalog)
    found = timeline.read_events(catalog, start, [contract()])
    assert [e.at for e in found] == sorted((e.at for e in found), reverse=True)
    by_lane = {lane: [(e.bad, e.told) for e in events] for lane, events in group_by_lane(found)}
    (file,) = catalog.load_table(NAME).inspect.files()["file_size_in_bytes"].to_pylist()
    assert by_lane == {
        Lane.STAGED: [(False, "staged, t, batch 4, 10 records")],
        Lane.PUBLISHED: [(False, "published, t, batch 4, 9 records, 1 quarantined")],
        Lane.REFUSED: [(True, "blocked, t, batch 5, too many bad records")],
        Lane.CATALOG: [(True, "retried, t, batch 4, CommitStateUnknownException: no answer")],
        Lane.REGISTRY: [(True, "failed, t, batch 6, RegistryUnavailableError: is away")],
        Lane.QUALITY: [(True, "t, batch 4: 1 of 2 expectations failed: warn: expect_a(id): 2 of 10 rows fail")],
        Lane.SCHEMA: [(True, "version 2 review: drop n")],
        Lane.OPERATOR: [(True, "gap, t, batch 0, partition 1 [3, 8), ann: Kafka was slow")],
        Lane.FILES: [(False, f"append: 1 data file created, {file / 1000:,.1f} kB")],
        Lane.MAINTENANCE: [(False, "rewrite data files: done, 9 small files, 3.0 s")],
    }
    (published,) = (e for e in found if e.lane == Lane.PUBLISHED)
    assert (published.snapshot_id, published.seconds, published.run_id) == (77, 2.5, "run 1")
    assert published.delay == (published.at - start).total_seconds() > 1
    assert [e.delay for e in found if e is not published] == [None] * (len(found) - 1)
    assert (published.unread, published.commit_seconds) == (30, 0.25)
    assert [e.unread for e in found if e.unread is not None] == [30, 30]
    assert {e.lane: e.dag for e in found if e.dag} == {
        **dict.fromkeys(set(Lane) - {Lane.RUNS, Lane.SCHEMA, Lane.OPERATOR, Lane.FILES}, INGEST),
        Lane.OPERATOR: "accept_gap",
        Lane.MAINTENANCE: "maintain_rewrite_data_files",
    }
    Ledger(catalog).append([LedgerRow("t", LedgerState.REPLAYED, "id", -1, table=NAME)], run_id="manual")
    assert timeline.read_events(catalog, start, [contract()])[0].dag == "backfill"
    everything = timeline.read_events(catalog, start)
    assert {e.table for e in everything} == {None, NAME, "ns.sister", "ns.other"}
    few = timeline.read_events(catalog, start, most=2)
    assert few == [e for e in everything if any(e in each[:2] for _, each in group_by_lane(everything))]
    assert {e.lane for e in few} == set(Lane) - {Lane.RUNS, Lane.FILES}  # for that it takes to be told of which tables
    assert timeline.read_events(catalog, datetime.now(UTC)) == []


def test_what_an_operator_did_tells_the_dag_of_its_run(catalog: SqlCatalog) -> None:
    about = {"table": NAME, "who": "ann", "why": "it was wrong"}
    by_run = {
        "gave up": [LedgerRow("t", LedgerState.GAP, "id", None, 0, 3, 8, who="ann", why="lost")],
        "healed": [LedgerRow("t", LedgerState.GAP, "id", None, 0, 1, 2, why="nobody knows")],
        "went back": [
            LedgerRow("t", LedgerState.GAP, "id", None, 0, 9, 12, **about),
            LedgerRow("t", LedgerState.ROLLED_BACK, **about),
        ],
        "answered": [LedgerRow("t", LedgerState.ROLLED_BACK, **about)],
    }
    for run_id, rows in by_run.items():
        Ledger(catalog).append(rows, run_id=run_id)
    versions = [
        (schemas_table.SchemaState.APPROVED, "answered"),
        (schemas_table.SchemaState.APPLIED, "answered"),
        (schemas_table.SchemaState.REVIEW, "r"),
    ]
    schemas_table.append_rows(
        catalog, [schemas_table.SchemaRow(NAME, state, 2, "c", run_id=run_id) for state, run_id in versions]
    )
    found = {(e.lane, e.run_id, e.dag) for e in timeline.read_events(catalog, LONG_AGO, [contract()])}
    assert found == {
        (Lane.OPERATOR, "gave up", "accept_gap"), (Lane.OPERATOR, "healed", None),
        (Lane.OPERATOR, "went back", "rollback"), (Lane.OPERATOR, "answered", "review_schema"),
        (Lane.SCHEMA, "answered", "review_schema"), (Lane.SCHEMA, "r", None),
    }  # fmt: skip


def test_each_commit_that_adds_files_tells_how_many_and_who_made_them(catalog: SqlCatalog, monkeypatch) -> None:
    table = typed(catalog)
    with table.transaction() as transaction:
        transaction.set_properties({"write.delete.mode": "copy-on-write"})  # PyIceberg knows no other
    for run_id, step in (("run 1", "publish"), ("manual", "replay")):
        told = {STEP: step, RUN_ID: run_id, TOPIC: "t"}
        rows = pa.Table.from_pylist([row(table)], schema=table.schema().as_arrow())
        table.append(rows, snapshot_properties=told)
    table.delete("id = 1")  # takes both files out, and adds none
    files = [e for e in timeline.read_events(catalog, LONG_AGO, [contract()]) if e.lane == Lane.FILES]
    assert [(e.run_id, e.dag, e.topic, e.table) for e in files] == [
        ("manual", "backfill", "t", NAME), ("run 1", INGEST, "t", NAME),
    ]  # fmt: skip
    assert [e.told.partition(" created")[0] for e in files] == ["replay: 1 data file", "publish: 1 data file"]
    assert [e.snapshot_id for e in files] == [s.snapshot_id for s in table.metadata.snapshots[1::-1]]
    # One that writes files anew tells what it took out as well.
    rows = [row(table), {**row(table), "id": 2}]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    table.delete("id = 2")
    told = timeline.read_events(catalog, LONG_AGO, [contract()])[0].told
    assert told.startswith("overwrite: 1 data file created, ") and told.endswith(" kB, 1 data file removed")
    # Nobody reads the metadata of a thousand tables for it.
    monkeypatch.setattr(timeline, "MAX_TABLES_WITH_FILES", 0)
    assert timeline.read_events(catalog, LONG_AGO, [contract()]) == []


def test_an_older_ledger_tells_without_the_class_of_its_errors(catalog: SqlCatalog) -> None:
    fields = [f for f in SCHEMA.fields if f.name != "exception"]
    older = tables.ensure_table(catalog, table_names.LEDGER, Schema(*fields), SPEC)
    record = {"at": datetime.now(UTC), "topic": "t", "state": "failed", "table": NAME, "error": "why", "batch_seq": 1}
    older.append(pa.Table.from_pylist([record], schema=older.schema().as_arrow()))
    (event,) = timeline.read_events(catalog, LONG_AGO, [contract()])
    assert (event.lane, event.told) == (Lane.REFUSED, "failed, t, batch 1, why")


def test_a_batch_is_staged_once_though_older_versions_told_of_each_partition(catalog: SqlCatalog, monkeypatch) -> None:
    def spread(seq: int) -> list[LedgerRow]:
        return [LedgerRow("t", LedgerState.STAGED, "id", seq, p, 10 * seq, 10 * seq + 9) for p in range(4)]

    whole = LedgerRow("t", LedgerState.STAGED, "id", 2, records=36, oldest=datetime.now(UTC), unread=40)
    published = LedgerRow("t", LedgerState.PUBLISHED, "id", 2, table=NAME, records=36)
    Ledger(catalog).append([*spread(1), *spread(2), whole, *spread(3), published], run_id="r")
    monkeypatch.setattr(timeline, "MAX_EVENTS", 3)
    found = timeline.read_events(catalog, LONG_AGO, [contract()])
    told = sorted(e.told for e in found if e.lane == Lane.STAGED)
    assert told == ["staged, t, batch 1", "staged, t, batch 2, 36 records", "staged, t, batch 3"]
    assert [e.unread for e in found if e.lane == Lane.PUBLISHED] == [
        40
    ]  # by the row that tells of the batch as a whole


def week(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> history.History:
    """That of the group of `ns.t`, in which another table reads the same topic."""
    others = ({"table": "ns.second"}, {"table": "ns.other", "topic": "u", "group": "others"})
    for n, changes in enumerate(({}, *others)):
        (tmp_path / f"{n}.yaml").write_text(json.dumps({**FIELDS, **changes}))
    monkeypatch.setenv("SLUICE_CONTRACTS", str(tmp_path))
    return history.read_group_history('["g"]')


def test_what_others_do_crowds_nothing_out_of_what_somebody_may_see(catalog: SqlCatalog, tmp_path, monkeypatch) -> None:
    happened(catalog)
    busy = [LedgerRow("u", LedgerState.PUBLISHED, "id", n, table="ns.other", records=n) for n in range(2, 9)]
    Ledger(catalog).append(busy, run_id="run 3")
    judged = [quality_table.ExpectationResult("ns.other", "u", n, "expect_a", "id", "warn", True, 10) for n in range(9)]
    quality_table.write_results(catalog, judged, run_id="run 3")
    maintenance_table.write_results(
        catalog,
        [maintenance_table.ActionResult("ns.other", "expire_snapshots", "failed") for _ in range(3)],
        run_id="run 4",
    )
    monkeypatch.setattr(timeline, "MAX_EVENTS", 3)
    found = week(tmp_path, monkeypatch)
    assert {e.lane for e in found.events} == set(Lane) - {Lane.RUNS} and {e.table for e in found.events} == {NAME, None}
    assert history.select_hours(found, 1, found.events).cut == []


def test_of_each_table_the_last_batch_is_told_however_much_happened_since(
    catalog: SqlCatalog, tmp_path, monkeypatch
) -> None:
    assert timeline.read_timeline(catalog, TimelineQuery(LONG_AGO)) == Timeline([], [])
    start = happened(catalog)
    busy = [LedgerRow("u", LedgerState.PUBLISHED, "id", n, table="ns.other", records=n) for n in range(2, 9)]
    for row in (
        *busy,
        LedgerRow("t", LedgerState.PUBLISHED, "id", -1, table=NAME, records=1_000),
    ):  # a slice is no batch
        Ledger(catalog).append([row], run_id="run 3")
    found = {e.table: e for e in timeline.read_timeline(catalog, TimelineQuery(start)).last}
    assert {name: e.records for name, e in found.items()} == {NAME: 9, "ns.other": 8}
    assert found[NAME].delay == (found[NAME].at - start).total_seconds() and found[NAME].unread == 30
    assert [e.table for e in week(tmp_path, monkeypatch).last] == [NAME]
    assert timeline.read_timeline(catalog, TimelineQuery(datetime.now(UTC))) == Timeline([], [])


def test_of_each_table_the_last_ten_batches_are_told_and_what_it_counted_lately(catalog: SqlCatalog) -> None:
    start = happened(catalog)  # batch 4 published, batch 5 blocked, batch 6 failed
    now = datetime.now(UTC)

    def ended(seq: int, state: LedgerState, hours: float = 0.5, **more: Any) -> LedgerRow:
        return LedgerRow("u", state, "id", seq, table="ns.other", at=now - timedelta(hours=hours), **more)

    rows = [
        *(ended(n, LedgerState.PUBLISHED, 20 - n, records=n, rejected=1) for n in range(2, 13)),
        ended(13, LedgerState.BLOCKED, 0.4, records=9, rejected=7),
        ended(13, LedgerState.BLOCKED, 0.3, records=9, rejected=7),  # of the same records
        ended(14, LedgerState.FAILED),
        ended(14, LedgerState.RETRIED, 0.1),  # the attempt goes on
        ended(14, LedgerState.PUBLISHED, 0.05, records=50, rejected=2),
        ended(15, LedgerState.PUBLISHED, 0.02),  # counts that settle does not know
        ended(-1, LedgerState.PUBLISHED, records=1_000, rejected=1_000),  # a slice is no batch
        LedgerRow("u", LedgerState.STAGED, "id", 14, records=52, unread=77),
    ]
    Ledger(catalog).append(rows, run_id="run 3")
    found = timeline.read_timeline(catalog, TimelineQuery(start - timedelta(days=7), most=1, activity=True)).activity
    other = found["ns.other"]
    assert [(b.batch, b.tone) for b in other.batches] == [
        *((n, "warn") for n in range(7, 13)), (13, "bad"), (14, "warn"), (15, "good"), (1, "good"),
    ]  # fmt: skip
    by_number = {b.batch: b for b in other.batches}
    assert (by_number[14].unread, by_number[14].published, by_number[15].published) == (77, 48, None)
    assert (other.published, other.quarantined) == (48 + 5, 11 + 7 + 2)
    assert by_number[13].text.endswith("UTC: u, batch 13 blocked, 9 records, 7 quarantined")
    mine = found[NAME]
    assert [(b.batch, b.state) for b in mine.batches] == [(4, "published"), (5, "blocked"), (6, "failed")]
    assert (mine.published, mine.quarantined, mine.batches[0].unread) == (8, 1, 30)
    assert "None" not in "".join(b.text for each in found.values() for b in each.batches)


def test_a_window_says_when_it_does_not_show_all(catalog: SqlCatalog, tmp_path, monkeypatch) -> None:
    happened(catalog)
    known = week(tmp_path, monkeypatch)
    assert known.ledger_rows == 9 and known.table is None
    window = history.select_hours(known, 1, known.events)
    assert len(window.events) == len(known.events) and not window.cut
    assert window.start < window.middle < window.end
    Ledger(catalog).append([LedgerRow("t", LedgerState.PUBLISHED, "id", 3, table=NAME)], run_id="run 1")
    monkeypatch.setattr(timeline, "MAX_EVENTS", 2)
    known = week(tmp_path, monkeypatch)
    cut = history.select_hours(known, 1, known.events).cut
    assert Lane.PUBLISHED in cut and Lane.SCHEMA not in cut


def status(name: str, **changes: Any) -> TableStatus:
    topics = [TopicStatus('t\\\n"x', lag_records=7, partitions=[PartitionStatus(0, 0, 3, 3, 10, 7)])]
    return TableStatus(name, "g", "append", "me", exists=True, topics=topics, **changes)


def exported(
    week: history.History | None, *known: TableStatus, unasked: list[str] | None = None, whole: bool = True
) -> tuple[dict[str, dict[str, float]], str]:
    text = metrics.metrics_text(Status(LONG_AGO, list(known), unasked=unasked or []), week, all_tables=whole).decode()
    told: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {k: sample.labels[k] for k in ("table", "of", "kind", "source") if k in sample.labels}
            told.setdefault(sample.name, {})["/".join(labels.values())] = sample.value
    return told, text


def test_prometheus_reads_what_is_known_and_only_that() -> None:
    hostile = 'db.t"} 1\nevil{a="b'
    failed = LastError(LONG_AGO, "failed", "t", 3, "why", "run", open=True, runs=3)
    known = status(
        hostile, last_error=failed, totals={"records": 10, "delete files": 2}, quarantined=3,
        freshness_promised_seconds=900.0, freshness_now_seconds=60.0, freshness_kept=True,
        risks=[RiskStatus("unread", "t", "soon"), RiskStatus("unread", "u", "soon"), RiskStatus("schema", "t", "x")],
    )  # fmt: skip
    last = [
        Event(LONG_AGO, Lane.PUBLISHED, "new", hostile, seconds=2.0, records=20, rejected=0, commit_seconds=0.5),
        Event(LONG_AGO, Lane.PUBLISHED, "not for this reader", "db.secret", seconds=1.0),
    ]
    week = history.History(LONG_AGO, (), last=last, ledger_rows=44)
    told, text = exported(week, known, status("db.new"))
    assert told["sluice_table_lag_offsets"] == {hostile: 7, "db.new": 7}
    assert told["sluice_table_failing"] == {hostile: 1, "db.new": 0}
    assert told["sluice_table_risk"] == {f"{hostile}/unread": 1, f"{hostile}/schema": 1}
    assert told["sluice_table_failed_runs"] == {hostile: 3, "db.new": 0}
    assert told["sluice_table_open_batches"] == {hostile: 0, "db.new": 0}
    assert told["sluice_read_timestamp_seconds"] == {"": LONG_AGO.timestamp()}
    assert told["sluice_unavailable"] == {"kafka": 0, "catalog": 0}
    assert told["sluice_table_behind_seconds"] == {hostile: 60}
    assert told["sluice_table_freshness_kept"] == {hostile: 1}
    assert told["sluice_table_quarantined_records"] == {hostile: 3}
    assert told["sluice_table_size"] == {f"{hostile}/records": 10, f"{hostile}/delete_files": 2}
    assert told["sluice_table_last_batch_seconds"] == {hostile: 2}
    assert told["sluice_table_last_batch_commit_seconds"] == {hostile: 0.5}
    assert told["sluice_table_last_batch_rejected"] == {hostile: 0}
    assert told["sluice_ledger_rows"] == {"": 44}
    assert "sluice_ledger_rows" not in exported(week, known, whole=False)[0]  # most of it may be of others
    assert "evil" not in told and "secret" not in text


def test_what_the_catalog_did_not_tell_is_not_exported_as_calm(catalog: SqlCatalog, tmp_path, monkeypatch) -> None:
    (tmp_path / "t.yaml").write_text(json.dumps(FIELDS))
    promises = contract_folder.load_contracts(tmp_path)
    typed(catalog)
    Ledger(catalog).append([LedgerRow("t", LedgerState.FAILED, batch_seq=1, table=NAME, error="why")], run_id="r")

    def told(found: Status) -> dict[str, dict[str, float]]:
        return exported(None, *found.tables, unasked=found.unasked)[0]

    alone = told(read_status(promises))  # Kafka is not there, and knows nothing of it
    assert alone["sluice_table_failing"] == alone["sluice_table_failed_runs"] == {NAME: 1}
    assert alone["sluice_unavailable"] == {"kafka": 1, "catalog": 0}

    def broke(*_: Any) -> None:
        raise CatalogUnavailableError("It went away.")

    with monkeypatch.context() as patched:  # after the first question
        patched.setattr(sources, "_read_ledger", broke)
        within = read_status(promises)
    assert within.tables[0].exists and within.unasked == ["kafka", "catalog"]
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "sqlite:////nowhere/catalog.db")
    for found in (within, read_status(promises)):
        away = told(found)
        assert not {"sluice_table_failing", "sluice_table_failed_runs", "sluice_table_open_batches"} & away.keys()
        assert away["sluice_unavailable"] == {"kafka": 1, "catalog": 1}
    kept = status(NAME, quarantined=3, totals={"records": 1}, freshness_now_seconds=1.0, unasked=["catalog"])
    assert {n for n in exported(None, kept)[0] if n.startswith("sluice_table")} == {"sluice_table_state"}


def test_kafka_need_not_keep_what_is_staged(catalog: SqlCatalog, monkeypatch) -> None:
    staged = Batch("t", "id", 2, {0: OffsetRange(10, 20)}, {0: 20, 1: 5})
    staging = tables.ensure_staging(catalog, "t")
    staging.append(
        pa.Table.from_pylist([], schema=staging.schema().as_arrow()), snapshot_properties=dict(staged.properties())
    )
    state = broker.TopicState("t", "id", {}, compacted=False, retention_ms=1)
    monkeypatch.setattr(broker, "connect", lambda *_: None)
    monkeypatch.setattr(broker, "describe_topics", lambda *_: {"t": state})
    monkeypatch.setattr(retention_warnings, "retention_seconds_left", lambda _, __, reached: dict(reached))
    published = batch.PublishedOffsets(1, "id", {0: 10, 1: 7})
    assert detail._retention_left(catalog, contract(), {"t": published}, None) == {"t": {0: 20, 1: 7}}
    assert detail._retention_left(catalog, contract(), {}, None) == {"t": {0: 20, 1: 5}}
    again = batch.PublishedOffsets(1, "made anew", {0: 1})  # what was staged was another topic's
    assert detail._retention_left(catalog, contract(), {"t": again}, None) == {"t": {0: 1}}
