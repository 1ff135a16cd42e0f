"""A new mask is active at once, even while other changes of the contract wait for a review or the registry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from sluice.contract.contract import Contract
from sluice.errors import SchemaChangeError
from sluice.evolve import evolve, pending_change
from sluice.evolve.pending_change import ReviewDecision
from sluice.iceberg import tables
from sluice.iceberg.active_contract import resolve_publish_contract
from sluice.ledger import schemas_table
from sluice.ledger.schemas_table import SchemaState

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


def settled(catalog: SqlCatalog, old: Contract, new: Contract) -> pending_change.PendingChange:
    tables.ensure_typed(catalog, old)
    evolve.record_created_tables(catalog, [old], run_id="1")
    return evolve.apply_pending(catalog, new, run_id="2")


def test_beside_a_change_under_review_and_after_that_was_rejected(catalog: SqlCatalog) -> None:
    new = contract(ID, HIDDEN)
    assert settled(catalog, contract(ID, EMAIL, OTHER), new).review == "open"
    for _ in range(2):
        held = resolve_publish_contract(catalog.load_table("ns.t"), new)
        assert [c.name for c in held.columns] == ["id", "email", "x"]
        assert (held.column("email").mask, held.drops_raw_records) == ("redact", True)
        if evolve.apply_pending(catalog, new, run_id="3").review == "open":
            evolve.decide(catalog, new, ReviewDecision(approve=False, who="ann", why="x stays", run_id="4"))


def test_of_a_column_that_waits_for_its_new_name(catalog: SqlCatalog) -> None:
    new = contract(ID, {**HIDDEN, "name": "mail", "renamed_from": "email", "source": "email"})
    assert settled(catalog, contract(ID, EMAIL), new).review == "open"
    assert resolve_publish_contract(catalog.load_table("ns.t"), new).column("email").mask == "redact"


def test_of_a_column_that_is_to_have_the_name_of_another(catalog: SqlCatalog) -> None:
    other = {"name": "mail", "type": "string"}
    new = contract(ID, {**HIDDEN, "name": "mail", "renamed_from": "email", "source": "email"})
    assert settled(catalog, contract(ID, EMAIL, other), new).review == "open"
    held = resolve_publish_contract(catalog.load_table("ns.t"), new)
    assert held.column("email").mask == "redact"


def test_of_a_column_that_has_its_new_name_already(catalog: SqlCatalog) -> None:
    mail = {**EMAIL, "name": "mail", "renamed_from": "email", "source": "email"}
    settled(catalog, contract(ID, EMAIL, OTHER), contract(ID, mail, OTHER))
    evolve.decide(
        catalog, contract(ID, mail, OTHER), ReviewDecision(approve=True, who="ann", why="so it is", run_id="3")
    )
    new = contract(ID, {**mail, "mask": "redact"})
    assert evolve.apply_pending(catalog, new, run_id="4").review == "open"
    assert resolve_publish_contract(catalog.load_table("ns.t"), new).column("mail").mask == "redact"


def test_while_the_registry_is_away(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", "http://127.0.0.1:1")
    avro = {"value": {"format": "avro"}}
    new = contract(ID, HIDDEN, "auto", **avro)
    assert settled(catalog, contract(ID, EMAIL, OTHER, **avro), new).schema_error
    assert resolve_publish_contract(catalog.load_table("ns.t"), new).column("email").mask == "redact"


def test_a_key_is_read_as_before_until_that_is_decided(catalog: SqlCatalog) -> None:
    keyed = {"mode": "upsert", "identifier": ["email"]}
    new = contract(ID, {**EMAIL, "mask": "sha256"}, **keyed)
    assert settled(catalog, contract(ID, EMAIL, **keyed), new).review == "open"
    assert resolve_publish_contract(catalog.load_table("ns.t"), new).column("email").mask is None


@pytest.mark.parametrize("answer", ["open", "rejected"])
def test_taking_it_away_again_waits_for_a_person(catalog: SqlCatalog, answer: str) -> None:
    old = contract(ID, EMAIL, OTHER)
    assert settled(catalog, old, contract(ID, HIDDEN)).review == "open"
    if answer == "rejected":
        evolve.decide(
            catalog, contract(ID, HIDDEN), ReviewDecision(approve=False, who="ann", why="x stays", run_id="3")
        )
    (_, masked, *_) = [row for row in evolve.list_versions(catalog, old) if row.state == SchemaState.APPLIED]
    stay = "existing rows and raw records in quarantine stay as they are"
    assert (masked.version, masked.words) == (2, [f"masks column email (redact) from now on: {stay}"])
    for file in (contract(ID, EMAIL), old):
        found = evolve.apply_pending(catalog, file, run_id="4")
        assert found.review == "open"
        assert (
            "changes the mask of column email: removes redact, so that its values can be read" in found.descriptions()
        )
        assert resolve_publish_contract(catalog.load_table("ns.t"), file).column("email").mask == "redact"
    done = evolve.decide(catalog, old, ReviewDecision(approve=True, who="ann", why="it is public", run_id="5"))
    assert done.new == old
    assert resolve_publish_contract(catalog.load_table("ns.t"), old).column("email").mask is None


def test_the_answer_to_the_rest_is_to_what_was_looked_at(catalog: SqlCatalog) -> None:
    """Though the file got its mask after the last plan, and the mask comes into force with the answer."""
    old, new = contract(ID, EMAIL, OTHER), contract(ID, HIDDEN)
    settled(catalog, old, contract(ID, EMAIL))
    shown = evolve.find_pending_change(catalog, catalog.load_table("ns.t"), new)
    assert shown.descriptions() == ["drops column x (long)"]
    told = {"who": "ann", "why": "x stays", "run_id": "3", "change_id": shown.change_id}
    assert evolve.decide(catalog, new, ReviewDecision(approve=False, **told)).review == "rejected"
    for _ in range(2):
        found = evolve.apply_pending(catalog, new, run_id="4")
        assert (found.review, found.version, found.change_id) == ("rejected", 2, shown.change_id)
    evolve.decide(catalog, new, ReviewDecision(approve=True, **told))
    found = evolve.find_pending_change(catalog, catalog.load_table("ns.t"), new)
    assert (found.version, found.changes, found.old) == (3, (), new)


def test_of_two_planners_one_puts_it_into_force(catalog: SqlCatalog) -> None:
    old, new = contract(ID, EMAIL, OTHER), contract(ID, HIDDEN)
    settled(catalog, old, old)
    seen = evolve.find_pending_change(catalog, catalog.load_table("ns.t"), new)
    for run in ("2", "3"):
        assert evolve.apply_pending(catalog, new, seen, run_id=run).review == "open"
    assert [row.state for row in evolve.list_versions(catalog, new)] == [
        SchemaState.APPLIED,
        SchemaState.APPLIED,
        SchemaState.REVIEW,
    ]


MAIL = {**EMAIL, "name": "mail", "source": "email"}
MOVED = {
    "points elsewhere": (contract(ID, {**MAIL, "mask": "redact", "source": "nick"}), EMAIL),
    "points elsewhere, unmasked": (contract(ID, {**MAIL, "source": "nick"}), {**MAIL, "name": "m"}),
    "is gone": (contract(ID, OTHER), {**EMAIL, "expression": "lower(mail_in)"}),
}


def put_in_force(catalog: SqlCatalog, file: Contract, run: str) -> None:
    if evolve.apply_pending(catalog, file, run_id=run).review == "open":
        evolve.decide(catalog, file, ReviewDecision(approve=True, who="ann", why="so it is", run_id=run))
    assert resolve_publish_contract(catalog.load_table("ns.t"), file) == file


@pytest.mark.parametrize(("second", "shows"), MOVED.values(), ids=MOVED)
def test_what_a_version_before_masked_is_not_shown_unasked(catalog: SqlCatalog, second: Contract, shows: Any) -> None:
    first = contract(ID, {**MAIL, "mask": "redact"})
    settled(catalog, first, first)
    put_in_force(catalog, second, "3")
    put_in_force(catalog, contract(*(c.model_dump(mode="json") for c in second.columns), {**OTHER, "name": "y"}), "4")
    inputs = {"inputs": [{"name": "mail_in", "type": "string", "source": "email"}]} if "expression" in shows else {}
    columns = [c.model_dump(mode="json") for c in second.columns]
    third = contract(*columns, {**OTHER, "name": "y"}, shows, **inputs)
    found = evolve.apply_pending(catalog, third, run_id="5")
    assert found.review == "open"
    told = f"adds column {shows['name']}, which reads field email that column mail masked before"
    assert told in found.descriptions()
    masked = contract(*columns, {**OTHER, "name": "y"}, {**shows, "mask": "redact"}, **inputs)
    assert evolve.find_pending_change(catalog, catalog.load_table("ns.t"), masked).review is None
    evolve.decide(catalog, third, ReviewDecision(approve=True, who="ann", why="it is public", run_id="6"))
    if not inputs:  # what was approved once may go and come back
        put_in_force(catalog, second, "7")
        assert evolve.find_pending_change(catalog, catalog.load_table("ns.t"), third).review is None


def test_another_table_of_the_name_masked_nothing(catalog: SqlCatalog) -> None:
    settled(catalog, contract(ID, HIDDEN), contract(ID, HIDDEN, OTHER))
    catalog.drop_table("ns.t")
    settled(catalog, contract(ID), contract(ID, OTHER))
    assert evolve.apply_pending(catalog, contract(ID, OTHER, EMAIL), run_id="3").review is None


def test_a_version_that_can_not_be_read_is_not_passed_over(catalog: SqlCatalog) -> None:
    settled(catalog, contract(ID), contract(ID, OTHER))
    row = next(r for r in evolve.list_versions(catalog, contract(ID)) if r.version == 1)
    schemas_table.append_rows(catalog, [replace(row, contract='{"columns": [{"mask": "rot13"}]}')])
    with pytest.raises(SchemaChangeError, match=r"Version 1 .* can't be read"):
        evolve.find_pending_change(catalog, catalog.load_table("ns.t"), contract(ID, OTHER, EMAIL))
