"""Records of another kind than a contract reads: their schema has none of the fields that columns read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.contract.contract import Contract
from sluice.formats.decode import wanted_fields
from sluice.formats.schema_compat import find_incompatible_field
from sluice.kafka.registry import WriterSchema

READ = [{"name": "id", "type": "long"}, {"name": "city", "type": "string", "source": "address.city"}]
META = [{"name": "op", "type": "string"}, {"name": "__op", "type": "string"}, {"name": "__deleted", "type": "string"}]
ENVELOPE = [{"name": "source", "type": {"type": "record", "name": "S", "fields": [{"name": "lsn", "type": "long"}]}}]


def record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [*fields]}


def address(field: str) -> dict[str, Any]:
    return {"name": "address", "type": record("A", {"name": field, "type": "string"})}


@pytest.mark.parametrize("cdc", [None, "debezium", "debezium_unwrapped", "op_field"])
@pytest.mark.parametrize(("field", "is_read"), [("city", True), ("street", False)])
def test_a_row_of_nulls_alone_is_no_row(cdc: str | None, field: str, is_read: bool) -> None:
    lsn = [{"name": "lsn", "type": "long", "source": "$source.lsn"}] * (cdc == "debezium")
    values: dict[str, Any] = {"table": "db.t", "topic": "t", "owner": "o", "value": {"format": "avro"}}
    values |= {"cdc": {"format": cdc} | ({"op": "op"} if cdc == "op_field" else {})} if cdc else {}
    wanted = wanted_fields(Contract.model_validate({**values, "columns": [*READ, *lsn]}))
    fields = [*META, address(field)]
    if cdc == "debezium":
        row = {"name": "after", "type": ["null", record("Row", address(field))]}
        fields = [*META, *ENVELOPE, {"name": "before", "type": ["null", "Row"]}, row][::-1]
    schema = WriterSchema(1, "AVRO", json.dumps(record("R", *fields)))
    found = find_incompatible_field("avro", schema, wanted)
    assert (found and found.message) == (None if is_read else "the schema has none of the fields that columns read")
