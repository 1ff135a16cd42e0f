"""The changes between two contracts: every kind, its message, and the contract without ignored changes."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sluice.contract.contract import Contract
from sluice.contract.fields import fields_read
from sluice.contract.settings import SchemaPolicy
from sluice.contract.shape import shape_id
from sluice.contract.types import parse_type
from sluice.evolve.diff import READ, compare_contracts, nested_steps
from sluice.evolve.ignore import omit_changes

pytestmark = pytest.mark.unit

ID = {"name": "id", "type": "long"}
TEXT_ID = {"name": "id", "type": "string"}
N = {"name": "n", "type": "int"}
BASE = [ID, N, {"name": "s", "type": "string"}]


def contract(columns: list[dict[str, Any]] = BASE, **fields: Any) -> Contract:
    about = {"table": "ns.t", "topic": "t", "group": "g", "owner": "me"}
    return Contract.model_validate({**about, "columns": columns, **fields})


def with_n(**fields: Any) -> list[dict[str, Any]]:
    return [ID, {**N, **fields}, BASE[2]]


def masked(how: str, **fields: Any) -> list[dict[str, Any]]:
    return [*BASE[:2], {**BASE[2], "mask": how, **fields}]


HIDDEN = masked("sha256")
X = {"name": "x", "type": "string"}
S_IN = {"inputs": [{"name": "s_in", "type": "string", "source": "s"}]}
NESTED = [{**N, "type": "string", "source": "a.b", "mask": "redact"}]
STRUCT = with_n(type="struct<a: int, b: string>")
UPSERT = {"mode": "upsert", "identifier": ["id"]}
ORDERED = [*BASE, {"name": "x", "type": "long", "required": True}]
BY_X = {**UPSERT, "order": ["x"], "deletes": "ignore"}


def timed(kind: str, unit: str | None, **fields: Any) -> Contract:
    return contract(with_n(type=kind, unit=unit), value={"format": "avro"}, **fields)


CASES: dict[str, tuple[Contract, Contract, list[tuple[str, str]]]] = {
    "nothing": (contract(), contract(), []),
    "an optional column": (contract(), contract([*BASE, {"name": "x", "type": "date"}]), [("add_column", "x")]),
    "a required column": (
        contract(), contract([*BASE, {"name": "x", "type": "date", "required": True}]),
        [("add_column", "x"), ("make_required", "x")],
    ),
    "int to long": (contract(), contract(with_n(type="long")), [("widen", "n")]),
    "float to double": (contract(with_n(type="float")), contract(with_n(type="double")), [("widen", "n")]),
    "more digits": (
        contract(with_n(type="decimal(6, 2)")), contract(with_n(type="decimal(9, 2)")), [("widen", "n")],
    ),
    "another scale": (
        contract(with_n(type="decimal(6, 2)")), contract(with_n(type="decimal(9, 3)")), [("change_type", "n")],
    ),
    "long to int": (contract(with_n(type="long")), contract(), [("change_type", "n")]),
    "int to string": (contract(), contract(with_n(type="string")), [("change_type", "n")]),
    "int to list": (contract(), contract(with_n(type="list<int>")), [("change_type", "n")]),
    "another unit": (timed("long", "millis"), timed("long", "micros"), [("change_type", "n")]),
    "another unit and type": (timed("int", "millis"), timed("long", "micros"), [("change_type", "n")]),
    "a unit no more": (timed("long", "millis"), timed("long", None), [("change_type", "n")]),
    "a unit": (timed("long", None), timed("long", "micros"), [(READ, "n")]),
    "a unit and a wider type": (timed("int", None), timed("long", "micros"), [("change_type", "n")]),
    "a wider type of the same unit": (timed("int", "millis"), timed("long", "millis"), [("widen", "n")]),
    "another unit of an identifier": (
        timed("int", "millis", mode="upsert", identifier=["n"]),
        timed("long", "micros", mode="upsert", identifier=["n"]), [("change_type", "n")],
    ),
    "optional": (contract(with_n(required=True)), contract(), [("make_optional", "n")]),
    "required": (contract(), contract(with_n(required=True)), [("make_required", "n")]),
    "order": (contract(), contract([N, ID, BASE[2]]), [("reorder", "")]),
    "a column in between is no other order": (
        contract(), contract([ID, {"name": "x", "type": "date"}, N, BASE[2]]), [("add_column", "x")],
    ),
    "a comment": (contract(), contract(with_n(doc="how many")), [("document", "n")]),
    "dropped": (contract(), contract([ID, N]), [("drop_column", "s")]),
    "renamed, read from where it was": (
        contract(), contract(with_n(name="m", source="n", renamed_from="n")), [("rename_column", "m")],
    ),
    "renamed and read anew": (
        contract(), contract(with_n(name="m", renamed_from="n")), [("rename_column", "m"), (READ, "m")],
    ),
    "renamed in an earlier version": (contract(), contract(with_n(renamed_from="older")), []),
    "renamed without a word": (
        contract(), contract(with_n(name="m")), [("add_column", "m"), ("drop_column", "n")],
    ),
    "read from elsewhere": (contract(), contract(with_n(source="a.b")), [(READ, "n")]),
    "masked": (contract(), contract(masked("redact")), [(READ, "s")]),
    "masked no more": (contract(masked("sha256")), contract(), [("change_mask", "s")]),
    "masked otherwise, and read from elsewhere": (
        contract(masked("redact")), contract(masked("sha256", source="a.b")), [("change_mask", "s"), (READ, "s")],
    ),
    "a new column of a masked field": (
        contract(HIDDEN), contract([*HIDDEN, {**X, "source": "s"}]), [("add_column", "x"), ("change_mask", "x")],
    ),
    "a new column of a masked field, masked": (
        contract(HIDDEN), contract([*HIDDEN, {**X, "source": "s", "mask": "redact"}]), [("add_column", "x")],
    ),
    "a new column that is required, of a masked field": (
        contract(HIDDEN), contract([*HIDDEN, {**X, "source": "s", "required": True}]),
        [("add_column", "x"), ("make_required", "x"), ("change_mask", "x")],
    ),
    "a new column of a masked field whose column is dropped": (
        contract(HIDDEN), contract([ID, N, {**X, "source": "s"}]),
        [("add_column", "x"), ("change_mask", "x"), ("drop_column", "s")],
    ),
    "a new column of what a masked field lies in": (
        contract([ID, *NESTED]), contract([ID, {**X, "type": "struct<b: string>", "source": "A"}]),
        [("add_column", "x"), ("change_mask", "x"), ("drop_column", "n")],
    ),
    "a new column beside a masked field": (
        contract([ID, *NESTED]), contract([ID, *NESTED, {**X, "source": "a.bc"}]), [("add_column", "x")],
    ),
    "a new column of a masked field of the key": (
        contract([ID, {**X, "name": "k", "source": "$key", "mask": "sha256"}], key={"format": "avro"}),
        contract([ID, {**X, "source": "$key.a"}], key={"format": "avro"}),
        [("add_column", "x"), ("change_mask", "x"), ("drop_column", "k")],
    ),
    "a new column computed of a masked one": (
        contract(HIDDEN), contract([*HIDDEN, {**X, "expression": "lower(`S`)"}]),
        [("add_column", "x"), ("change_mask", "x")],
    ),
    "a new column computed of a masked field by an input": (
        contract(HIDDEN), contract([*HIDDEN, {**X, "expression": "lower(s_in)"}], **S_IN),
        [("add_column", "x"), ("change_mask", "x"), (READ, "")],
    ),
    "a new column computed of all": (
        contract(HIDDEN), contract([*HIDDEN, {**X, "expression": "to_json(struct(*))"}]),
        [("add_column", "x"), ("change_mask", "x")],
    ),
    "a new column computed of others": (
        contract(HIDDEN), contract([*HIDDEN, {**X, "expression": "id * n * (id) * 2"}]), [("add_column", "x")],
    ),
    "a new column of what a masked one is computed of": (
        contract([ID, N, {**X, "expression": "lower(s_in)", "mask": "sha256"}], **S_IN),
        contract([ID, N, {**X, "expression": "lower(s_in)", "mask": "sha256"}, BASE[2]], **S_IN),
        [("add_column", "s"), ("change_mask", "s")],
    ),
    "a new column of a field that can be read already": (
        contract([*HIDDEN, {**X, "source": "s"}]),
        contract([*HIDDEN, {**X, "source": "s"}, {**X, "name": "y", "source": "s"}]),
        [("add_column", "y")],
    ),
    "a column that comes to read a masked field": (
        contract([*HIDDEN, X]), contract([*HIDDEN, {**X, "source": "s"}]), [(READ, "x"), ("change_mask", "x")],
    ),
    "a column that comes to be computed of a masked field": (
        contract([*HIDDEN, {**X, "expression": "substr(s, 1, 1)"}]), contract([*HIDDEN, {**X, "expression": "s"}]),
        [(READ, "x"), ("change_mask", "x")],
    ),
    "a column that comes to be computed of a masked field, and was of an input that is gone": (
        contract([*HIDDEN, {**X, "expression": "lower(t)"}], inputs=[{"name": "t", "type": "string"}]),
        contract([*HIDDEN, {**X, "expression": "lower(s_in)"}], **S_IN),
        [(READ, "x"), ("change_mask", "x"), (READ, "")],
    ),
    "identifier that comes to be read from a masked field": (
        contract([TEXT_ID, *HIDDEN[1:]], **UPSERT), contract([{**TEXT_ID, "source": "s"}, *HIDDEN[1:]], **UPSERT),
        [("change_key", "id"), ("change_mask", "id")],
    ),
    "an input that comes to read a masked field": (
        contract([*HIDDEN, {**X, "expression": "lower(s_in)"}], inputs=[{**S_IN["inputs"][0], "source": "t"}]),
        contract([*HIDDEN, {**X, "expression": "lower(s_in)"}], **S_IN), [("change_mask", "x"), (READ, "")],
    ),
    "computed as it was, of a masked field among others": (
        contract([*HIDDEN, {**X, "expression": "to_json(struct(*))"}]),
        contract([*HIDDEN, {**X, "expression": "to_json(struct(*))"}, {"name": "y", "type": "date"}]),
        [("add_column", "y")],
    ),
    "another key format": (contract(), contract(key={"format": "bytes"}), [(READ, "")]),
    "a nested field": (
        contract(STRUCT), contract(with_n(type="struct<a: int, b: string, c: date>")), [("change_nested", "n")],
    ),
    "nested fields in another order": (
        contract(STRUCT), contract(with_n(type="struct<b: string, a: int>")), [("reorder", "n")],
    ),
    "nested fields in another order, and a wider one": (
        contract(STRUCT), contract(with_n(type="struct<b: string, a: long>")), [("change_nested", "n")],
    ),
    "a nested type": (
        contract(STRUCT), contract(with_n(type="struct<a: long, b: string>")), [("change_nested", "n")],
    ),
    "a nested type that can't be": (
        contract(STRUCT), contract(with_n(type="struct<a: string, b: string>")), [("change_type", "n")],
    ),
    "format version": (contract(), contract(format_version=3), [("upgrade_format", "")]),
    "partitions": (contract(), contract(partition_by=["bucket(4, id)"]), [("change_partitioning", "")]),
    "partitions by a column that is renamed": (
        contract(partition_by=["n"]), contract(with_n(name="m", source="n", renamed_from="n"), partition_by=["m"]),
        [("rename_column", "m")],
    ),
    "mode": (contract(), contract(**UPSERT), [("change_key", "")]),
    "identifier": (contract(**UPSERT), contract(mode="upsert", identifier=["id", "n"]), [("change_key", "")]),
    "identifier that is renamed": (
        contract(**UPSERT),
        contract(
            [{**ID, "name": "key", "source": "id", "renamed_from": "id"}, *BASE[1:]], mode="upsert", identifier=["key"]
        ),
        [("rename_column", "key")],
    ),
    "identifier that is read from elsewhere": (
        contract(**UPSERT), contract([{**ID, "source": "a.id"}, *BASE[1:]], **UPSERT), [("change_key", "id")],
    ),
    "identifier that is masked no more": (
        contract([{**TEXT_ID, "mask": "sha256"}, *BASE[1:]], **UPSERT), contract([TEXT_ID, *BASE[1:]], **UPSERT),
        [("change_mask", "id"), ("change_key", "id")],
    ),
    "another format of a key that is the identifier": (
        contract([{**TEXT_ID, "source": "$key.a"}, *BASE[1:]], **UPSERT, key={"format": "json"}),
        contract([{**TEXT_ID, "source": "$key.a"}, *BASE[1:]], **UPSERT, key={"format": "avro"}),
        [("change_key", "id")],
    ),
    "identifier that is computed": (
        contract([TEXT_ID, *BASE[1:]], **UPSERT),
        contract([{**TEXT_ID, "expression": "lower(s)"}, *BASE[1:]], **UPSERT), [("change_key", "id")],
    ),
    "a column of the order that is read from elsewhere": (
        contract(ORDERED, **BY_X), contract([*ORDERED[:-1], {**ORDERED[-1], "source": "at_ms"}], **BY_X),
        [("change_key", "x")],
    ),
    "a column that comes into the order, and is read from elsewhere": (
        contract(ORDERED, **UPSERT), contract([*ORDERED[:-1], {**ORDERED[-1], "source": "at_ms"}], **BY_X),
        [("change_key", "x"), (READ, "")],
    ),
    "an order": (contract(ORDERED, **UPSERT), contract(ORDERED, **BY_X), [(READ, "")]),
    "how it is run": (contract(), contract(owner="you", topic="u", errors={"max_ratio": 0.5}, doc="x"), []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_kind_is_told(name):
    old, new, expected = CASES[name]
    found = compare_contracts(old, new)
    assert [(c.kind, c.column) for c in found] == expected
    assert all(c.description for c in found)
    assert (shape_id(old) == shape_id(new)) is (not expected)


@pytest.mark.parametrize("name", [n for n, (*_, kinds) in CASES.items() if any(k != READ for k, _ in kinds)])
def test_what_is_ignored_is_as_if_it_had_not_been_written(name):
    old, new, _ = CASES[name]
    ignored = [c for c in compare_contracts(old, new) if c.kind != READ]
    left = omit_changes(old, new, ignored)
    assert [c for c in compare_contracts(old, left) if c.kind != READ] == []
    assert (left.owner, left.topic, left.errors) == (new.owner, new.topic, new.errors)


def test_a_change_of_the_unit_names_both_and_one_that_is_ignored_leaves_type_and_unit():
    old, new = timed("int", "millis"), timed("long", "micros", owner="you")
    (change,) = compare_contracts(old, new)
    assert change.description == "changes the unit of column n: int of millis to long of micros"
    left = omit_changes(old, new, [change])
    assert (left.column("n"), left.owner) == (old.column("n"), "you")
    (change,) = compare_contracts(timed("int", None), new)
    assert change.description == "changes the type of column n: int to long of micros"


def test_the_ids_of_contracts_without_units_are_those_that_tables_have_stored():
    inputs = [{"name": "x", "type": "long", "source": "a.x"}]
    columns = [ID, {"name": "n", "type": "long", "expression": "x * 2"}]
    assert shape_id(contract(columns, inputs=inputs, value={"format": "avro"})) == "a60d63c39f9a"


def test_a_column_that_shows_what_another_one_masks_is_told_by_field_and_column():
    old = contract([*HIDDEN, {**X, "name": "y"}])
    new = contract([*HIDDEN, {**X, "expression": "concat(s, n)"}, {**X, "name": "y", "source": "s"}])
    assert [c.description for c in compare_contracts(old, new) if c.kind == "change_mask"] == [
        "adds column x, which reads field s that column s masks",
        "column y comes to read field s that column s masks",
    ]


PLAIN: dict[str, Any] = {}
CONNECT = {"value": {"format": "json_connect"}}
ENVELOPE = {"cdc": {"format": "debezium"}}
UNWRAPPED = {"cdc": {"format": "debezium_unwrapped"}}
KEYS = {"key": {"format": "json"}}, {"key": {"format": "json_connect"}}
TYPES = [{"value": {"format": "avro", "types": [name]}} for name in ("a.Created", "a.Moved")]
IN_STRUCT = {"source": "person", "type": "list<struct<id: long, Mail: string>>"}


@pytest.mark.parametrize(
    ("before", "path", "after", "column"),
    [
        (PLAIN, "after.mail", ENVELOPE, {"source": "mail"}),
        (PLAIN, "before.mail", ENVELOPE, {"source": "mail"}),
        (PLAIN, "source.mail", ENVELOPE, {"source": "$source.mail"}),
        (PLAIN, "mail", ENVELOPE, {"source": "mail"}),  # the records changed as well
        (PLAIN, "mail", ENVELOPE, {"expression": "lower(mail_in)"}),
        (ENVELOPE, "mail", PLAIN, {"source": "After.Mail"}),
        (ENVELOPE, "mail", PLAIN, {"source": "after"}),  # the whole row, as JSON
        (ENVELOPE, "mail", PLAIN, {"source": "before.mail"}),
        (ENVELOPE, "$source.user", PLAIN, {"source": "source"}),
        (ENVELOPE, "mail", UNWRAPPED, {"source": "mail"}),
        (ENVELOPE, "mail", CONNECT, {"source": "mail"}),
        (PLAIN, "payload.mail", CONNECT, {"source": "mail"}),
        (CONNECT, "mail", PLAIN, {"source": "payload"}),
        (CONNECT, "mail", PLAIN, {"source": "payload.mail"}),
        (CONNECT | ENVELOPE, "mail", PLAIN, {"source": "payload.after.mail"}),
        ({"value": {"format": "string"}}, "$value", PLAIN, {"source": "mail"}),
        (TYPES[0], "person.mail", TYPES[1], {"source": "mail"}),
        (TYPES[0], "mail", TYPES[1], {"source": "person.mail"}),
        (TYPES[0], "mail", TYPES[1], IN_STRUCT),
        (KEYS[0], "$key.payload.mail", KEYS[1], {"source": "$key.mail"}),
        (KEYS[1], "$key.mail", KEYS[0], {"source": "$key.payload.mail"}),
    ],
)
def test_what_is_masked_is_shown_by_no_other_path_when_records_are_read_otherwise(before, path, after, column):
    masked_mail = {"name": "mail", "type": "string", "source": path, "mask": "redact"}
    whole = before.get("value") == {"format": "string"}
    id_ = {**ID, "source": "$key"} if whole else ID
    old = contract([id_, masked_mail], **before)
    inputs = {"inputs": [{"name": "mail_in", "type": "string", "source": "mail"}]} if "expression" in column else {}
    new = contract([id_, {**X, **column}], **after, **inputs)
    (shown,) = [c for c in compare_contracts(old, new) if c.kind == "change_mask"]
    assert shown.column == "x"
    assert shown.description.endswith(f"field {path} that column mail masks")
    hidden = contract([id_, {**X, **column, "mask": "redact"}], **after, **inputs) if "type" not in column else old
    assert [c for c in compare_contracts(old, hidden) if c.kind == "change_mask"] == []


def test_a_column_that_comes_to_read_what_is_masked_as_records_are_read_otherwise_can_not_be_left_as_it_was():
    columns = [ID, {**X, "name": "mail", "source": "after.mail", "mask": "sha256"}, {**X, "source": "mail"}]
    old, new = contract(columns), contract(columns, **ENVELOPE)
    (shown,) = [c for c in compare_contracts(old, new) if c.kind == "change_mask"]
    assert shown.description == "column x comes to read field after.mail that column mail masks"
    left = omit_changes(old, new, [shown])
    assert [c for c in compare_contracts(old, left) if c.kind == "change_mask"] == [shown]


@pytest.mark.parametrize(
    ("before", "after", "columns"),
    [
        (PLAIN, ENVELOPE, [*HIDDEN, {**X, "source": "ss"}]),
        (PLAIN, ENVELOPE, [*HIDDEN, {**X, "source": "b.s", "mask": "redact"}]),
        (ENVELOPE, PLAIN, [*HIDDEN, {**X, "source": "after_s"}]),
        (ENVELOPE, {"cdc": {"format": "debezium", "tombstones": "delete"}}, [*HIDDEN, {**X, "source": "a.s"}]),
        (PLAIN, {"value": {"format": "avro"}}, HIDDEN),
        (PLAIN, {"key": {"format": "bytes"}}, [*HIDDEN, {**X, "source": "a.s"}]),
    ],
)
def test_what_reads_other_fields_needs_nobody_when_records_are_read_otherwise(before, after, columns):
    found = compare_contracts(contract(HIDDEN, **before), contract(columns, **after))
    assert [c for c in found if c.kind == "change_mask"] == []


@pytest.mark.parametrize("computed", [{"source": "s"}, {"expression": "lower(s_in)"}])
def test_what_was_shown_already_is_shown_on_when_records_are_read_otherwise_in_the_same_places(computed):
    columns = [ID, {**N, "type": "string", "source": "a.s", "mask": "redact"}, {**X, **computed}]
    more = S_IN if "expression" in computed else {}
    found = compare_contracts(contract(columns, **more), contract(columns, **more, value={"format": "avro"}))
    assert [c for c in found if c.kind == "change_mask"] == []


@pytest.mark.parametrize(
    "text",
    [
        "S",
        "`s`",
        "concat('s', n)",
        "struct(*)",
        "concat_ws(',', *)",
        "struct(/**/ *)",
        "struct(-- n\n*)",
        "struct(all *)",
        "a.*",
        "identifier ('s')",
    ],
)
def test_an_expression_may_read_what_it_names_and_what_it_does_not_say(text):
    assert "s" in fields_read(contract(), contract([*BASE, {**X, "expression": text}]).column("x"))


@pytest.mark.parametrize("text", ["n", "ss + s1", "n * 2", "`n`*n", "abs(n) * 'x' * n"])
def test_an_expression_reads_no_more_than_it_names(text):
    assert "s" not in fields_read(contract(), contract([*BASE, {**X, "expression": text}]).column("x"))


def test_a_column_that_goes_on_being_computed_as_it_was_has_its_inputs():
    name = "a column that comes to be computed of a masked field, and was of an input that is gone"
    old, new, _ = CASES[name]
    left = omit_changes(old, new, [c for c in compare_contracts(old, new) if c.kind == "change_mask"])
    assert left.column("x") == old.column("x")
    assert old.inputs[0] in left.inputs


COMPUTED = {**X, "expression": "upper(concat(T_in, n))"}
T_IN = {"name": "t_in", "type": "string", "source": "t"}
IN = {"inputs": [T_IN, {"name": "other", "type": "date"}]}


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (contract([*BASE, COMPUTED], **IN), contract(), "drop_column"),
        (contract([*BASE, COMPUTED], **IN), contract([*BASE, T_IN]), "drop_column"),
        (
            contract([*BASE, COMPUTED], **IN, mode="upsert", identifier=["x"]),
            contract([*BASE, X], mode="upsert", identifier=["x"]),
            "change_key",
        ),
    ],
)
def test_what_is_computed_on_when_its_change_is_ignored_has_what_it_names(old, new, kind):
    ignored = [c for c in compare_contracts(old, new) if c.kind == kind]
    assert ignored
    left = omit_changes(old, new, ignored)
    assert left.column("x") == old.column("x")
    assert {"t"} == {c.source for c in (*left.columns, *left.inputs) if c.name == "t_in"}
    assert [c for c in compare_contracts(old, left) if c.kind not in (READ, "add_column")] == []


def test_one_kind_is_ignored_and_the_others_stay():
    new = contract([N, {"name": "x", "type": "date"}, {**ID, "type": "string", "doc": "d"}])
    ignored = [c for c in compare_contracts(contract(), new) if c.kind in ("reorder", "change_type", "drop_column")]
    left = omit_changes(contract(), new, ignored)
    assert {(c.kind, c.column) for c in compare_contracts(contract(), left)} == {
        ("add_column", "x"),
        ("document", "id"),
    }


def test_what_contradicts_itself_when_a_change_is_ignored_is_an_error():
    new = contract([*BASE, {"name": "x", "type": "date"}], partition_by=["x"])
    ignored = [c for c in compare_contracts(contract(), new) if c.kind == "add_column"]
    with pytest.raises(ValidationError, match="no column 'x'"):
        omit_changes(contract(), new, ignored)


def test_the_steps_inside_a_nested_column():
    old = parse_type("struct<a: int, l: list<struct<x: float, gone: date>>, m: map<string, struct<k: int>>>")
    new = parse_type("struct<l: list<struct<x: double, y: uuid>>, m: map<string, struct<k: int>>, a: long>")
    steps = nested_steps(old, new)
    assert {(s.action, ".".join(s.path), str(s.type)) for s in steps} == {
        ("widen", "a", "long"),
        ("widen", "l.element.x", "double"),
        ("add", "l.element.y", "uuid"),
        ("drop", "l.element.gone", "None"),
    }
    for other in ("struct<b: int>", "list<int>", "struct<a: string>", "struct<l: list<date>>"):
        assert nested_steps(old, parse_type(other)) is None
    assert nested_steps(parse_type("map<string, int>"), parse_type("map<string, date>")) is None


def test_the_policy_by_default_and_what_can_not_be_automatic():
    safe = {"add_column", "widen", "make_optional", "reorder", "document"}
    assert {k for k, v in SchemaPolicy().model_dump().items() if v == "auto"} == safe
    assert {v for k, v in SchemaPolicy().model_dump().items() if k not in safe} == {"review"}
    for kind in ("change_key", "change_type", "upgrade_format"):
        with pytest.raises(ValidationError, match="can't be auto"):
            contract(schema_policy={kind: "auto"})


@pytest.mark.parametrize(
    ("was", "message"), [("s", "is a column of this contract"), ("n", "is a column"), ("bad name", "is not a name")]
)
def test_renamed_from_names_nothing_that_is_there(was, message):
    with pytest.raises(ValidationError, match=message):
        contract(with_n(renamed_from=was))
    with pytest.raises(ValidationError, match="is a duplicate"):
        contract([{**ID, "renamed_from": "old"}, {**N, "renamed_from": "old"}])
