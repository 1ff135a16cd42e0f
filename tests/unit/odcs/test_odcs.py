"""Contracts become ODCS documents and are the same when they come back; other people's become contracts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema.validators import validator_for
from pydantic import ValidationError

from sluice.cli import main
from sluice.contract.contract import Contract, with_group
from sluice.contract.document import parse_document, read_document
from sluice.draft.text import as_block, as_yaml
from sluice.embedded.home import REPOSITORY
from sluice.errors import ContractError
from sluice.odcs.export_contract import as_standard
from sluice.odcs.import_contract import Wishes, draft_contract
from sluice.odcs.servers import configured_servers
from sluice.odcs.standard_file import read_standard

pytestmark = pytest.mark.unit
EXAMPLES = REPOSITORY / "tests" / "data" / "odcs"
SCHEMA = json.loads((resources.files("open_data_contract_standard") / "schema.json").read_text("utf-8"))
STANDARD = validator_for(SCHEMA)(SCHEMA)
HEAD = {"apiVersion": "v3.1.0", "kind": "DataContract", "id": "x", "version": "1.0.0"}
EVERYTHING: dict[str, Any] = {
    "table": "shop.eu.orders",
    "topic": ["orders-1", "orders-2"],
    "owner": "Team: Orders # 1",
    "doc": "",
    "mode": "upsert",
    "key": {"format": "avro"},
    "columns": [
        {"name": "line", "type": "int"},
        {"name": "id", "type": "uuid", "source": "$key.id"},
        {"name": "opens", "type": "int", "source": "$key.opens", "unit": "millis"},
        {"name": "at", "type": "timestamptz", "required": True, "doc": "1e5: \u00e9\nand more"},
        {"name": "day", "type": "date", "expression": "to_date(at)"},
        {"name": "email", "type": "string", "source": "`a.b`.c", "mask": "sha256"},
        {"name": "total", "type": "decimal(10, 2)", "renamed_from": "amount"},
        {"name": "hash", "type": "fixed[16]"},
        {"name": "tags", "type": "map<string, list<struct<a: int, B: map<string, float>>>>"},
    ],
    "identifier": ["id", "line"],
    "order": ["at"],
    "deletes": "ignore",
    "where": "total > 0 -- \u2028",
    "inputs": [{"name": "raw", "type": "binary"}],
    "partition_by": ["at", "bucket(4, id)", "line"],
    "start": "2024-01-31T00:00:00+01:00",
    "freshness": "3661s",
    "maintenance": {"snapshot_age": "8d", "strategy": "sort", "sort_by": ["total"]},
    "expectations": [
        {"type": "expect_table_row_count_to_be_between", "min_value": 1, "severity": "block"},
        {"type": "expect_column_values_to_not_be_null", "column": "total", "severity": "quarantine_rows"},
        {"type": "expect_column_values_to_not_be_null", "column": "total", "mostly": 0.97},
        {"type": "expect_compound_columns_to_be_unique", "column_list": ["id", "line"]},
        {"type": "expect_column_values_to_match_regex", "column": "email", "regex": "^.+@.+$", "mostly": 0.333333333},
        {"type": "expect_column_values_to_be_in_set", "column": "line", "value_set": [1, 2]},
        {"type": "expect_column_mean_to_be_between", "column": "total", "drift": {"tolerance": 0.5, "batches": 3}},
        {"type": "expect_column_max_to_be_between", "column": "_kafka_timestamp", "max_age": "2h"},
        {"type": "expect_column_values_to_be_unique", "column": "hash"},
        {"type": "expect_column_values_to_not_be_null", "column": "email", "mostly": 1},
    ],
}
AUTO = {
    "table": "raw.{topic}",
    "topic": {"pattern": "shop[.].*", "omit": ["shop.x"]},
    "owner": "me",
    "mode": "upsert",
    "deletes": "ignore",
    "value": {"format": "avro"},
    "columns": [{"name": "k", "type": "string", "source": "$key"}, {"auto": {"omit": ["hidden"]}}],
    "identifier": ["id"],
    "partition_by": ["month(placed)", "k"],
    "expectations": [{"type": "expect_column_values_to_not_be_null", "column": "placed"}],
}
OFFSETS = {
    "table": "shop.offsets",
    "topic": "o",
    "owner": "me",
    "columns": [{"name": "n", "type": "long"}, {"name": "at", "type": "timestamp"}],
    "partition_by": ["at"],
    "start": {0: 5, 1: 7},
}


def contracts() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every contract of the repository, its tests' and its documentation's, the parts of one completed."""
    yield from (("everything", EVERYTHING), ("auto", AUTO), ("offsets", OFFSETS))
    files = [*(REPOSITORY / "include/contracts").glob("*.yaml"), *(REPOSITORY / "tests/data").rglob("contract.yaml")]
    blocks = [(str(each.relative_to(REPOSITORY)), each.read_text("utf-8")) for each in files]
    for page in [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]:
        parts = page.read_text("utf-8").split("```yaml\n")[1:]
        blocks += [(f"{page.name}-{number}", part.split("```")[0]) for number, part in enumerate(parts)]
    for name, text in blocks:
        data = parse_document(text.encode(), name).data
        if isinstance(data, dict) and "columns" in data:
            yield name, {"table": "shop.orders", "topic": "orders", "owner": "me", **data}


