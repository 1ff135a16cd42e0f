"""Contract changes between batches are applied, wait for review or are rejected, and can be rolled back."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import pytest

from sluice.batch import Batch
from sluice.errors import FencedError, RefusedError
from sluice.evolve import evolve
from sluice.evolve.pending_change import ReviewDecision
from sluice.formats import masks
from sluice.iceberg import cursor, table_names
from sluice.ingest.branch_write import BranchWrite
from sluice.ingest.stage import stage
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.slices import Origin
from sluice.operate import review_schema, rollback
from sluice.operate.operator_input import Decision
from sluice.operate.rollback_target import RestorePoint
from tests.support import runbook
from tests.support.backfills import backfill_request, run_backfill
from tests.support.lake import Lake
from tests.support.thorough import usual

pytestmark = pytest.mark.spark

KEY = {"name": "id", "type": "string", "source": "$key"}
TOLERANT = {"errors": {"max_ratio": 1.0, "raw": "keep"}}  # raw: a review brings it again from there


def changed(it: Lake, table: str, **fields: Any) -> None:
    """Write the table's contract anew."""
    it.contract(table=table, **{**TOLERANT, **fields})


def values(it: Lake, table: str, *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(r[n] for n in names) for r in it.rows(table))


def columns_of(it: Lake, table: str) -> dict[str, str]:
    return {f.name: str(f.field_type) for f in it.catalog.load_table(table).schema().fields if f.name[0] != "_"}


def states(it: Lake, table: str) -> list[tuple[int, str]]:
    return [(r.version, str(r.state)) for r in evolve.list_versions(it.catalog, it.contract_of(table))]


def test_safe_changes_come_into_force_between_batches_and_what_was_read_by_the_old_contract_is_refused(lake):
    it = lake()
    it.create_topic(1)
    kept, folded = f"db.{it.group}_a", f"db.{it.group}_u"
    old = [
        KEY,
        {"name": "n", "type": "int", "required": True},
        {"name": "price", "type": "decimal(6, 2)"},
        {"name": "place", "type": "struct<city: string>"},
    ]
    for name, mode in ((kept, "append"), (folded, "upsert")):
        changed(it, name, mode=mode, columns=old)
    it.send([(0, "a", {"n": 1, "price": 1.5, "place": {"city": "X"}}), (0, "b", {"n": 2}), (0, "big", {"n": 3 << 31})])
    assert {o["state"] for o in it.run().values()} == {"published"}
    before = it.catalog.load_table(kept)
    it.send(
        [
            (0, "a", {"n": 5 << 31, "price": 12345678.25, "place": {"zip": 7, "city": "Y"}, "extra": [{"a": 1}]}),
            (0, "c", {"place": {"zip": 8}}),
        ]
    )
    it.plan()  # frozen while the old contract is in force

    new = [
        KEY,
        {"name": "extra", "type": "list<struct<a: int>>", "doc": "what is new"},
        {"name": "price", "type": "decimal(12, 2)"},
        {"name": "n", "type": "long"},
        {"name": "place", "type": "struct<zip: long, city: string>"},
    ]
    for name, mode in ((kept, "append"), (folded, "upsert")):
        changed(it, name, mode=mode, columns=new, schema_policy={"change_nested": "auto"})
    # A driver that has read and written by the old contract, and fast-forwards main late.
    attempt = BranchWrite(it.context("zombie"), table_names.typed(it.contract_of(kept)), Batch(it.topic, "", 2, {}, {}))
    with attempt, it.context().session({}) as session:
        session.table(table_names.spark_name("lake", attempt.identifier)).writeTo(attempt.spark_branch).append()
        it.plan()  # applies the change; killed before anything is published
        with pytest.raises(FencedError, match="schema was changed"):
            attempt.fast_forward_main()
    head = it.catalog.load_table(kept).current_snapshot()
    assert head.parent_snapshot_id == before.metadata.current_snapshot_id  # the change's own, which has no rows
    assert {o["state"] for o in it.run().values()} == {"published"}

    for name in (kept, folded):
        made = it.catalog.load_table(name).schema()
        assert [f.name for f in made.fields][:5] == ["id", "extra", "price", "n", "place"]
        assert made.find_field("extra").doc == "what is new"
        rows = {r["id"]: r for r in it.rows(name) if r["_kafka_offset"] != 0}
        assert set(rows) == {"a", "b", "c"}
        assert (rows["a"]["n"], rows["a"]["price"], rows["a"]["extra"]) == (5 << 31, Decimal("12345678.25"), [{"a": 1}])
        assert rows["a"]["place"] == {"zip": 7, "city": "Y"}
        assert (rows["c"]["n"], rows["c"]["place"]) == (None, {"zip": 8, "city": None})
        assert [r["value"] for r in it.quarantined(name)] == [json.dumps({"n": 3 << 31}).encode()]
        (_, second) = evolve.list_versions(it.catalog, it.contract_of(name))
        assert second.snapshot_id in {s.snapshot_id for s in it.catalog.load_table(name).metadata.snapshots}
        assert json.loads(second.offsets) == {it.topic: {"0": 3}}
        assert set(second.kinds) == {"add_column", "widen", "make_optional", "reorder", "change_nested"}
    old_row = next(r for r in it.rows(kept) if r["_kafka_offset"] == 0)
    assert (old_row["n"], old_row["extra"], old_row["place"]) == (1, None, {"city": "X", "zip": None})

    # A rollback to before the change keeps the new schema, and publishes again by it.
    whole = values(it, kept, "_kafka_offset", "id", "n", "price")
    ledger = Ledger(it.catalog)
    found = rollback.preview_rollback(
        kept, it.contracts, it.catalog, ledger, RestorePoint(snapshot_id=second_base(it, kept))
    )
    rollback.roll_back(found, it.catalog, ledger, Decision("ann", "to see", "by hand"))
    assert len(it.rows(kept)) == 2
    assert it.run()[kept]["state"] == "published"
    assert values(it, kept, "_kafka_offset", "id", "n", "price") == whole


