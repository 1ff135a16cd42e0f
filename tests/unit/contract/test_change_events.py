"""The rules of a contract for change events, computed columns, conditions and masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pyiceberg.catalog.sql import SqlCatalog

from sluice.contract.contract import Contract
from sluice.iceberg import deletes_table

pytestmark = pytest.mark.unit

BASE = {"table": "db.t", "topic": "t", "group": "g", "owner": "o"}
ID = {"name": "id", "type": "long"}
LSN = {"name": "lsn", "type": "long", "source": "$source.lsn", "required": True}
MARK = {"name": "gone", "type": "boolean", "source": "$deleted"}
M_A = {"name": "m", "type": "struct<a: int>"}
UPSERT = {"mode": "upsert", "identifier": ["id"]}
DEBEZIUM = {"cdc": {"format": "debezium"}}


def contract(*columns: dict[str, Any], **more: Any) -> Contract:
    return Contract.model_validate({**BASE, "columns": [ID, *columns], **more})


@pytest.mark.parametrize(
    ("columns", "more", "deletes"),
    [
        ([], {**UPSERT, **DEBEZIUM}, False),
        ([LSN], {**UPSERT, **DEBEZIUM, "order": ["lsn"]}, False),
        ([], {**UPSERT, "cdc": {"format": "debezium", "tombstones": "delete"}}, True),
        ([], {**UPSERT, "cdc": {"format": "debezium_unwrapped"}}, True),
        ([], {**UPSERT, "cdc": {"format": "op_field", "op": "a.b"}, "deletes": "hard"}, True),
        ([], {**UPSERT, "cdc": {"format": "op_field", "op": "a.b"}, "deletes": "ignore"}, False),
        ([MARK], {**UPSERT, **DEBEZIUM, "deletes": "soft"}, False),
        ([], {"cdc": {"format": "op_field", "op": "id"}}, True),
        ([M_A], {"cdc": {"format": "op_field", "op": "m.a"}}, True),
        ([{"name": "op", "type": "string", "source": "$op"}], {**DEBEZIUM}, False),
        ([], {**UPSERT}, True),
        ([{"name": "x", "type": "int", "expression": "id + 1"}], {"where": "id > 1"}, True),
    ],
)
def test_sound_contracts_and_whether_their_tombstones_delete(
    columns: list[dict[str, Any]], more: dict[str, Any], deletes: bool
) -> None:
    made = contract(*columns, **more)
    assert made.tombstones_delete is deletes
    written = made.model_dump(mode="json", exclude_defaults=True)
    assert Contract.model_validate(written) == made


@pytest.mark.parametrize(
    ("columns", "more", "field", "message"),
    [
        ([LSN], {}, "columns.1.source", "others need cdc"),
        ([LSN], {"cdc": {"format": "debezium_unwrapped"}}, "columns.1.source", "only in Debezium's envelope"),
        ([{**LSN, "source": "$before.id"}], DEBEZIUM, "columns.1.source", "without a $"),
        ([{**MARK, "type": "string"}], DEBEZIUM, "columns.1.type", "needs boolean or timestamptz"),
        ([], {**UPSERT, "deletes": "soft"}, "deletes", "add cdc:"),
        ([], {**UPSERT, **DEBEZIUM, "deletes": "soft"}, "deletes", "needs a column"),
        ([], {**UPSERT, **DEBEZIUM, "deletes": "tombstone"}, "deletes", "cdc.tombstones says"),
        (
            [MARK],
            {**UPSERT, "cdc": {"format": "debezium_unwrapped"}, "deletes": "soft"},
            "cdc.tombstones",
            "must be ignore",
        ),
        (
            [{**LSN, "source": "__lsn"}],
            {**UPSERT, "order": ["lsn"], "cdc": {"format": "debezium_unwrapped"}},
            "order.0",
            "cdc.tombstones: ignore",
        ),
        ([], {"cdc": {"format": "op_field"}}, "cdc.op", "needs op"),
        ([], {"cdc": {"format": "debezium", "op": "x"}}, "cdc.op", "has fixed operations"),
        ([], {"cdc": {"format": "op_field", "op": "$key"}}, "cdc.op", "field of the value"),
        ([], {"cdc": {"format": "debezium", "ops": {}}}, "cdc.ops", "has fixed operations"),
        ([], {"cdc": {"format": "op_field", "op": "o", "ops": {"upsert": ["D"]}}}, "cdc.ops", "cannot mean both"),
        (
            [],
            {"cdc": {"format": "op_field", "op": "id.kind"}},
            "cdc.op",
            "not a primitive value, since 'id' is read as long",
        ),
        ([], {"cdc": {"format": "op_field", "op": "Id"}}, "cdc.op", "differ only by case"),
        ([M_A], {"cdc": {"format": "op_field", "op": "m.kind"}}, "cdc.op", "since 'm' is read as struct<a: int>"),
        ([{**M_A, "type": "list<int>"}], {"cdc": {"format": "op_field", "op": "m"}}, "cdc.op", "not a primitive value"),
        ([{**M_A, "source": "m.a"}], {"cdc": {"format": "op_field", "op": "m"}}, "cdc.op", "since 'm.a' is read as"),
        (
            [{"name": "x", "type": "int", "source": "y", "expression": "id"}],
            {},
            "columns.1.expression",
            "either a source or an expression",
        ),
        ([], {"inputs": [{"name": "ID", "type": "int"}], "where": "true"}, "inputs.0.name", "is a duplicate"),
        ([], {"inputs": [{"name": "x", "type": "int"}]}, "inputs", "there are none"),
        (
            [],
            {"inputs": [{"name": "x", "type": "int", "source": "id"}], "where": "x>1"},
            "inputs.0.source",
            "one type",
        ),
        ([{"name": "x", "type": "int", "mask": "sha256"}], {}, "columns.1.mask", "only masks text"),
        ([MARK], {**UPSERT, **DEBEZIUM, "deletes": "soft", "where": "id > 1"}, "where", "may lack"),
    ],
)
def test_contradictions_are_named(
    columns: list[dict[str, Any]], more: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        contract(*columns, **more)
    found = {".".join(map(str, e["loc"])): e["msg"] for e in caught.value.errors()}
    assert message in found.get(field, ""), found


def test_a_masked_key_must_still_tell_rows_apart() -> None:
    key = {"name": "id", "type": "string", "source": "$key"}
    body = {**BASE, "mode": "upsert", "identifier": ["id"]}
    assert Contract.model_validate({**body, "columns": [{**key, "mask": "sha256"}]}).tombstone_column == "id"
    with pytest.raises(ValidationError, match="all keys equal"):
        Contract.model_validate({**body, "columns": [{**key, "mask": "redact"}]})


def test_the_memory_of_deletes_learns_an_order_that_is_given_later(tmp_path: Path) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    before = contract(**UPSERT, **DEBEZIUM)
    after = contract(LSN, **UPSERT, **DEBEZIUM, order=["lsn", "_kafka_timestamp"])
    assert "lsn" not in deletes_table.ensure_deletes_table(catalog, before).schema().column_names
    for _ in range(2):
        found = deletes_table.ensure_deletes_table(catalog, after).schema()
    assert found.column_names[-1] == "lsn" and not found.find_field("lsn").required
    assert found.identifier_field_names() == {"id"}