def valid_contracts() -> dict[str, Contract]:
    found = {}
    for name, data in contracts():
        try:
            found[name] = Contract.model_validate(data)
        except ValidationError:  # a fragment that needs what stands elsewhere on its page
            assert name.endswith(tuple("0123456789")), name
    return found


CONTRACTS = valid_contracts()


def imported(text: str, folder: Path, **wishes: str) -> tuple[dict[str, Any], str]:
    """The contract of a document with one schema object, as plain values, and its text."""
    (folder / "x.odcs.yaml").write_text(text, encoding="utf-8")
    file = read_standard(folder / "x.odcs.yaml")
    ((table, raw),) = file.select("")
    body = as_yaml(draft_contract(file, table, raw, Wishes(**wishes)))
    document = parse_document(body.encode(), "draft")
    assert document.problems == [] and isinstance(document.data, dict), body
    return document.data, body


def exported(contract: Contract) -> str:
    return as_block(as_standard(contract).model_dump(by_alias=True, exclude_none=True))


def described(properties: list[Any], **more: Any) -> str:
    table = {"name": "shop.orders", "properties": properties, **more.pop("table", {})}
    return yaml.safe_dump({**HEAD, "schema": [table], **more}, sort_keys=False)


def test_there_are_contracts_of_all_kinds() -> None:
    assert len(CONTRACTS) > 40 and {"include/contracts/flights.yaml", "auto", "everything"} <= CONTRACTS.keys()
    assert sum(name.endswith(tuple("0123456789")) for name in CONTRACTS) > 5


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_contract_is_the_same_after_a_round_trip(name: str, tmp_path: Path) -> None:
    text = exported(CONTRACTS[name])
    if name in ("everything", "auto", "include/contracts/flights.yaml"):  # the validator is slow
        assert list(STANDARD.iter_errors(yaml.safe_load(text))) == []
    data, body = imported(text, tmp_path)
    assert Contract.model_validate(data) == CONTRACTS[name]
    assert body.count("# Note:") == 1 and "left out of the data contract: version, id, name" in body
    assert exported(Contract.model_validate(data)) == exported(CONTRACTS[name])