def second_base(it: Lake, table: str) -> int:
    """The table's head when its second version came into force."""
    (found,) = [
        r for r in evolve.list_versions(it.catalog, it.contract_of(table)) if r.version == 2 and r.state == "applied"
    ]
    assert found.snapshot_id is not None
    return found.snapshot_id


def test_under_review_a_table_goes_on_by_the_contract_in_force_and_either_answer_loses_nothing(lake):
    it = lake()
    it.create_topic(1)
    yes, no = f"db.{it.group}_yes", f"db.{it.group}_no"
    old = [KEY, {"name": "n", "type": "int"}, {"name": "text", "type": "string"}]
    new = [{**KEY, "name": "customer", "renamed_from": "id"}, {"name": "n", "type": "string"}]
    for name in (yes, no):
        changed(it, name, mode="upsert", columns=old, errors={})
    it.send([(0, "a", {"n": 1, "text": "x"}), (0, "gone", {"n": 1}), (0, "gone", None)])
    assert {o["state"] for o in it.run().values()} == {"published"}

    for name in (yes, no):
        changed(it, name, mode="upsert", columns=new, identifier=["customer"], errors={})
    it.send([(0, "b", {"n": 2, "text": "y"}), (0, "later", {"n": "two", "text": "z"})])
    assert {o["state"] for o in it.run().values()} == {"published"}
    lines = it.plan().lines()
    for name in (yes, no):
        (line,) = [each for each in lines if each.startswith(f"schema  {name}: under review: ")]
        for words in (
            "renames column id to customer",
            "drops column text",
            "changes the type of column n: int to string",
        ):
            assert words in line
        assert values(it, name, "id", "n", "text") == [("a", 1, "x"), ("b", 2, "y")]
        assert [r["key"] for r in it.quarantined(name)] == [b"later"]
        assert states(it, name) == [(1, "applied"), (2, "review")]

    with pytest.raises(RefusedError, match="No reason"):
        decide(it, yes, approve=True, why=" ")
    decide(it, yes, approve=True)
    decide(it, no, approve=False)
    with pytest.raises(RefusedError, match="has no change to review"):
        decide(it, yes, approve=True)
    it.send([(0, "c", {"n": "three"}), (0, "d", {"n": 4, "text": "w"}), (0, "a", None)])
    assert {o["state"] for o in it.run().values()} == {"published"}
    assert states(it, yes) == [(1, "applied"), (2, "review"), (2, "approved"), (2, "applied")]
    assert states(it, no) == [(1, "applied"), (2, "review"), (2, "rejected")]

    # Rejected: as before. Approved: the key keeps its values, the old type's are set aside, the tombstone finds its
    # row.
    assert values(it, no, "id", "n", "text") == [("b", 2, "y"), ("d", 4, "w")]
    assert {r["key"] for r in it.quarantined(no)} == {b"later", b"c"}
    assert columns_of(it, yes) == {"customer": "string", "n": "string", "n_before_1": "int"}
    assert values(it, yes, "customer", "n", "n_before_1") == [("b", None, 2), ("c", "three", None), ("d", "4", None)]
    memory = it.catalog.load_table(table_names.deletes(it.contract_of(yes)))
    assert sorted(memory.scan().to_arrow()["customer"].to_pylist()) == ["a", "gone"]
    # What was rejected by the old contract passes by the new one.
    run_backfill(it, backfill_request(yes, origin="quarantine"))
    assert ("later", "two") in values(it, yes, "customer", "n")
    assert it.quarantined(yes) == []
    assert cursor.read_table_cursor(it.catalog.load_table(yes))[it.topic].next_offsets == {0: 8}
    # The answer can be taken back: then the change is made after all.
    assert "renames column id to customer" in runbook.run_command(it, "schema approve TABLE", TABLE=no)
    assert columns_of(it, no) != columns_of(it, yes)
    runbook.run_command(it, "schema approve TABLE --why '…' --yes", TABLE=no)
    assert columns_of(it, no) == columns_of(it, yes)


