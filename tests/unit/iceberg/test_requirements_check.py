"""Whether a catalog enforces the requirements of commits: asked once per catalog, and planning stops if it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableResponse, Table

from sluice.contract.contract import Contract
from sluice.contract.folder import Group
from sluice.contract.groups import GroupSettings
from sluice.errors import RequirementsNotEnforcedError
from sluice.iceberg import requirements_check, table_names
from sluice.ledger.offsets_table import Ledger
from sluice.plan import plan
from sluice.plan.model import PlanInputs

pytestmark = pytest.mark.unit


class Counting(SqlCatalog):
    """A catalog that counts the commits asked of it."""

    asked = 0

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        self.asked += 1
        return super().commit_table(table, requirements, updates)


class Ignoring(Counting):
    """A catalog that commits whatever is required."""

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        assert requirements
        return super().commit_table(table, (), updates)


class Racing(Ignoring):
    """A catalog that ignores requirements, and refuses the first commit because another writer came first."""

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        if self.asked == 0:
            self.asked = 1
            with self.load_table(table.name()).transaction() as transaction:
                transaction.set_properties({"another": "writer"})
            raise CommitFailedException("Table has been updated by another process")
        return super().commit_table(table, requirements, updates)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "warehouse").mkdir()
    there: list[SqlCatalog] = []

    def open_one(kind: type[SqlCatalog]) -> SqlCatalog:
        there.append(kind("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse"))
        return there[-1]

    yield open_one
    for each in there:
        each.close()


def test_a_catalog_that_refuses_is_asked_once_and_its_answer_is_kept(opened) -> None:
    catalog = opened(Counting)
    requirements_check.check(catalog, Ledger(catalog).table)
    assert catalog.asked == 2  # the refused commit, and the one that keeps the answer
    ledger = Ledger(catalog)
    assert ledger.table.properties[requirements_check.ENFORCED] == requirements_check.identify(catalog)
    assert "Counting" in requirements_check.identify(catalog)
    requirements_check.check(catalog, ledger.table)
    assert catalog.asked == 2
    # An answer that another catalog gave, before the table was registered here, does not count.
    with ledger.table.transaction() as transaction:
        transaction.set_properties({requirements_check.ENFORCED: "pyiceberg.catalog.rest.RestCatalog"})
    asked = catalog.asked
    requirements_check.check(catalog, Ledger(catalog).table)
    assert catalog.asked == asked + 2


@pytest.mark.parametrize("kind", [Ignoring, Racing])
def test_a_catalog_that_ignores_requirements_stops_planning_each_time(opened, kind, tmp_path) -> None:
    catalog = opened(kind)
    body = {"table": "a.b", "topic": "t", "group": "g", "owner": "me", "columns": [{"name": "id", "type": "long"}]}
    group = Group("g", GroupSettings(), (Contract.model_validate(body),))
    for _ in range(2):
        with pytest.raises(RequirementsNotEnforcedError, match=f"{kind.__name__}.*main at snapshot 1") as error:
            plan.write_plan(group, PlanInputs(None, catalog, None), run_id="r")
        assert "sluice.offsets" in str(error.value) and error.value.next_step
    assert catalog.load_table(table_names.LEDGER).properties[requirements_check.ENFORCED] == "no"


def test_a_catalog_whose_identity_is_that_of_pyiceberg_is_named_by_it(catalog) -> None:
    assert requirements_check.identify(catalog) == "pyiceberg.catalog.sql.SqlCatalog"
    requirements_check.check(catalog, Ledger(catalog).table)
    # The ledger of later plans, opened by another client of the same catalog, has the answer.
    assert requirements_check.is_answered(catalog, Ledger(catalog).table)