def test_a_document_has_the_standards_fields_for_what_they_can_say() -> None:
    document = as_standard(CONTRACTS["everything"], "2.1.0")
    assert (document.id, document.version, document.team.name) == ("shop.eu.orders", "2.1.0", "Team: Orders # 1")  # type: ignore[union-attr]
    (level,) = document.slaProperties or ()
    assert (level.property, level.value, level.unit, level.element) == ("latency", 3661, "seconds", "orders")
    (table,) = document.schema_ or ()
    columns = {str(each.name): each for each in table.properties or ()}
    assert [(n, c.primaryKeyPosition, c.required) for n, c in columns.items() if c.primaryKey] == [
        ("line", 2, True),
        ("id", 1, True),
    ]
    assert {n: c.partitionKeyPosition for n, c in columns.items() if c.partitioned} == {"at": 1, "id": 2, "line": 3}
    assert columns["day"].transformLogic == "to_date(at)"
    assert (columns["total"].logicalType, columns["total"].physicalType) == ("number", "decimal(10, 2)")
    value = columns["tags"].map and columns["tags"].map.value
    assert value and value.items and [each.name for each in value.items.properties or ()] == ["a", "B"]
    rules = [(r.metric, r.mustBe, r.mustBeLessOrEqualTo, r.unit, r.severity) for r in columns["total"].quality or ()]
    assert rules == [
        ("nullValues", 0, None, None, "error"),
        ("nullValues", None, 3, "percent", "warning"),
        (None, None, None, None, "warning"),
    ]
    # What Sluice checks of a batch is not what the metric promises of the table.
    assert {r.metric for r in (*(table.quality or ()), *(columns["hash"].quality or ()))} == {None}


def test_servers_are_those_of_the_environment_without_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SLUICE_KAFKA_CONFIG", "SLUICE_CATALOG", "PYICEBERG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "a:9092,b:9092")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "https://me:secret@lake:8181/iceberg?token=secret")
    document = as_standard(CONTRACTS["auto"], servers=configured_servers(CONTRACTS["auto"]))
    kafka, lake = document.servers or ()
    assert (kafka.type, kafka.host, kafka.format) == ("kafka", "a:9092,b:9092", "avro")
    assert (lake.type, lake.catalog, lake.catalogUrl) == ("iceberg", "lake", "https://lake:8181/iceberg")
    plain = document.model_dump(by_alias=True, exclude_none=True)
    assert list(STANDARD.iter_errors(plain)) == [] and "secret" not in str(plain)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "postgresql://me:secret@lake/db")
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS")
    assert list(configured_servers(CONTRACTS["auto"])) == []


def test_the_standards_own_examples_become_valid_contracts(tmp_path: Path) -> None:
    text = (EXAMPLES / "kafka-schema.odcs.yaml").read_text("utf-8")
    data, body = imported(text, tmp_path, default_owner="me")
    assert Contract.model_validate(with_group(data)).topics == ("orders",)
    assert (data["table"], data["value"]) == ("raw.orders", {"format": "avro"})
    assert data["columns"][2] == {"name": "qty", "type": "int", "required": True}
    assert "# guessed: the data contract names no team" in body
    assert "# Note: left out of the data contract: id, status, name, version, servers." in body
    assert "# Note: left out of column qty: businessName." in body

    text = (EXAMPLES / "table-columns-with-partition.odcs.yaml").read_text("utf-8")
    data, body = imported(text, tmp_path, topic="t", owner="me", namespace="pay")
    contract = Contract.model_validate(data)
    assert (contract.table, contract.mode) == ("pay.tbl", "upsert")
    assert contract.identifier == ("rcvr_cntry_code", "rcvr_id")
    assert contract.partition_by == ("rcvr_cntry_code", "year")
    assert "# guessed: the data contract has a primary key" in body and "# varchar(20) in the data contract" in body


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"physicalType": "VARCHAR(20)"}, "string"),
        ({"physicalType": "NUMERIC(12, 3)"}, "decimal(12, 3)"),
        ({"physicalType": "number", "logicalType": "integer"}, "long"),
        ({"physicalType": "bigserial"}, "long"),
        ({"physicalType": "Timestamp(6) with time zone"}, "timestamptz"),
        ({"physicalType": "double precision"}, "double"),
        ({"physicalType": "struct<A: int>"}, "struct<A: int>"),
        ({"physicalType": "time", "logicalType": "time"}, "string"),
        ({"physicalType": "map<int, int>", "logicalType": "map"}, "string"),
        ({"physicalType": "geometry", "logicalType": "object"}, "string"),
        ({"logicalType": "timestamp"}, "timestamptz"),
        ({"logicalType": "timestamp", "logicalTypeOptions": {"timezone": False}}, "timestamp"),
        ({"logicalType": "integer", "logicalTypeOptions": {"format": "i16"}}, "int"),
        ({"logicalType": "vector", "logicalTypeOptions": {"dimensions": 3}}, "list<float>"),
        ({"logicalType": "array", "items": {"logicalType": "date"}}, "list<date>"),
        ({"logicalType": "object", "properties": [{"name": "a", "logicalType": "boolean"}]}, "struct<a: boolean>"),
        ({"logicalType": "object", "properties": [{"name": "a-b"}]}, "string"),
        ({}, "string"),
    ],
)
def test_types_of_other_systems_are_translated(given: dict[str, Any], kind: str, tmp_path: Path) -> None:
    data, body = imported(described([{"name": "c", **given}]), tmp_path)
    assert data["columns"][0]["type"] == kind
    exact = given.get("physicalType") == kind
    assert ("in the data contract" in body or "has no type" in body) is not exact