def decide(it: Lake, table: str, *, approve: bool, why: str = "agreed") -> None:
    evolve.decide(
        it.catalog, it.contract_of(table), ReviewDecision(approve=approve, who="ann", why=why, run_id="by hand")
    )


def respond(it: Lake, table: str, **answer: Any) -> review_schema.ReviewResult:
    """Answer as the DAG does."""
    republish = answer.pop("republish", False)
    decision = ReviewDecision(**{"who": "ann", "why": "agreed", "run_id": "by hand", **answer})
    return review_schema.answer_review(it.catalog, it.contracts, table, decision, republish=republish)


def test_an_answer_brings_back_what_was_set_apart_or_publishes_all_again_or_tells_the_records_of_itself(lake):
    it = lake()
    it.create_topic(1)
    brought, again, no, bare, hid = names = [f"db.{it.group}_{n}" for n in ("brought", "again", "no", "bare", "hid")]

    def contracts(kind: str) -> None:
        for name in names:
            raw = {} if name == hid else {"raw": "drop" if name == bare else "keep"}
            columns = [KEY, {"name": "n", "type": kind}]
            if name == hid:  # by the contract of before, raw records are dropped for the mask
                columns.append({"name": "s", "type": "string", "mask": "redact" if kind == "int" else None})
            it.contract(table=name, errors={"max_ratio": 1.0, **raw}, columns=columns)

    contracts("int")
    it.send([(0, "a", {"n": 1}), (0, "old", b"{")])
    assert {o["state"] for o in it.run().values()} == {"published"}
    contracts("string")
    it.send([(0, "b", {"n": 2}), (0, "c", {"n": "three"})])
    assert {o["state"] for o in it.run().values()} == {"published"}
    for name in names:
        shown = review_schema.load_review(it.catalog, it.contract_of(name)).lines()
        (sample,) = [line for line in shown if line.startswith("sample")]
        assert sample.startswith(f"sample    {it.topic}, partition 0, offset 3: malformed in field n: ")
        assert values(it, name, "id", "n") == [("a", 1), ("b", 2)]

    # What was published stays as it is, and what was set apart comes back; by its place, where it was not kept.
    for name, origin in ((brought, Origin.QUARANTINE), (bare, Origin.STAGING), (hid, Origin.STAGING)):
        (request,) = respond(it, name, approve=True).backfills
        assert (request.origin, request.topic, request.ranges) == (origin, it.topic, {0: (3, 4)})
        run_backfill(it, request, run_id=name)
        assert values(it, name, "_kafka_offset", "id", "n", "n_before_1") == [
            (0, "a", None, 1), (2, "b", None, 2), (3, "c", "three", None),
        ]  # fmt: skip
        assert [r["_kafka_offset"] for r in it.quarantined(name)] == [1]
    # Republished, it is all read by the new contract; what came before the review stays.
    done = respond(it, again, approve=True, republish=True)
    assert done.backfills == []
    assert any(line.startswith(f"republish {it.topic} batch 2") for line in done.lines)
    assert values(it, again, "id", "n", "n_before_1") == [("a", None, 1)]
    # Rejected, the records tell of it, those that come later too.
    assert (
        respond(it, no, approve=False, why="n counts").lines[-1]
        == "1 quarantined records name the rejection in their error."
    )
    it.send([(0, "d", {"n": "four"}), (0, "e", b"[")])
    assert {o["state"] for o in it.run().values()} == {"published"}
    assert values(it, again, "_kafka_offset", "id", "n", "n_before_1") == [
        (0, "a", None, 1), (2, "b", "2", None), (3, "c", "three", None), (4, "d", "four", None),
    ]  # fmt: skip
    assert {r["_kafka_offset"] for r in it.quarantined(again)} == {1, 5}
    assert values(it, no, "id", "n") == [("a", 1), ("b", 2)]
    told = "; its change (changes the type of column n: int to string) was rejected by ann: n counts"
    errors = {r["_kafka_offset"]: r["error"] for r in it.quarantined(no)}
    assert {o for o, error in errors.items() if error.endswith(told)} == {3, 4}
    assert set(errors) == {1, 3, 4, 5}
    # Taken back, they come in.
    (request,) = respond(it, no, approve=True, why="it may be text").backfills
    run_backfill(it, request, run_id=no)
    assert values(it, no, "id", "n") == [("a", None), ("b", None), ("c", "three"), ("d", "four")]
    assert {r["_kafka_offset"]: r["error"] for r in it.quarantined(no)} == {o: errors[o] for o in (1, 5)}


