"""A mask that a contract's file adds holds at once, whatever else of the file waits for an answer or a registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from sluice import evolve, tables
from sluice.contract import Contract
from sluice.evolve_force import published_by

pytestmark = pytest.mark.unit

ID = {"name": "id", "type": "long"}
EMAIL = {"name": "email", "type": "string"}
HIDDEN = {**EMAIL, "mask": "redact"}
OTHER = {"name": "x", "type": "long"}


def contract(*columns: Any, **more: Any) -> Contract:
    about = {"table": "ns.t", "topic": "t", "group": "g", "owner": "me"}
    return Contract.model_validate({**about, "columns": list(columns), **more})


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")


def settled(catalog: SqlCatalog, old: Contract, new: Contract) -> evolve.Outlook:
    tables.ensure_typed(catalog, old)
    evolve.created(catalog, [old], run_id="1")
    return evolve.settle(catalog, new, run_id="2")


def test_beside_a_change_under_review_and_after_that_was_rejected(catalog: SqlCatalog) -> None:
    new = contract(ID, HIDDEN)
    assert settled(catalog, contract(ID, EMAIL, OTHER), new).review == "open"
    for _ in range(2):
        held = published_by(catalog.load_table("ns.t"), new)
        assert [c.name for c in held.columns] == ["id", "email", "x"]
        assert (held.column("email").mask, held.drops_raw) == ("redact", True)
        if evolve.settle(catalog, new, run_id="3").review == "open":
            evolve.decide(catalog, new, approve=False, who="ann", why="x stays", run_id="4")


def test_of_a_column_that_waits_for_its_new_name(catalog: SqlCatalog) -> None:
    new = contract(ID, {**HIDDEN, "name": "mail", "renamed_from": "email", "source": "email"})
    assert settled(catalog, contract(ID, EMAIL), new).review == "open"
    assert published_by(catalog.load_table("ns.t"), new).column("email").mask == "redact"


def test_while_the_registry_is_away(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", "http://127.0.0.1:1")
    avro = {"value": {"format": "avro"}}
    new = contract(ID, HIDDEN, "auto", **avro)
    assert settled(catalog, contract(ID, EMAIL, OTHER, **avro), new).unfollowed
    assert published_by(catalog.load_table("ns.t"), new).column("email").mask == "redact"


def test_a_key_is_read_as_before_until_that_is_decided(catalog: SqlCatalog) -> None:
    keyed = {"mode": "upsert", "identifier": ["email"]}
    new = contract(ID, {**EMAIL, "mask": "sha256"}, **keyed)
    assert settled(catalog, contract(ID, EMAIL, **keyed), new).review == "open"
    assert published_by(catalog.load_table("ns.t"), new).column("email").mask is None
