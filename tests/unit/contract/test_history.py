"""The rules of a contract for mode history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pyiceberg.catalog.sql import SqlCatalog

from sluice.contract.contract import Contract
from sluice.evolve import apply
from sluice.evolve.diff import compare_contracts
from sluice.evolve.ignore import omit_changes
from sluice.iceberg import schema, tables

pytestmark = pytest.mark.unit

ID = {"name": "id", "type": "string", "source": "$key"}
N = {"name": "n", "type": "long"}
AT = {"name": "at", "type": "timestamptz", "required": True}
UNTIL = {"name": "until", "type": "timestamptz", "source": "$valid_to"}
HISTORY: dict[str, Any] = {"mode": "history", "identifier": ["id"], "deletes": "ignore"}


def contract(*columns: dict[str, Any], **more: Any) -> Contract:
    body = {"table": "db.t", "topic": "t", "group": "g", "owner": "o", "columns": [ID, *columns], **HISTORY, **more}
    return Contract.model_validate({name: value for name, value in body.items() if value is not None})


def test_a_sound_history() -> None:
    made = contract(N, AT, UNTIL, valid_from="at")
    assert (made.valid_to, made.keyed, made.upsert) == ("until", True, False)
    assert Contract.model_validate(made.model_dump(mode="json", exclude_defaults=True)) == made
    assert not schema.typed_schema(made).identifier_field_ids, "no column of a history is unique"
    assert contract(UNTIL).valid_from == "_kafka_timestamp"
    text = {"name": "text", "type": "string", "source": "$value"}
    assert contract(text, UNTIL, value={"format": "string"}).valid_to == "until"


@pytest.mark.parametrize(
    ("columns", "more", "field", "message"),
    [
        ([N], {}, "columns", "needs a column with source: '$valid_to', of type timestamptz"),
        ([UNTIL, {**UNTIL, "name": "again"}], {}, "columns.2.source", "is used twice"),
        ([{**UNTIL, "type": "date"}], {}, "columns.1.type", "type of valid_from (_kafka_timestamp): timestamptz"),
        ([{**UNTIL, "required": True}], {}, "columns.1.required", "the current version has no end"),
        ([UNTIL], {"identifier": None}, "identifier", "mode history needs identifier"),
        ([UNTIL], {"identifier": ["id", "until"]}, "identifier", "changes when the next version arrives"),
        ([UNTIL], {"valid_from": "at"}, "valid_from", "there is no column 'at'"),
        ([UNTIL, {**AT, "required": False}], {"valid_from": "at"}, "valid_from", "must be required"),
        ([UNTIL], {"valid_from": "until"}, "valid_from", "can't be valid_from"),
        ([UNTIL], {"deletes": None}, "deletes", "mode history never removes rows"),
        ([UNTIL], {"deletes": "soft"}, "deletes", "soft needs change events"),
        ([UNTIL], {"deletes": "hard", "cdc": {"format": "debezium"}}, "deletes", "use soft to keep each delete"),
        ([UNTIL], {"topic": ["t", "u"]}, "order", "offsets do not order the versions"),
        ([UNTIL], {"mode": "upsert"}, "columns.1.source", "needs mode history"),
        (
            [UNTIL],
            {"expectations": [{"type": "expect_column_values_to_not_be_null", "column": "until"}]},
            "expectations.0.column",
            "there is no column 'until'",
        ),
        ([N], {"mode": "upsert", "valid_from": "n"}, "valid_from", "needs mode history"),
    ],
)
def test_what_contradicts_itself_is_told(
    columns: list[dict[str, Any]], more: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        contract(*columns, **more)
    told = [(".".join(map(str, each["loc"])), each["msg"]) for each in caught.value.errors()]
    assert any(at == field and message in said for at, said in told), told


def test_a_table_neither_becomes_a_history_nor_ceases_to_be_one_in_passing() -> None:
    history = contract(N, AT, UNTIL, valid_from="at")
    append = contract(N, AT, mode="append", identifier=None, deletes=None)
    upsert = contract(N, AT, mode="upsert")
    later = contract(N, AT, UNTIL)
    plain = {**UNTIL, "source": "until"}
    moved = contract(N, AT, plain, {**UNTIL, "name": "ends"}, valid_from="at")
    assert "change_key" in {c.kind for c in compare_contracts(history, moved)}
    for old, new in ((append, history), (upsert, history), (history, upsert), (history, later)):
        kinds = {c.kind for c in compare_contracts(old, new)}
        assert "change_key" in kinds, (old.mode, new.mode, kinds)
        ignored = [c for c in compare_contracts(old, new) if c.kind != "read"]
        kept = omit_changes(old, new, ignored)
        assert (kept.mode, kept.identifier, kept.valid_from) == (old.mode, old.identifier, old.valid_from)
    renamed = contract(N, {**AT, "name": "since", "source": "at", "renamed_from": "at"}, UNTIL, valid_from="since")
    assert {c.kind for c in compare_contracts(history, renamed)} == {"rename_column"}


def test_what_places_its_versions_is_kept_and_may_be_renamed(tmp_path: Path) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    lsn = {"name": "lsn", "type": "long", "required": True}
    soft = {"deletes": "soft", "cdc": {"format": "debezium", "tombstones": "ignore"}, "order": ["lsn"]}
    gone = {"name": "gone", "type": "boolean", "source": "$deleted"}
    history = contract(N, AT, UNTIL, lsn, gone, valid_from="at", **soft)
    table = tables.ensure_typed(catalog, history)

    def why(*columns: dict[str, Any], **more: Any) -> str | None:
        new = contract(*columns, gone, **soft, **more)
        return apply.find_obstacle(table, history, new, compare_contracts(history, new))

    as_days = [{**each, "type": "date"} for each in (AT, UNTIL)]
    assert "orders the versions" in (why(N, *as_days, lsn, valid_from="at") or "")
    assert "key of existing rows" in (why(N, AT, UNTIL, lsn) or "")
    renamed = {**AT, "name": "since", "source": "at", "renamed_from": "at"}
    assert why(N, renamed, UNTIL, {**lsn, "type": "long"}, valid_from="since") is None
    soft["order"] = ["pos"]  # nothing is remembered by it, as in mode upsert
    moved = {**lsn, "name": "pos", "source": "lsn", "renamed_from": "lsn"}
    assert why(N, AT, UNTIL, moved, valid_from="at") is None