Columns = list[dict[str, Any]]

OLD = [
    KEY,
    {"name": "n", "type": "int"},
    {"name": "text", "type": "string", "source": "text"},
    {"name": "must", "type": "int", "required": True},
    {"name": "place", "type": "struct<city: string>"},
    {"name": "mail", "type": "string", "mask": "redact"},
]


def with_other(column: str, **changes: Any) -> dict[str, Any]:
    """The old columns, one of them changed."""
    return {"columns": [{**c, **changes} if c["name"] == column else c for c in OLD]}


CHANGES: dict[str, dict[str, Any]] = {
    "add_column": {"columns": [*OLD, {"name": "extra", "type": "string"}]},
    "widen": with_other("n", type="long"),
    "reorder": {"columns": OLD[::-1]},
    "drop_column": {"columns": [c for c in OLD if c["name"] != "text"]},
    "rename_column": with_other("text", name="words", renamed_from="text"),
    "change_type": with_other("n", type="string"),
    "make_required": with_other("n", required=True),
    "change_key": {"mode": "upsert"},
    "change_mask": with_other("mail", mask=None),
    "change_partitioning": {"partition_by": ["bucket(4, id)"]},
    "change_nested": with_other("place", type="struct<city: string, zip: int>"),
}
# tests/unit/evolve/test_evolve.py has every kind by every policy. These are the ones that change what Spark reads or
# writes, when they are applied or approved; a change that is ignored or refused leaves Spark the contract of before.
KINDS = {
    "auto": [kind for kind in CHANGES if kind not in ("change_type", "change_key")],
    "review": [kind for kind in CHANGES if kind.startswith(("change", "drop", "rename", "make_required"))],
    "ignore": ["drop_column", "change_nested"],
    "refuse": ["widen", "change_mask"],
}
BY_POLICY = [(kind, policy) for policy, kinds in KINDS.items() for kind in kinds]
# What `auto` applies is applied by the same code when it is approved.
USUAL = {"review": ["change_type", "change_key", "rename_column"], "ignore": ["drop_column"], "refuse": ["widen"]}
BY_POLICY = [*usual([each for each in BY_POLICY if each[0] in USUAL.get(each[1], KINDS["auto"])], BY_POLICY)]
# Each of them but the first is in the table or is not, by what became of one of the changes.
VALUES: list[dict[str, Any]] = [
    {"n": 1, "text": "x", "must": 1, "place": {"city": "X", "zip": 7}, "extra": "e", "mail": "a@b"},
    {"must": 2},
    {"n": 5 << 31, "must": 3},
    {"n": "four", "must": 4},
    {"n": 5},
]
SENT = [VALUES[:2], VALUES, VALUES]


def typed(value: dict[str, Any], columns: Columns) -> dict[str, Any] | None:
    """The row that columns make of a value, but for its key; None where it is to be set apart."""
    row: dict[str, Any] = {}
    for column in columns:
        kind, found = column["type"], value.get(column.get("source", column["name"]))
        if kind in ("int", "long") and found is not None:
            if not isinstance(found, int) or found >= 1 << (31 if kind == "int" else 63):
                return None
        elif kind.startswith("struct"):
            found = found and {field: found.get(field) for field in re.findall(r"(\w+):", kind)}
        elif kind == "string" and found is not None:
            found = masks.REDACTED if column.get("mask") else str(found)
        if found is None and column.get("required"):
            return None
        row[column["name"]] = found
    del row["id"]
    return row