def test_bounds_and_rules_become_expectations_or_are_named(tmp_path: Path) -> None:
    rules = [
        {"metric": "nullValues", "mustBeLessThan": 5, "unit": "percent", "severity": "error"},
        {"rule": "nullValues", "mustBeLessThan": 5, "name": "few rows"},
        {"metric": "invalidValues", "arguments": {"validValues": [None, 1]}, "mustBe": 0},
        {"type": "sql", "query": "select 1", "mustBe": 1, "name": "by SQL"},
        {"type": "custom", "engine": "soda", "implementation": "x", "name": "by soda"},
        {
            "type": "custom",
            "engine": "great-expectations",
            "implementation": "type: expect_column_max_to_be_between\nkwargs: {maxValue: 9}",
        },
        {"type": "custom", "engine": "great-expectations", "implementation": "!!python/name:os.system", "name": "tag"},
        {"type": "text", "description": "verified", "name": "by text"},
    ]
    options = {"minimum": 1, "exclusiveMaximum": 10, "format": "i64"}
    columns = [
        {"name": "n", "logicalType": "integer", "logicalTypeOptions": options, "quality": rules},
        {"name": "s", "logicalType": "string", "logicalTypeOptions": {"maxLength": 3}, "enum": [{"value": "a"}]},
        {"name": "other name", "logicalType": "string", "unique": True, "physicalName": "t"},
    ]
    whole = [
        {"metric": "rowCount", "mustBeGreaterThan": 1},
        {"metric": "duplicateValues", "mustBe": 0, "arguments": {"properties": ["n", "other name"]}},
    ]
    data, body = imported(described(columns, table={"quality": whole}), tmp_path, topic="t", owner="me")
    assert Contract.model_validate({**data, "group": "g"})
    prefix = "expect_column_values_to_"
    assert data["expectations"] == [
        {"type": "expect_compound_columns_to_be_unique", "column_list": ["n", "t"]},
        {"type": f"{prefix}not_be_null", "column": "n", "mostly": 0.95},
        {"type": f"{prefix}be_in_set", "column": "n", "value_set": [1]},
        {"type": "expect_column_max_to_be_between", "column": "n", "max_value": 9},
        {"type": f"{prefix}be_between", "column": "n", "min_value": 1, "max_value": 10, "strict_max": True},
        {"type": "expect_column_value_lengths_to_be_between", "column": "s", "max_value": 3},
        {"type": f"{prefix}be_in_set", "column": "s", "value_set": ["a"]},
        {"type": f"{prefix}be_unique", "column": "t"},
    ]
    for name in ("few rows", "by SQL", "by soda", "by text", "tag", "rowCount"):
        assert f": {name} (" in body
    assert "severity error in the data contract" in body


