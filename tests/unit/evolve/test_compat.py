"""Fails when PyIceberg has a public way to do what `sluice.evolve.compat` does: then use that instead."""

import inspect

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Transaction
from pyiceberg.table.update import AssertCurrentSchemaId
from pyiceberg.types import LongType, NestedField

from sluice.evolve.compat import staged_commit


def test_a_transaction_still_has_no_public_updates_and_takes_no_requirements():
    public = {name for name in dir(Transaction) if not name.startswith("_")}
    assert not {name for name in public if "requirement" in name or name in ("updates", "staged_updates")}
    assert list(inspect.signature(Transaction.commit_transaction).parameters) == ["self"]


def test_staged_commit_gives_what_the_transaction_would_commit(tmp_path):
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", Schema(NestedField(1, "id", LongType())))
    transaction = table.transaction()
    assert staged_commit(transaction) == ((), ())
    with transaction.update_schema() as update:
        update.add_column("n", LongType())
    updates, requirements = staged_commit(transaction)
    assert [u.action for u in updates] == ["add-schema", "set-current-schema"]
    assert AssertCurrentSchemaId(current_schema_id=0) in requirements
    catalog.close()