def given(row: dict[str, Any], written: Columns, now: Columns) -> dict[str, Any]:
    """A row that was written by some columns, as a table that has others by now gives it."""
    aside = with_other("n", type="string")["columns"] == now
    if written is not now:
        as_it_is = [{**c, "required": False} for c in now]
        before, row = row, typed({**row, "n": None} if aside else row, as_it_is) or {}
    else:
        before = {"n": None}
    return {**row, "n_before_1": before["n"]} if aside else row


def expected(batches: list[list[Columns]], now: Columns) -> dict[int, dict[str, Any]]:
    """The rows by their offsets, of batches that were read by one contract or by one after the other."""
    read_by = [(value, columns) for values, columns in zip(SENT, batches, strict=False) for value in values]
    found = {}
    for offset, (value, tried) in enumerate(read_by):
        for columns in reversed(tried):
            if row := typed(value, columns):
                found[offset] = given(row, columns, now)
    return found


def test_every_kind_of_change_by_every_policy_while_a_batch_is_staged(lake):
    it = lake()
    it.create_topic(1)
    names = {each: f"db.{it.group}_{'_'.join(each)}" for each in BY_POLICY}
    news = {kind: changes.get("columns", OLD) for kind, changes in CHANGES.items()}

    def send(number: int) -> None:
        it.send((0, "a", value) for value in SENT[number])

    def check(each: tuple[str, str], batches: list[list[Columns]], *, made: bool) -> None:
        name, now = names[each], news[each[0]] if made else OLD
        there = it.rows(name)
        rows = {r["_kafka_offset"]: r for r in there}
        found = {o: {k: v for k, v in r.items() if k[0] != "_" and k != "id"} for o, r in rows.items()}
        assert found == expected(batches, now), each
        sent = range(sum(map(len, SENT[: len(batches)])))
        assert sorted(r["_kafka_offset"] for r in [*there, *it.quarantined(name)]) == [*sent], each
        table = it.catalog.load_table(name)
        assert [*columns_of(it, name)][: len(now)] == [c["name"] for c in now], each
        assert bool(table.spec().fields) is (made and each[0] == "change_partitioning"), each
        told = evolve.list_versions(it.catalog, it.contract_of(name))
        assert any(r.state == "applied" and each[0] in r.kinds for r in told) is made, each

    for name in names.values():
        changed(it, name, columns=OLD)
    send(0)
    assert {o["state"] for o in it.run().values()} == {"published"}
    send(1)
    (batch,) = it.plan().topics[it.topic].to_stage
    stage(it.context(), batch, gaps_expected=False)
    for (kind, policy), name in names.items():
        changed(it, name, **{"columns": OLD, **CHANGES[kind]}, schema_policy={kind: policy})
    outcomes = it.run()

    assert {each[1] for each, name in names.items() if outcomes[name]["state"] != "published"} == {"refuse"}
    for each, name in names.items():
        kind, policy = each
        made = policy == "auto"
        batches = [[OLD]] if policy == "refuse" else [[OLD], [news[kind] if made else OLD]]
        check(each, batches, made=made)
        more = {"auto": [(2, "applied")], "review": [(2, "review")]}.get(policy, [])
        assert states(it, name) == [(1, "applied"), *more], each
        if policy == "refuse":
            assert outcomes[name]["state"] != "published", each
            changed(it, name, columns=OLD)  # put back
        elif each == ("change_key", "review"):
            with pytest.raises(RefusedError, match="key of existing rows can't be changed"):
                respond(it, name, approve=True)
        elif policy == "review":
            for request in respond(it, name, approve=True).backfills:
                run_backfill(it, request, run_id=name)
        else:  # nothing more will become of it
            (it.folder / f"{name}.yaml").unlink()
    send(2)
    assert {o["state"] for o in it.run().values()} == {"published"}
    for each in (each for each in names if each[1] in ("review", "refuse")):
        made = each[1] == "review" and each[0] != "change_key"
        now = news[each[0]] if made else OLD
        check(each, [[OLD], [OLD, now], [now]], made=made)