def test_names_and_texts_stay_data(tmp_path: Path) -> None:
    evil = "x\ntable: other.table\n# \u2028${jndi}"
    columns = [
        {"name": evil, "physicalType": evil, "description": evil, "tags": [evil], "classification": evil},
        {"name": "_kafka_offset", "logicalType": "integer"},
        {"name": "A", "logicalType": "string"},
        {"name": "a", "logicalType": "string"},
    ]
    more = {"team": [{"username": evil, "role": "Owner"}], "tenant": evil, evil: None}
    more.pop(evil)
    data, body = imported(described(columns, **more, customProperties=[{"property": evil, "value": 1}]), tmp_path)
    assert (data["table"], data["owner"]) == ("shop.orders", evil)
    names = [each["name"] for each in data["columns"]]
    assert names[1:] == ["field_kafka_offset", "A", "a_2"] and data["columns"][0]["doc"] == evil
    assert not [line for line in body.splitlines() if line.startswith("table:")][1:]
    # A field of another column's name is read, not renamed.
    assert data["columns"][3]["source"] == "a"


def test_the_settings_of_another_author_are_checked_like_any_contract(tmp_path: Path) -> None:
    own = {"topic": "t", "mode": "sideways", "columns": [], "nonsense": 1}
    table = {"customProperties": [{"property": "sluice", "value": own}]}
    data, body = imported(described([{"name": "n", "physicalType": "int"}], table=table), tmp_path, owner="me")
    assert data["columns"] == [{"name": "n", "type": "int"}] and "nonsense" not in data
    assert "left out of the custom property sluice: columns, nonsense" in body
    with pytest.raises(ValidationError, match="mode"):
        Contract.model_validate(with_group(data))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it must be a map"),
        ("- a\n", "it must be a map"),
        ("kind: DataContract\napiVersion: v2.2.2\n", ":2: apiVersion: 'v2.2.2' can't be read"),
        ("kind: DataContract\napiVersion: v3.9.0\n", ":2: apiVersion: 'v3.9.0' can't be read"),
        ("kind: DataContract\napiVersion: 3\n", ":2: apiVersion: 3 can't be read"),
        ("kind: DataContract\n", "apiVersion: no version can't be read"),
        ("kind: Pod\napiVersion: v1\n", ":1: kind: an ODCS file has kind: DataContract, not 'Pod'"),
        ("dataContractSpecification: 1.1.0\n", "kind: an ODCS file has kind: DataContract, which is missing"),
        ("!!python/object/apply:os.system ['true']\n", "tag:yaml.org,2002:python/object/apply:os.system"),
        ("a: &x 1\nb: *x\n", "anchors and aliases"),
        ("a: 1\na: 2\n", "duplicate of line 1"),
        ("[" * 5000, "levels deep"),
    ],
)
def test_what_is_no_data_contract_is_a_clear_error(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ContractError) as raised:
        read_standard(tmp_path / "x.yaml")
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"schema": {"name": "x"}}, "schema: "),
        ({"schema": [None]}, "schema[0]: "),
        ({"schema": [{"properties": []}]}, "schema[0].name: is required"),
        ({"schema": [{"name": "x", "properties": [{"logicalType": "string"}]}]}, "schema[0].properties[0].name"),
        ({"schema": [{"name": "x", "properties": [{"name": ["y"]}]}]}, "schema[0].properties[0].name: must be text"),
        ({"schema": [{"name": "x", "properties": [{"name": "y", "required": "maybe"}]}]}, "properties[0].required"),
        ({"schema": [{"name": "x", "quality": "good"}]}, "schema[0].quality: "),
        ({"version": 1.5}, "version: must be text, not 1.5: put it in quotes"),
        ({"nonsense": 1}, "nonsense: unknown field"),
        ({"team": 7}, "team"),
    ],
)
def test_values_of_a_wrong_type_are_named_with_their_line(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(yaml.safe_dump({**HEAD, **more}, sort_keys=False))
    with pytest.raises(ContractError) as raised:
        read_standard(tmp_path / "x.yaml")
    assert raised.value.message.startswith(f"{tmp_path}/x.yaml:") and message in raised.value.message


def test_a_custom_property_that_is_no_map_is_a_clear_error(tmp_path: Path) -> None:
    bad = [{"property": "sluice", "value": "x"}]
    with pytest.raises(ContractError, match="column n: the custom property sluice must be a map, not 'x'"):
        imported(described([{"name": "n", "customProperties": bad}]), tmp_path)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("SLUICE_CONTRACTS", str(tmp_path / "contracts"))
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)

    def running(*arguments: str) -> tuple[int, str, str]:
        code = main.main(["contract", *arguments])
        return code, *capsys.readouterr()

    return running


