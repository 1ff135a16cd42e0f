"""Contract changes on real tables of a local catalog: policies, reviews, races, and what stays stored."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.types import IntegerType, StringType

from sluice.batch import STEP, Batch
from sluice.cli import main
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.contract.settings import SchemaPolicy
from sluice.contract.shape import shape_id
from sluice.contract.values import KAFKA_COLUMNS
from sluice.errors import FencedError, RefusedError, SchemaChangeError
from sluice.evolve import apply, evolve, rejected_change
from sluice.evolve.diff import READ, compare_contracts
from sluice.evolve.pending_change import ReviewDecision
from sluice.iceberg import compat, deletes_table, refs, snapshots, table_names, tables
from sluice.iceberg.active_contract import CONTRACT_PROPERTY, ContractVersion, resolve_active_contract
from sluice.ingest.branch_write import BranchWrite
from sluice.ingest.context import Context
from sluice.ledger import schemas_table
from sluice.ledger.schemas_table import SchemaState
from sluice.offsets import OffsetRange
from sluice.operate import review_schema
from sluice.status.model import Status, TableStatus
from sluice.status.text import as_text

pytestmark = pytest.mark.unit

ID = {"name": "id", "type": "long"}
COLUMNS = [
    ID,
    {"name": "n", "type": "int", "required": True},
    {"name": "s", "type": "string", "mask": "sha256"},
    {"name": "place", "type": "struct<city: string, at: list<struct<x: int>>>"},
    {"name": "day", "type": "date"},
]
TEXT = {"name": "s", "type": "string"}
KEYED = {"mode": "upsert", "identifier": ["id"]}


@pytest.fixture
def catalog(tmp_path):
    made = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    yield compat.with_version_3(made)
    made.close()


def contract(columns: list[dict[str, Any]] = COLUMNS, **fields: Any) -> Contract:
    about = {"table": "ns.t", "topic": "t", "group": "g", "owner": "me"}
    return Contract.model_validate({**about, "columns": columns, **fields})


def column(index: int, **fields: Any) -> list[dict[str, Any]]:
    return [*COLUMNS[:index], {**COLUMNS[index], **fields}, *COLUMNS[index + 1 :]]


def made(catalog, file: Contract) -> Any:
    tables.ensure_typed(catalog, file)
    evolve.record_created_tables(catalog, [file], run_id="first")
    return catalog.load_table("ns.t")


def types(catalog) -> dict[str, str]:
    fields = catalog.load_table("ns.t").schema().fields
    return {f.name: str(f.field_type) for f in fields if not f.name.startswith("_kafka")}


def fill(table: Any, branch: str = refs.MAIN, **values: Any) -> None:
    arrow = table.schema().as_arrow()
    row = {f.name: values.get(f.name) for f in arrow} | {"_kafka_topic": "t", "_kafka_partition": 0, "_kafka_offset": 0}
    table.append(pa.Table.from_pylist([row], schema=arrow), branch=branch)


KINDS = {
    "add_column": ([*COLUMNS, {"name": "x", "type": "list<date>"}], {}),
    "widen": (column(1, type="long"), {}),
    "make_optional": (column(1, required=False), {}),
    "reorder": ([COLUMNS[1], ID, *COLUMNS[2:]], {}),
    "document": (column(2, doc="what it says"), {}),
    "drop_column": ([*COLUMNS[:2], *COLUMNS[3:]], {}),
    "rename_column": (column(2, name="z", source="s", renamed_from="s"), {}),
    "change_type": (column(1, type="string"), {}),
    "make_required": (column(2, required=True), {}),
    "change_key": (COLUMNS, KEYED),
    "change_mask": (column(2, mask=None), {}),
    "change_partitioning": (COLUMNS, {"partition_by": ["bucket(4, id)"]}),
    "change_retention": (COLUMNS, {"retention": {"column": "day", "keep": "9d"}}),
    "upgrade_format": (COLUMNS, {"format_version": 3}),
    "change_nested": (column(3, type="struct<zip: long, at: list<struct<x: long, y: date>>, city: string>"), {}),
}


def asks(kind: str, policy: str) -> Contract:
    columns, fields = KINDS[kind]
    return contract(columns, **fields, schema_policy={kind: policy})


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_by_every_policy(catalog, kind):
    assert set(KINDS) == set(SchemaPolicy.model_fields)
    old = contract()
    before = made(catalog, old)
    fill(before, id=1, n=2, s="text")

    def same() -> None:
        now = catalog.load_table("ns.t")
        assert now.metadata_location == before.metadata_location
        assert shape_id(resolve_active_contract(now, asks(kind, "review"))) == shape_id(old)

    with pytest.raises(SchemaChangeError, match="refuses this change"):
        evolve.apply_pending(catalog, asks(kind, "refuse"), run_id="r")
    same()
    found = evolve.apply_pending(catalog, asks(kind, "ignore"), run_id="r")
    assert [c.kind for c in found.ignored] == [kind]
    same()
    for _ in range(2):
        found = evolve.apply_pending(catalog, asks(kind, "review"), run_id="r")
        assert (found.review, found.due) == ("open", False)
        assert "under review" in found.summary()
    same()
    assert [r.state for r in schemas_table.read_schema_rows(catalog, "ns.t")] == [
        SchemaState.APPLIED,
        SchemaState.REVIEW,
    ]
    if kind == "change_key":
        with pytest.raises(RefusedError, match=r"key of existing rows can't be changed\. Write to a new table name"):
            evolve.decide(catalog, asks(kind, "review"), ReviewDecision(approve=True, who="ann", why="yes", run_id="r"))
        same()
        return
    if kind in ("change_type", "upgrade_format"):
        evolve.decide(catalog, asks(kind, "review"), ReviewDecision(approve=True, who="ann", why="yes", run_id="r"))
    else:
        evolve.apply_pending(catalog, asks(kind, "auto"), run_id="r")
    now = catalog.load_table("ns.t")
    told = ContractVersion.from_table(now)
    assert (told.version, list(told.kinds), told.id) == (
        2,
        [kind],
        shape_id(asks(kind, "auto" if kind not in ("change_type", "upgrade_format") else "review")),
    )
    assert shape_id(resolve_active_contract(now, asks(kind, "review"))) == told.id
    assert compare_contracts(resolve_active_contract(now, old), asks(kind, "review")) == ()
    (row,) = now.scan().to_arrow().to_pylist()  # the old row can still be read, its values where they belong
    assert row["id"] == 1
    assert row.get("n_before_1", row["n"]) == 2
    assert row.get("z", row.get("s")) == (None if kind == "drop_column" else "text")
    applied = [r for r in schemas_table.read_schema_rows(catalog, "ns.t") if r.state == SchemaState.APPLIED]
    assert [(r.version, r.snapshot_id) for r in applied] == [(1, None), (2, now.current_snapshot().parent_snapshot_id)]
    # Once more changes nothing.
    evolve.apply_pending(catalog, asks(kind, "review"), run_id="r")
    assert catalog.load_table("ns.t").metadata_location == now.metadata_location


def test_the_format_version_is_raised_and_never_lowered(catalog):
    fill(made(catalog, contract()), id=1, n=2)
    newer = contract(format_version=3)
    found = evolve.apply_pending(catalog, newer, run_id="r")
    assert (found.review, found.due) == ("open", False)
    assert "changes Iceberg's format version from 2 to 3" in found.summary()
    evolve.decide(catalog, newer, ReviewDecision(approve=True, who="ann", why="readers can", run_id="r"))
    now = catalog.load_table("ns.t")
    assert (now.format_version, now.metadata.next_row_id) == (3, 0)
    # The next change gives the old rows their ids.
    evolve.apply_pending(catalog, contract([*COLUMNS, TEXT | {"name": "x"}], format_version=3), run_id="r")
    now = catalog.load_table("ns.t")
    assert (now.current_snapshot().added_rows, now.metadata.next_row_id) == (1, 1)
    assert len(now.scan().to_arrow()) == 1
    older = contract([*COLUMNS, TEXT | {"name": "x"}])
    assert "asks for format version 2" in evolve.apply_pending(catalog, older, run_id="r").summary()
    with pytest.raises(RefusedError, match=r"version 3 can't become one of version 2\. Write to a new table name"):
        evolve.decide(catalog, older, ReviewDecision(approve=True, who="ann", why="yes", run_id="r"))
    assert catalog.load_table("ns.t").metadata_location == now.metadata_location


def test_another_unit_waits_for_a_review_and_begins_a_column_though_the_type_is_the_same(catalog):
    def timed(unit: str | None) -> Contract:
        return contract([ID, {"name": "n", "type": "long", "unit": unit}], value={"format": "avro"})

    fill(made(catalog, timed(None)), id=1, n=2)
    assert evolve.apply_pending(catalog, timed("millis"), run_id="r").review is None
    now = catalog.load_table("ns.t")
    assert (resolve_active_contract(now, timed("micros")).column("n").unit, types(catalog)["n"]) == ("millis", "long")
    found = evolve.apply_pending(catalog, timed("micros"), run_id="r")
    assert (found.review, [c.kind for c in found.changes]) == ("open", ["change_type"])
    assert resolve_active_contract(catalog.load_table("ns.t"), timed("micros")).column("n").unit == "millis"
    evolve.decide(catalog, timed("micros"), ReviewDecision(approve=True, who="ann", why="yes", run_id="r"))
    assert types(catalog) == {"id": "long", "n": "long", "n_before_1": "long"}
    (row,) = catalog.load_table("ns.t").scan().to_arrow().to_pylist()
    assert (row["n"], row["n_before_1"]) == (None, 2)
    keyed = timed("micros").model_copy(update={"mode": "upsert", "identifier": ("n",)})
    assert "Column n is part of the key" in str(apply.find_obstacle(now, keyed, timed("nanos"), found.changes))


def test_a_key_that_is_read_otherwise_waits_for_a_person_who_knows_that_it_is_the_same(catalog):
    before = made(catalog, contract(**KEYED))
    asked = contract([{**ID, "source": "elsewhere"}, *COLUMNS[1:]], **KEYED)
    found = evolve.apply_pending(catalog, asked, run_id="r")
    assert (found.review, found.due) == ("open", False)
    assert "reads the key id differently (source)" in found.summary()
    assert resolve_active_contract(catalog.load_table("ns.t"), asked).column("id").source == "id"
    evolve.decide(catalog, asked, ReviewDecision(approve=True, who="ann", why="the same ids", run_id="r"))
    now = catalog.load_table("ns.t")
    assert resolve_active_contract(now, asked).column("id").source == "elsewhere"
    assert now.schema() == before.schema()


def test_what_a_column_hides_is_shown_to_nobody_by_one_edit(catalog):
    before = made(catalog, contract())
    asked = contract(column(2, mask=None))
    found = evolve.apply_pending(catalog, asked, run_id="r")
    assert (found.review, found.due) == ("open", False)
    assert "changes the mask of column s: removes sha256, so that its values can be read" in found.summary()
    assert resolve_active_contract(catalog.load_table("ns.t"), asked).column("s").mask == "sha256"
    evolve.decide(catalog, asked, ReviewDecision(approve=True, who="ann", why="it is public", run_id="r"))
    now = catalog.load_table("ns.t")
    assert resolve_active_contract(now, asked).column("s").mask is None
    assert now.schema() == before.schema()
    # To hide it again needs nobody.
    found = evolve.apply_pending(catalog, contract(), run_id="r")
    assert ([c.kind for c in found.changes], found.review) == ([READ], None)
    assert resolve_active_contract(catalog.load_table("ns.t"), asked).column("s").mask == "sha256"


def test_nor_by_a_second_column_of_the_same_field(catalog):
    before = made(catalog, contract())
    columns = [*COLUMNS, {"name": "clear", "type": "string", "source": "s"}]
    found = evolve.apply_pending(catalog, contract(columns), run_id="r")
    assert (found.review, found.due) == ("open", False)
    assert "adds column clear, which reads field s that column s masks" in found.summary()
    assert catalog.load_table("ns.t").metadata_location == before.metadata_location
    ignoring = contract(columns, schema_policy={"change_mask": "ignore"})
    assert not evolve.apply_pending(catalog, ignoring, run_id="r").due
    assert catalog.load_table("ns.t").metadata_location == before.metadata_location
    evolve.decide(catalog, contract(columns), ReviewDecision(approve=True, who="ann", why="it is public", run_id="r"))
    assert "clear" in types(catalog)


def test_a_column_that_shows_what_is_hidden_by_way_of_another_one_can_not_be_ignored(catalog):
    shown = {"name": "shown", "type": "string", "expression": "lower(other)"}
    other = {"name": "other", "type": "string"}
    before = made(catalog, contract([*COLUMNS, other, shown]))
    asked = contract(
        [*COLUMNS, {**other, "source": "s", "mask": "sha256"}, shown], schema_policy={"change_mask": "ignore"}
    )
    with pytest.raises(
        SchemaChangeError,
        match=r"(?s)column shown comes to read field s that column s masks.*table ns\.t.*Mask shown, or",
    ):
        evolve.apply_pending(catalog, asked, run_id="r")
    assert catalog.load_table("ns.t").metadata_location == before.metadata_location


def test_many_changes_are_one_commit_and_go_back_by_another(catalog):
    made(catalog, contract())
    policy = {"schema_policy": {k: "auto" for k in KINDS if k not in ("change_key", "change_type", "upgrade_format")}}
    new = contract(
        [
            {"name": "x", "type": "decimal(9, 2)", "doc": "new"},
            {**COLUMNS[3], "type": "struct<at: list<struct<x: long>>, city: string, zip: int>"},
            {**COLUMNS[1], "type": "long", "required": False},
            {**ID, "name": "key", "source": "id", "renamed_from": "id"},
        ],
        partition_by=["truncate(10, key)"],
        **policy,
    )
    count = len(catalog.load_table("ns.t").metadata.metadata_log)
    evolve.apply_pending(catalog, new, run_id="r")
    table = catalog.load_table("ns.t")
    assert len(table.metadata.metadata_log) == count + 1
    assert list(types(catalog)) == ["x", "place", "n", "key"]
    assert [(f.name, str(f.transform)) for f in table.spec().fields] == [("key_trunc", "truncate[10]")]
    assert "write.distribution-mode" not in table.properties
    # What a partition stood on can't be dropped, as old files need it; another number of the same kind is fine.
    with pytest.raises(SchemaChangeError, match="Column key partitions"):
        evolve.apply_pending(
            catalog, contract([c.model_dump(mode="json") for c in new.columns[:3]], **policy), run_id="r"
        )
    wider = Contract.model_validate(
        {**new.model_dump(mode="json", exclude_unset=True), "partition_by": ["truncate(20, key)"]}
    )
    evolve.apply_pending(catalog, wider, run_id="r")
    table = catalog.load_table("ns.t")
    assert [(f.name, str(f.transform)) for f in table.spec().fields] == [("key_trunc_20", "truncate[20]")]


def test_a_table_that_becomes_wide_keeps_the_metrics_that_it_is_pruned_by(catalog):
    def measured():
        stem = "write.metadata.metrics.column."
        return {n.removeprefix(stem) for n in catalog.load_table("ns.t").properties if n.startswith(stem)}

    policy = {"schema_policy": {"rename_column": "auto", "drop_column": "auto"}, **KEYED}
    made(catalog, contract([ID], **policy))
    assert measured() == set()
    more = [{"name": f"c{i}", "type": "long"} for i in range(100)]
    evolve.apply_pending(catalog, contract([*more, ID], **policy), run_id="r")
    assert measured() == {"id", *KAFKA_COLUMNS}
    key = {**ID, "name": "key", "source": "id", "renamed_from": "id"}
    evolve.apply_pending(catalog, contract([*more, key], **{**policy, "identifier": ["key"]}), run_id="r")
    assert measured() == {"key", *KAFKA_COLUMNS}
    evolve.apply_pending(catalog, contract([more[0], key], **{**policy, "identifier": ["key"]}), run_id="r")
    assert measured() == set()


def test_the_order_of_fields_inside_a_column_needs_nobody(catalog):
    made(catalog, contract())
    table = catalog.load_table("ns.t")
    new = contract(column(3, type="struct<at: list<struct<x: int>>, city: string>"))
    found = evolve.apply_pending(catalog, new, run_id="r")
    assert ([c.kind for c in found.changes], found.review) == (["reorder"], None)
    now = catalog.load_table("ns.t")
    assert (ContractVersion.from_table(now).version, now.schema().fields) == (2, table.schema().fields)
    assert shape_id(resolve_active_contract(now, new)) == shape_id(new)


def test_of_two_planners_one_changes_the_table_and_the_other_finds_it_changed(catalog):
    made(catalog, contract())
    new = contract([*COLUMNS, {"name": "x", "type": "date"}])
    seen = evolve.find_pending_change(catalog, catalog.load_table("ns.t"), new)
    evolve.apply_pending(catalog, new, run_id="one")
    told = ContractVersion(2, shape_id(new), {})
    with pytest.raises(CommitFailedException):
        apply.commit_change(catalog, seen, told, "two")
    assert evolve.apply_pending(catalog, new, seen, run_id="two").changes == ()
    assert [r.version for r in schemas_table.read_schema_rows(catalog, "ns.t")] == [1, 2]


def test_a_batch_that_lands_first_moves_the_offsets_that_the_version_begins_at(catalog):
    table = made(catalog, contract())
    new = contract([*COLUMNS, {"name": "x", "type": "date"}])
    seen = evolve.find_pending_change(catalog, table, new)
    fill(catalog.load_table("ns.t"), id=1, n=1)
    head = catalog.load_table("ns.t").metadata.current_snapshot_id
    evolve.apply_pending(catalog, new, seen, run_id="r")
    now = catalog.load_table("ns.t")
    assert ContractVersion.from_table(now).snapshot_id == now.current_snapshot().parent_snapshot_id == head


@pytest.mark.parametrize(
    "change",
    [
        {"columns": [ID, {**TEXT, "source": "other"}]},
        {"columns": [ID, {**TEXT, "mask": "redact"}]},
        {"columns": [ID, TEXT], "where": "id > 1"},
        {"columns": [ID, TEXT, {"name": "x", "type": "date"}]},
    ],
    ids=["source", "mask", "where", "and back"],
)
def test_a_batch_that_was_read_by_the_contract_of_before_does_not_land(catalog, change):
    """Though the schema is the same, or the same again."""
    made(catalog, contract([ID, TEXT]))
    batch = Batch("t", "id", 1, {0: OffsetRange(0, 1)}, {0: 1})
    with BranchWrite(Context(None, catalog, "lake", {}, "zombie"), ("ns", "t"), batch) as attempt:
        fill(catalog.load_table("ns.t"), branch=attempt.branch, id=1, s="plain")
        evolve.apply_pending(catalog, contract(**change), run_id="r")
        if len(change["columns"]) == 3:
            evolve.apply_pending(catalog, contract([ID, TEXT]), run_id="r")
            evolve.decide(
                catalog, contract([ID, TEXT]), ReviewDecision(approve=True, who="ann", why="back", run_id="r")
            )
            assert catalog.load_table("ns.t").schema().schema_id == attempt.base.schema().schema_id
        with pytest.raises(FencedError, match="Main moved"):
            attempt.fast_forward_main()
    now = catalog.load_table("ns.t")
    assert snapshots.summary(now.current_snapshot())["sluice.step"] == "contract"
    assert now.scan().to_arrow().num_rows == 0


def test_a_column_is_renamed_to_no_name_that_is_there(catalog):
    mail, contact = {"name": "mail", "type": "string"}, {"name": "contact", "type": "string"}
    made(catalog, contract([ID, mail, contact]))
    at_once = {"schema_policy": {"drop_column": "auto", "rename_column": "auto"}}
    new = contract([ID, {**contact, "source": "mail", "renamed_from": "mail"}], **at_once)
    with pytest.raises(SchemaChangeError, match="already has a column of the new name: mail to contact"):
        evolve.apply_pending(catalog, new, run_id="r")
    # Where the other one is gone first, it is.
    evolve.apply_pending(catalog, contract([ID, mail], **at_once), run_id="r")
    evolve.apply_pending(catalog, new, run_id="r")
    assert types(catalog) == {"id": "long", "contact": "string"}


def test_a_version_that_nobody_lived_to_write_down_is_told_and_made_up_for(catalog, monkeypatch):
    made(catalog, contract())
    second = contract([*COLUMNS, {"name": "x", "type": "date"}])

    def die(_: Any, rows: Any) -> None:
        if rows:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(schemas_table, "append_rows", die)
        with pytest.raises(KeyboardInterrupt):
            evolve.apply_pending(catalog, second, run_id="killed")
    assert "x" in types(catalog)
    assert [r.version for r in schemas_table.read_schema_rows(catalog, "ns.t")] == [1]
    assert [r.version for r in evolve.list_versions(catalog, second)] == [1, 2]
    assert not evolve.apply_pending(catalog, second, run_id="next").due
    evolve.apply_pending(
        catalog, contract([*COLUMNS, {"name": "x", "type": "date"}, {"name": "y", "type": "date"}]), run_id="n"
    )
    assert [r.version for r in schemas_table.read_schema_rows(catalog, "ns.t")] == [1, 2, 3]


def test_an_approval_that_was_not_carried_out_is_by_the_next_run(catalog, monkeypatch):
    made(catalog, contract())
    new = asks("drop_column", "review")
    evolve.apply_pending(catalog, new, run_id="r")
    with monkeypatch.context() as patch:
        patch.setattr(apply, "commit_change", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            evolve.decide(catalog, new, ReviewDecision(approve=True, who="ann", why="not needed", run_id="by hand"))
    assert "s" in types(catalog)
    evolve.apply_pending(catalog, new, run_id="next")
    assert "s" not in types(catalog)
    told = ContractVersion.from_table(catalog.load_table("ns.t"))
    assert (told.who, told.why) == ("ann", "not needed")
    # The way back is another change, which is asked anew, and so is the same change after that.
    evolve.apply_pending(catalog, contract(), run_id="back")
    assert "s" in types(catalog)
    assert evolve.apply_pending(catalog, new, run_id="again").review == "open"


def test_an_answer_is_given_once_to_what_was_shown_and_with_a_reason(catalog):
    made(catalog, contract())
    new = asks("drop_column", "review")
    with pytest.raises(RefusedError, match="has no change to review"):
        review_schema.load_review(catalog, contract())
    shown = review_schema.load_review(catalog, new)  # no run has opened it yet
    assert shown.opened is None
    evolve.apply_pending(catalog, new, run_id="r")
    lines = review_schema.load_review(catalog, new).lines()
    assert any("drops column s (string)" in line for line in lines)
    assert any(line.startswith("approve   s: existing values are lost to queries") for line in lines)
    about: dict[str, Any] = {"who": "ann", "run_id": "by hand"}
    with pytest.raises(RefusedError, match="No reason"):
        evolve.decide(catalog, new, ReviewDecision(approve=False, why="", **about))
    with pytest.raises(RefusedError, match="has changed since"):
        evolve.decide(catalog, new, ReviewDecision(approve=True, why="yes", change_id="other", **about))
    evolve.decide(catalog, new, ReviewDecision(approve=False, why="no", change_id=shown.change.change_id, **about))
    assert evolve.apply_pending(catalog, new, run_id="r").review == "rejected"
    again = review_schema.load_review(catalog, new, include_rejected=True)
    assert again.lines()[0].startswith("ns.t: version 2 of its contract was rejected by ann at 2")
    assert again.lines()[0].endswith(" UTC (no)") and again.change.state == "rejected"
    assert str(again.change.summary()).startswith("rejected by ann at ")
    assert respond(catalog, new, approve=False).lines == [
        "ns.t: it stays rejected. Take the change out of the contract file."
    ]
    with pytest.raises(RefusedError, match="It was rejected"):
        evolve.decide(catalog, new, ReviewDecision(approve=False, why="no", **about))
    evolve.decide(catalog, new, ReviewDecision(approve=True, why="after all", **about))
    assert [str(r.state) for r in evolve.list_versions(catalog, new)] == [
        "applied", "review", "rejected", "approved", "applied",
    ]  # fmt: skip
    assert "ann: after all" in "\n".join(review_schema.list_versions(catalog, new))


HOSTILE = "field '\\x1b[31m\\n# <script>{{ 1 }}</script>\\u202e' is no number"


def rejected(catalog: Any, file: Contract, *records: tuple[int, int, str | None, str], at: datetime) -> Any:
    """Records in quarantine: batch, offset, field and error."""
    table = tables.ensure_quarantine(catalog, file)
    about = {"_kafka_topic": "t", "_kafka_partition": 0, "error_class": "malformed", "quarantined_at": at}
    about |= {"key": b"k", "value": b"secret", "headers": [{"key": "h", "value": b"x"}]}
    rows = [
        about | {"batch_seq": seq, "_kafka_offset": offset, "field": name, "error": error}
        for seq, offset, name, error in records
    ]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    return table


def errors(catalog: Any, file: Contract) -> dict[int, str | None]:
    rows = catalog.load_table(table_names.quarantine(file)).scan().to_arrow().to_pylist()
    assert {(r["value"], r["headers"][0]["value"]) for r in rows} == {(b"secret", b"x")}
    assert len({r["_kafka_offset"] for r in rows}) == len(rows)
    return {r["_kafka_offset"]: r["error"] for r in rows}


def test_a_review_shows_a_few_of_the_records_that_were_set_apart_since_and_no_values(catalog):
    made(catalog, contract())
    new = contract(column(1, type="string"))
    rejected(catalog, new, (1, 5, "n", "from before"), at=datetime.now(UTC))
    evolve.apply_pending(catalog, new, run_id="r")
    many = [(3, 100 + i, "n", "no int") for i in range(9)]
    rejected(catalog, new, *many, (2, 7, None, HOSTILE), at=datetime.now(UTC))
    shown = review_schema.load_review(catalog, new).lines()
    sample = [line for line in shown if line.startswith("sample")]
    # One of each kind of error first, then the newest.
    assert sample[0] == "sample    t, partition 0, offset 108: malformed in field n: no int"
    assert sample[1].startswith("sample    t, partition 0, offset 7: malformed: field '\\x1b[31m\\n# <script>{{ 1 }}")
    assert [line.split(":")[0] for line in sample[2:]] == [
        f"sample    t, partition 0, offset {o}" for o in (107, 106, 105)
    ]
    text = "\n".join(shown)
    assert "10 records quarantined" in text
    assert "secret" not in text and "from before" not in text
    assert all(line.isprintable() for line in shown)


def test_of_a_review_that_kept_nothing_out_the_newest_rows_are_shown(catalog):
    file = contract()
    table = made(catalog, file)
    evolve.apply_pending(catalog, asks("drop_column", "review"), run_id="r")
    batch = Batch("t", "id", 1, {0: OffsetRange(0, 9)}, {0: 9})
    arrow = table.schema().as_arrow()
    rows = [{"id": i, "n": i, "_kafka_topic": "t", "_kafka_partition": 0, "_kafka_offset": i} for i in range(9)]
    table.append(pa.Table.from_pylist(rows, schema=arrow), snapshot_properties={STEP: "publish", **batch.properties()})
    lines = review_schema.load_review(catalog, asks("drop_column", "review")).lines()
    sample = [line for line in lines if line.startswith("published")]
    assert sample == [f"published t, partition 0, offset {o}" for o in (8, 7, 6, 5, 4)]
    assert any("the table was empty before them, so they can't be republished" in line for line in lines)
    # The table held nothing when the review began: that is not the same as nothing having been published.
    with pytest.raises(RefusedError, match="was empty when the review began"):
        respond(catalog, asks("drop_column", "review"), approve=True, republish=True)
    assert ContractVersion.from_table(catalog.load_table("ns.t")).version == 1, "refused before anything is decided"
    respond(catalog, asks("drop_column", "review"), approve=True)
    assert "s" not in types(catalog)


def test_republishing_what_was_not_published_is_nothing(catalog):
    made(catalog, contract())
    new = asks("drop_column", "review")
    evolve.apply_pending(catalog, new, run_id="r")
    lines = respond(catalog, new, approve=True, republish=True).lines
    assert lines[-1] == "Nothing was published since the review began."


def respond(catalog: Any, file: Contract, **answer: Any) -> review_schema.ReviewResult:
    known = Contracts(Path(), {file.table: file}, {}, {})
    republish = answer.pop("republish", False)
    decision = ReviewDecision(**{"who": "ann", "why": "no\nway", "run_id": "x", **answer})
    return review_schema.answer_review(catalog, known, "ns.t", decision, republish=republish)


def test_records_that_a_rejected_change_is_about_say_so(catalog):
    made(catalog, contract())
    new = contract(column(1, type="string"))
    rejected(catalog, new, (1, 1, "n", "no int"), (2, 2, "n", "no int"), at=datetime.now(UTC))
    evolve.apply_pending(catalog, new, run_id="r")
    rejected(
        catalog, new, (2, 3, "n", "no int"), (2, 4, "s", "no text"), (2, 5, None, "no JSON"), (3, 6, "n.x", None),
        at=datetime.now(UTC),
    )  # fmt: skip
    assert respond(catalog, new, approve=False).lines[-1] == "2 quarantined records name the rejection in their error."
    told = "its change (changes the type of column n: int to string) was rejected by ann: no\nway"
    expected = {1: "no int", 2: "no int", 3: f"no int; {told}", 4: "no text", 5: "no JSON", 6: told}
    assert errors(catalog, new) == expected
    # Once more changes nothing; and the same is known for those that come later, until it is approved after all.
    table = catalog.load_table("ns.t")
    refused = rejected_change.list_rejected_changes(catalog, table, contract())
    head = catalog.load_table(table_names.quarantine(new)).metadata.current_snapshot_id
    assert rejected_change.annotate_quarantine(catalog, contract(), refused, datetime.fromtimestamp(0, UTC)) == (4, 0)
    told_all = errors(catalog, new)
    assert told_all == expected | dict.fromkeys((1, 2), f"no int; {told}")
    head = catalog.load_table(table_names.quarantine(new)).metadata.current_snapshot_id
    assert rejected_change.annotate_quarantine(catalog, contract(), refused, datetime.fromtimestamp(0, UTC)) == (4, 0)
    assert catalog.load_table(table_names.quarantine(new)).metadata.current_snapshot_id == head
    respond(catalog, new, approve=True, why="after all")
    now = catalog.load_table("ns.t")
    assert rejected_change.list_rejected_changes(catalog, now, resolve_active_contract(now, new)) == []


def test_the_fields_that_a_change_is_about_are_known_by_all_that_the_quarantine_calls_them() -> None:
    """Of an envelope a decoder says where in it the field stands, and what is found in the row says its name."""
    lsn = {"name": "at", "type": "int", "source": "$source.lsn"}
    key = {"name": "k", "type": "int", "source": "$key.id"}
    old = [{"name": "n", "type": "int"}, {"name": "m", "type": "int", "source": "place.m"}, lsn, key]
    known = {
        "n": ("n", "after.n", "before.n", "n.x", "after.n[]"),
        "m": ("m", "place.m", "after.place.m"),
        "at": ("at", "source.lsn"),
        "k": ("k", "id", "$key.id"),
    }
    both = [
        contract(c, cdc={"format": "debezium"}, key={"format": "json"})
        for c in (old, [{**c, "type": "string"} for c in old])
    ]
    changes = compare_contracts(*both)
    for name, fields in known.items():
        about = rejected_change.changed_fields_pattern(*both, [c for c in changes if c.column == name])
        told = {
            f for each in known.values() for f in (*each, "o", "after", "after.o", "nn") if re.search(about or "", f)
        }
        assert told == set(fields)


def test_a_batch_too_large_to_be_rewritten_is_left_and_one_written_meanwhile_is_read_again(catalog, monkeypatch):
    made(catalog, contract())
    new = contract(column(1, type="string"))
    evolve.apply_pending(catalog, new, run_id="r")
    table = rejected(catalog, new, (2, 3, "n", "no int"), at=datetime.now(UTC))
    refused = [rejected_change.RejectedChange("was rejected", "^n$")]
    with monkeypatch.context() as patch:
        patch.setattr(rejected_change, "MAX_BATCH_BYTES", 1)
        assert rejected_change.annotate_quarantine(catalog, new, refused, datetime.fromtimestamp(0, UTC)) == (0, 1)
    assert errors(catalog, new) == {3: "no int"}
    others = iter([(2, 4, "n", "no int")])

    def meanwhile(seen: Any) -> Any:
        for record in others:
            rejected(catalog, new, record, at=datetime.now(UTC))
        return without_commit_retries(seen)

    without_commit_retries = compat.without_commit_retries
    monkeypatch.setattr(compat, "without_commit_retries", meanwhile)
    assert rejected_change.annotate_quarantine(catalog, new, refused, datetime.fromtimestamp(0, UTC)) == (2, 0)
    assert set(errors(catalog, new).values()) == {"no int; was rejected"}
    assert table.refresh().metadata.current_snapshot_id


def test_a_renamed_and_widened_key_takes_the_memory_of_deletes_along(catalog):
    keyed = contract(column(0, type="int"), **KEYED)
    made(catalog, keyed)
    deletes_table.ensure_deletes_table(catalog, keyed)
    new = contract(
        [{"name": "key", "type": "long", "source": "id", "renamed_from": "id"}, *COLUMNS[1:]],
        mode="upsert", identifier=["key"], schema_policy={"rename_column": "auto"},
    )  # fmt: skip
    evolve.apply_pending(catalog, new, run_id="r")
    now = catalog.load_table("ns.t")
    assert (now.schema().identifier_field_names(), types(catalog)["key"]) == ({"key"}, "long")
    memory = deletes_table.ensure_deletes_table(catalog, resolve_active_contract(now, new))
    assert (memory.schema().fields[0].name, str(memory.schema().fields[0].field_type)) == ("key", "long")


@pytest.mark.parametrize(
    ("theirs", "added", "told"),
    [
        (("note", "int"), "string", r"has a column note \(int\) that is not in its contract"),
        (("Note", "string"), "string", r"has a column Note \(string\) that is not in its contract"),
        (("note", "string"), "string", None),
        (None, "string", "is the name of a partition field of the table, or was"),
    ],
)
def test_a_column_can_not_take_a_name_that_the_table_has_for_something_else(catalog, theirs, added, told):
    """Applied, it could not be taken back: the table would never again be what a contract says."""
    name = theirs[0].lower() if theirs else "day_at"
    plain = [ID, {"name": "at", "type": "timestamptz"}]
    table = made(catalog, contract(plain))
    if theirs:
        with table.update_schema() as update:
            update.add_column(theirs[0], {"int": IntegerType(), "string": StringType()}[theirs[1]])
    else:
        with table.update_spec() as spec:
            spec.add_field("at", "day", name)
        with catalog.load_table("ns.t").update_spec() as spec:
            spec.remove_field(name)
    wider = contract([*plain, {"name": name, "type": added}])
    if told is None:
        assert evolve.apply_pending(catalog, wider, run_id="r").changes
    else:
        for _ in range(2):
            with pytest.raises(SchemaChangeError, match=told):
                evolve.apply_pending(catalog, wider, run_id="r")
        assert ContractVersion.from_table(catalog.load_table("ns.t")).version == 1
        plain = contract(plain)
        assert not evolve.apply_pending(catalog, plain, run_id="r").changes


def test_properties_that_a_contract_comes_to_name_are_set(catalog):
    made(catalog, contract())
    mine = {"write.merge.mode": "copy-on-write"}
    for file in (contract(properties=mine), contract([*COLUMNS[:2], *COLUMNS[3:]], properties=mine)):
        evolve.apply_pending(catalog, file, run_id="r")
        now = catalog.load_table("ns.t")
        assert now.properties["write.merge.mode"] == "copy-on-write"
    assert ContractVersion.from_table(now).version == 1  # to drop a column waits for an answer


def documents(catalog) -> dict[str, str]:
    fields = catalog.load_table("ns.t").schema().fields
    return {f.name: f.doc for f in fields if f.doc and not f.name.startswith("_kafka")}


def promises(catalog) -> dict[str, str]:
    known = catalog.load_table("ns.t").properties
    told = {n.removeprefix("sluice."): v for n, v in known.items() if n.startswith("sluice.")}
    return {n: v for n, v in told.items() if n not in ("contract", "slices-since")} | {
        n: v for n, v in known.items() if n == "comment"
    }


def test_a_table_says_what_its_contract_promises_and_is_changed_only_where_it_differs(catalog, monkeypatch):
    def applied(file: Contract) -> bool:
        """Whether a run has written metadata, and the next one has not."""
        before = catalog.load_table("ns.t").metadata_location
        evolve.apply_pending(catalog, file, run_id="r")
        now = catalog.load_table("ns.t").metadata_location
        evolve.apply_pending(catalog, file, run_id="r")
        assert catalog.load_table("ns.t").metadata_location == now
        return now != before

    table = made(catalog, contract(column(2, doc="what it says"), doc="All of ours", freshness="90s"))
    plain = {"owner": "me", "mode": "append", "deletes": "none", "contract-version": "1"}
    assert promises(catalog) == {**plain, "freshness": "90s", "comment": "All of ours"}
    assert documents(catalog) == {"s": "what it says"}
    # As before tables said it, and as others describe what the contract does not.
    with table.transaction() as transaction, transaction.update_schema() as update:
        update.update_column("n", doc="theirs")
        update.update_column("s", doc="another")
    with table.transaction() as transaction:
        transaction.remove_properties(*(f"sluice.{name}" for name in plain), "comment")
        transaction.set_properties({"x": "theirs", "sluice.freshness": "1h"})
    file = contract(column(2, doc="what it says"), doc="All of ours", freshness="15m", owner="you")
    snapshots_before = catalog.load_table("ns.t").metadata.snapshots
    assert applied(file) and not applied(file)
    assert promises(catalog) == {**plain, "owner": "you", "freshness": "15m", "comment": "All of ours"}
    assert documents(catalog) == {"n": "theirs", "s": "what it says"}
    assert catalog.load_table("ns.t").properties["x"] == "theirs"
    assert catalog.load_table("ns.t").metadata.snapshots == snapshots_before
    # A change of the shape tells its version in its own commit; while it waits, the texts of the file are told.
    monkeypatch.setenv("SLUICE_CONTRACT_URL", "https://docs.test/{table}#promise")
    wider = contract([*column(2, doc="what it says"), {"name": "x", "type": "date", "doc": "a day"}], freshness="2d")
    assert applied(wider)
    told = {**plain, "contract-version": "2", "freshness": "2d", "comment": "All of ours"}
    assert promises(catalog) == {**told, "contract-url": "https://docs.test/ns.t#promise"}
    assert documents(catalog) == {"n": "theirs", "s": "what it says", "x": "a day"}
    monkeypatch.delenv("SLUICE_CONTRACT_URL")  # where it is not set, nothing is known of it
    assert applied(contract(column(2), doc="Ours"))  # without a comment, and column x waits to be dropped
    assert evolve.find_pending_change(catalog, catalog.load_table("ns.t"), contract(column(2))).review == "open"
    del told["freshness"]
    assert promises(catalog) == {**told, "comment": "Ours", "contract-url": "https://docs.test/ns.t#promise"}
    assert documents(catalog) == {"n": "theirs", "s": "what it says", "x": "a day"}
    cleared = contract([*COLUMNS, {"name": "x", "type": "date", "doc": "a day"}], properties={"comment": "By hand"})
    assert applied(cleared) and promises(catalog)["comment"] == "By hand"
    assert documents(catalog) == {"n": "theirs", "x": "a day"}


def test_what_is_expected_of_a_column_holds_while_its_new_name_waits(catalog):
    expected = {"type": "expect_column_values_to_be_between", "max_value": 5, "severity": "block"}
    several = {"type": "expect_compound_columns_to_be_unique", "column_list": ["id", "m"]}
    table = made(catalog, contract(expectations=[{**expected, "column": "n"}]))
    renamed = column(1, name="m", source="n", renamed_from="n")
    file = contract(renamed, expectations=[{**expected, "column": "m"}, several])
    assert evolve.apply_pending(catalog, file, run_id="r").review == "open"
    held = resolve_active_contract(catalog.load_table("ns.t"), file)
    assert [(e.columns, e.severity) for e in held.expectations] == [(("n",), "block"), (("id", "n"), "warn")]
    assert table


def test_a_memory_of_deletes_is_of_one_table_not_of_its_name(catalog):
    keyed = contract(**KEYED)
    first = made(catalog, keyed)
    memory = deletes_table.ensure_deletes_table(catalog, keyed, first)
    assert deletes_table.load_deletes_table(catalog, keyed, first).metadata.table_uuid == memory.metadata.table_uuid
    with memory.transaction() as transaction:  # as older versions made it
        transaction.remove_properties(tables.TYPED_TABLE_UUID)
    assert deletes_table.load_deletes_table(catalog, keyed, first).metadata.table_uuid == memory.metadata.table_uuid
    catalog.drop_table("ns.t")
    other = contract(COLUMNS, mode="upsert", identifier=["n"])
    second = made(catalog, other)
    assert deletes_table.load_deletes_table(catalog, other, second) is None
    again = deletes_table.ensure_deletes_table(catalog, other, second)
    assert again.schema().identifier_field_names() == {"n"}
    assert again.metadata.table_uuid != memory.metadata.table_uuid
    # A driver that still holds the table of before takes nothing away.
    assert deletes_table.load_deletes_table(catalog, keyed, first) is None
    assert deletes_table.load_deletes_table(catalog, other, second).metadata.table_uuid == again.metadata.table_uuid


def test_a_table_that_other_hands_have_altered(catalog):
    table = made(catalog, contract())
    with table.update_schema() as update:
        update.add_column("theirs", table.schema().find_field("id").field_type)
    assert evolve.find_pending_change(catalog, catalog.load_table("ns.t"), contract()).changes == ()
    with catalog.load_table("ns.t").update_schema() as update:
        update.delete_column("s")
    with pytest.raises(SchemaChangeError, match="no column s"):
        evolve.apply_pending(catalog, contract(), run_id="r")


def test_a_table_that_does_not_know_its_contract_takes_the_file_for_it_if_it_fits(catalog):
    table = made(catalog, contract())
    with table.transaction() as transaction:
        transaction.remove_properties(CONTRACT_PROPERTY)
    with pytest.raises(SchemaChangeError, match="no column x"):
        evolve.apply_pending(catalog, contract([*COLUMNS, {"name": "x", "type": "date"}]), run_id="r")
    evolve.apply_pending(catalog, contract(), run_id="r")
    assert ContractVersion.from_table(catalog.load_table("ns.t")).id == shape_id(contract())
    with catalog.load_table("ns.t").transaction() as transaction:
        transaction.set_properties({CONTRACT_PROPERTY: json.dumps({"version": "?"})})
    with pytest.raises(SchemaChangeError, match="cannot be parsed"):
        evolve.apply_pending(catalog, contract(), run_id="r")


def test_an_answer_holds_for_the_table_that_it_was_given_for_not_for_another_of_its_name(catalog):
    new = asks("drop_column", "review")
    made(catalog, contract())
    evolve.apply_pending(catalog, new, run_id="r")
    evolve.decide(catalog, new, ReviewDecision(approve=True, who="ann", why="yes", run_id="by hand"))
    catalog.drop_table("ns.t")
    made(catalog, contract())
    assert evolve.apply_pending(catalog, new, run_id="r").review == "open"
    assert [(r.version, str(r.state)) for r in schemas_table.read_schema_rows(catalog, "ns.t")][-2:] == [
        (1, "applied"),
        (2, "review"),
    ]


def test_the_command_line_lists_shows_and_answers(tmp_path, monkeypatch, capsys, catalog):
    folder = tmp_path / "contracts"
    folder.mkdir()
    monkeypatch.setenv("SLUICE_CONTRACTS", str(folder))
    for name, value in (
        ("TYPE", "sql"),
        ("URI", f"sqlite:///{tmp_path}/catalog.db"),
        ("WAREHOUSE", f"file://{tmp_path}/w"),
    ):
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)

    def sluice(*words: str) -> tuple[int, str]:
        code = main.main(words)
        told = capsys.readouterr()
        return code, told.out + told.err

    made(catalog, contract())
    new = asks("drop_column", "review")
    (folder / "t.yaml").write_text(yaml.safe_dump(new.model_dump(mode="json", exclude_unset=True)))
    evolve.apply_pending(catalog, new, run_id="r")
    code, told = sluice("schema", "ns.t")
    assert code == 0
    assert "version 1  applied" in told
    assert "version 2  review" in told
    assert "drops column s (string)" in sluice("contract", "check")[1]
    code, told = sluice("schema", "approve", "ns.t", "--why", "not used")
    assert code == 0
    assert "drops column s (string) (drop_column)" in told
    assert "Nothing was changed" in told
    code, told = sluice("schema", "approve", "ns.t", "--yes")
    assert (code, "--yes needs --why" in told) == (64, True)
    code, told = sluice("schema", "approve", "ns.t", "--why", "not used", "--yes")
    assert (code, "changed to version 2" in told) == (0, True)
    assert "s" not in types(catalog)
    assert "not used" in sluice("schema", "ns.t")[1]
    assert sluice("schema", "reject", "ns.t", "--why", "late", "--yes")[0] == 3


def test_status_tells_of_a_review():
    table = TableStatus("ns.t", "g", "append", "me", schema="under review: drops column s")
    assert "! ns.t: schema: under review: drops column s" in as_text(Status(datetime.now(UTC), [table]), details=False)
