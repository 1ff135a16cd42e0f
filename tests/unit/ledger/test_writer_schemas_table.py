"""What is remembered of the schemas that a topic's records were read with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from sluice.errors import SchemaIdReusedError
from sluice.iceberg import table_names, tables
from sluice.kafka.registry import WriterSchema
from sluice.ledger import writer_schemas_table

pytestmark = pytest.mark.unit

ONE = WriterSchema(1, "AVRO", '{"type": "t.P"}', (("t.P", '"long"'),))
TWO = WriterSchema(2, "JSON", "{}")


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", "http://user:secret@registry")
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}")


def check(catalog: Catalog, *used: WriterSchema, topic: str = "t") -> None:
    writer_schemas_table.check_and_record(catalog, topic, used, run_id="r")


def rows(catalog: Catalog) -> list[tuple[Any, ...]]:
    found = catalog.load_table(table_names.WRITER_SCHEMAS).scan().to_arrow().to_pylist()
    return sorted((r["topic"], r["schema_id"], r["registry"], r["references"] is None, r["run_id"]) for r in found)


def test_each_id_of_a_topic_is_recorded_once(catalog: Catalog) -> None:
    check(catalog)
    assert tables.load(catalog, table_names.WRITER_SCHEMAS) is None, "nothing is made where there is no schema"
    check(catalog, ONE)
    check(catalog, ONE, TWO)
    check(catalog, replace(ONE, text=json.dumps(json.loads(ONE.text), indent=2)), TWO)
    check(catalog, replace(TWO, text='["another topic"]'), topic="u")
    told = ("http://registry", False, "r")
    assert rows(catalog) == [("t", 1, *told), ("t", 2, *told), ("u", 2, *told)]
    assert len(catalog.load_table(table_names.WRITER_SCHEMAS).snapshots()) == 3


def test_an_id_with_another_schema_stops_its_topic_until_its_row_is_deleted(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(catalog, ONE, TWO)
    reused = replace(ONE, references=(("t.P", '"int"'),))
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", "http://another")
    for used in ((reused,), (TWO, reused, replace(TWO, id=3))):
        with pytest.raises(SchemaIdReusedError, match="at http://another returns another schema for id 1") as error:
            check(catalog, *used)
        assert "DELETE FROM sluice.writer_schemas WHERE topic = 't' AND schema_id = 1 " in error.value.next_step
        assert error.value.fields == {"schema_id": 1, "topic": "t"}
    assert len(rows(catalog)) == 2
    check(catalog, ONE, TWO)
    catalog.load_table(table_names.WRITER_SCHEMAS).delete("topic = 't' and schema_id = 1")
    check(catalog, reused, TWO)
    with pytest.raises(SchemaIdReusedError):
        check(catalog, ONE)


def test_references_that_the_registry_no_longer_has_are_not_compared(catalog: Catalog) -> None:
    check(catalog, replace(ONE, text="inlined", registered=ONE.text, references=()))
    assert rows(catalog)[0][3]
    check(catalog, ONE)
    with pytest.raises(SchemaIdReusedError):
        check(catalog, replace(ONE, text='"long"', references=()))


def test_two_writers_that_differ_stop_whoever_comes_next(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    check(catalog, ONE)
    with monkeypatch.context() as patch:
        patch.setattr(writer_schemas_table, "_read", lambda *_: [])
        check(catalog, replace(ONE, text='"int"'))
    for used in (ONE, replace(ONE, text='"int"')):
        with pytest.raises(SchemaIdReusedError):
            check(catalog, used)
