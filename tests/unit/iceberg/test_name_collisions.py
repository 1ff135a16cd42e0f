"""Two topics or tables with the same name for an own table: the second stops, and reads and writes nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from sluice.contract.contract import Contract
from sluice.errors import NameCollisionError, SluiceError
from sluice.iceberg import deletes_table, table_names, tables
from sluice.ledger import backlog
from sluice.ledger.maintenance_table import Action
from sluice.maintain import assess
from sluice.maintain.expiry_plan import AssessmentInputs
from tests.unit.maintain.test_assess import NOW, filled, promise

pytestmark = pytest.mark.unit

TOPIC = "orders.eu"
TWIN = table_names.safe_identifier(TOPIC)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")


def contract(table: str) -> Contract:
    body = {"table": table, "topic": "t", "group": "g", "owner": "me", "mode": "upsert", "identifier": ["id"]}
    return Contract.model_validate(body | {"columns": [{"name": "id", "type": "long", "required": True}]})


@pytest.mark.parametrize(("first", "second"), [(TOPIC, TWIN), (TWIN, TOPIC)])
def test_a_topic_that_is_named_like_anothers_staging_table_stops(catalog: Catalog, first: str, second: str) -> None:
    made = tables.ensure_staging(catalog, first)
    for use in (tables.ensure_staging, tables.load_staging):
        with pytest.raises(NameCollisionError) as refused:
            use(catalog, second)
        assert f"{first!r}" in str(refused.value) and f"{second!r}" in str(refused.value)
        assert f"topic {second}" in str(refused.value) and "Rename one of the two topics" in str(refused.value)
    assert tables.load_staging(catalog, first) == tables.ensure_staging(catalog, first) == made
    # A plan stops that topic alone.
    broken: dict[str, SluiceError] = {}
    assert list(backlog.load_staging(catalog, [first, second], broken)) == [first]
    assert list(broken) == [second] and isinstance(broken[second], NameCollisionError)


def test_two_tables_never_share_a_quarantine_or_a_deletes_table(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a catalog that ignores case, or where the short hashes agree."""
    monkeypatch.setattr(table_names, "safe_identifier", lambda _: "the_same")
    mine, other = contract("db.mine"), contract("db.other")
    tables.ensure_quarantine(catalog, mine)
    deletes_table.ensure_deletes_table(catalog, mine)
    base = tables.ensure_typed(catalog, other)
    for use in (
        lambda: tables.ensure_quarantine(catalog, other),
        lambda: tables.load_quarantine(catalog, other),
        lambda: deletes_table.ensure_deletes_table(catalog, other),
        lambda: deletes_table.ensure_deletes_table(catalog, other, base),
        lambda: deletes_table.load_deletes_table(catalog, other, base),
        lambda: tables.load_deletes(catalog, other),
    ):
        with pytest.raises(NameCollisionError, match=r"'db\.mine'.*'db\.other'.*table db\.other"):
            use()
    assert tables.load_deletes(catalog, mine) is not None, "it is not taken for that of an earlier table, and dropped"


def test_a_table_without_the_property_keeps_its_name(catalog: Catalog) -> None:
    made = tables.ensure_staging(catalog, TOPIC)
    with made.transaction() as change:
        change.remove_properties("sluice.topic")
    assert tables.load_staging(catalog, TOPIC) is not None


def test_maintenance_leaves_the_staging_table_of_another_topic_alone(catalog: Catalog, tmp_path: Path) -> None:
    promises = promise(tmp_path)
    _, staging = filled(catalog, promises, 2)
    with staging.transaction() as change:
        change.set_properties({"sluice.topic": "Orders"})
    for action in Action:
        found = {n.table: n for n in assess.assess_tables(AssessmentInputs(catalog, promises, NOW), action)}
        need = found["sluice_staging.orders"]
        assert need.steps == () and "NameCollisionError" in str(need.error), need
