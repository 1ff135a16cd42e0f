"""A table keeps to the key that its masked values were hashed with."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table.update import RemovePropertiesUpdate

from sluice.contract.contract import Contract
from sluice.errors import ConfigError
from sluice.formats import masks
from sluice.iceberg import refs, tables
from sluice.ingest.merge_batch import MASK_KEY, check_mask_key

pytestmark = pytest.mark.unit

KEYED = {"mode": "upsert", "identifier": ["id"]}
SECRETS = ("the first secret of all", "another secret of all")


def contract(mask: str | None, **fields: Any) -> Contract:
    columns = [{"name": "id", "type": "string", "mask": mask}, {"name": "n", "type": "int"}]
    return Contract.model_validate(
        {"table": "shop.people", "topic": "people", "group": "shop", "owner": "me", "columns": columns, **fields}
    )


def test_another_key_than_the_one_of_the_tables_rows_is_refused(catalog: Catalog, monkeypatch) -> None:
    hashed = contract("sha256", **KEYED)
    table = tables.ensure_typed(catalog, hashed)
    before = table.metadata.current_snapshot_id
    for secret in (SECRETS[0], SECRETS[0]):
        monkeypatch.setenv(masks.KEY_VARIABLE, secret)
        check_mask_key(catalog, table, hashed)
    now = catalog.load_table("shop.people")
    assert now.metadata.current_snapshot_id == before
    assert not any(secret in str(now.properties) for secret in SECRETS)
    monkeypatch.setenv(masks.KEY_VARIABLE, SECRETS[1])
    for known in (table, now):  # as it was before its first hash, and as it is
        with pytest.raises(ConfigError, match=r"SLUICE_MASK_KEY is not the one.*UNSET TBLPROPERTIES"):
            check_mask_key(catalog, known, hashed)
    refs.commit(catalog, now, (), (RemovePropertiesUpdate(removals=[MASK_KEY]),))
    check_mask_key(catalog, catalog.load_table("shop.people"), hashed)
    monkeypatch.setenv(masks.KEY_VARIABLE, SECRETS[0])
    with pytest.raises(ConfigError, match="not the one"):
        check_mask_key(catalog, catalog.load_table("shop.people"), hashed)


@pytest.mark.parametrize("mask", [None, "redact"])
def test_a_table_without_hashes_needs_no_key(catalog: Catalog, monkeypatch, mask: str | None) -> None:
    monkeypatch.delenv(masks.KEY_VARIABLE, raising=False)
    plain = contract(mask)
    table = tables.ensure_typed(catalog, plain)
    check_mask_key(catalog, table, plain)
    assert catalog.load_table("shop.people").metadata_location == table.metadata_location