def test_the_command_writes_a_contract_that_passes_the_checks_and_export_gives_it_back(
    run: Any, tmp_path: Path
) -> None:
    kafka = str(EXAMPLES / "kafka-schema.odcs.yaml")
    code, out, _ = run("import", kafka, "--owner", "me", "--namespace", "shop")
    assert code == 0 and "orders.yaml: written, and valid\n" in out and "left out of column qty: businessName" in out
    written = tmp_path / "contracts" / "orders.yaml"
    assert written.read_text().startswith("# yaml-language-server: $schema=")
    assert run("check")[0] == 0
    evil = "a\u202eb \u00e9 \\u202e"  # on a terminal the first would turn the text round
    (tmp_path / "contracts" / "evil.yaml").write_text(as_block({**OFFSETS, "doc": evil, "group": "shop"}))
    code, out, _ = run("export", "shop.offsets")
    assert code == 0 and "\u202e" not in out and imported(out, tmp_path)[0]["doc"] == evil
    code, out, _ = run("export", "shop.orders")
    assert code == 0 and out == run("export", "shop.orders")[1]
    (tmp_path / "back.odcs.yaml").write_text(out)
    code, out, err = run("import", str(tmp_path / "back.odcs.yaml"), "--stdout")
    assert (code, "orders.yaml: printed, and valid" in err) == (0, True)
    original = {**read_document(written, "").data, "group": "shop"}  # type: ignore[dict-item]
    assert Contract.model_validate(parse_document(out.encode(), "").data) == Contract.model_validate(original)
    code, _, err = run("import", kafka)
    assert code == 3 and "exists, and is not overwritten" in err


def test_the_command_says_which_lines_are_missing_and_refuses_what_would_stop_others(run: Any, tmp_path: Path) -> None:
    table = str(EXAMPLES / "table-columns-with-partition.odcs.yaml")
    code, out, _ = run("import", table)
    assert code == 3 and "tbl.yaml: written; add or correct:\n  line" in out and ": topic: is required\n" in out
    (tmp_path / "contracts" / "tbl.yaml").unlink()
    assert run("import", table, "--topic", "t")[0] == 0
    code, _, err = run("import", table, "--topic", "t", "--group", "b", "--namespace", "other", "--schema", "tbl")
    assert code == 3 and "exists" in err
    (tmp_path / "contracts" / "tbl.yaml").rename(tmp_path / "contracts" / "first.yaml")
    code, _, err = run("import", table, "--topic", "t", "--group", "b", "--namespace", "other")
    assert code == 3 and "does not pass the checks, and was not written" in err
    assert [each.name for each in (tmp_path / "contracts").iterdir()] == ["first.yaml"]


def test_one_topic_is_not_taken_for_several_objects(run: Any, tmp_path: Path) -> None:
    objects = [{"name": name, "properties": [{"name": "n"}]} for name in ("a", "b")]
    (tmp_path / "x.yaml").write_text(yaml.safe_dump({**HEAD, "schema": objects}))
    code, _, err = run("import", str(tmp_path / "x.yaml"), "--topic", "t")
    assert code == 3 and "Name one with --schema: a, b." in err
    code, _, err = run("import", str(tmp_path / "x.yaml"), "--schema", "c")
    assert code == 3 and "has no schema object 'c'" in err and "It has: a, b." in err
    assert run("import", str(tmp_path / "x.yaml"), "--schema", "b", "--topic", "t")[0] == 0
