"""The JSON Schemas for editors: current, and as strict as the models on single fields."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sluice.contract.contract import Contract
from sluice.contract.document import read_document
from sluice.contract.folder import load_contracts
from sluice.draft.text import SCHEMA_HEADER
from sluice.embedded.home import REPOSITORY

pytestmark = pytest.mark.unit
FOLDER = REPOSITORY / "include/sluice/contract/schemas"
SHIPPED = sorted([*(REPOSITORY / "include/contracts").glob("*.yaml"), *(REPOSITORY / "examples").glob("*/*.yaml")])
BODY = {"table": "a.b", "topic": "t", "owner": "me", "columns": [{"name": "n", "type": "long"}]}


def validator(name: str) -> Draft202012Validator:
    schema = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def generator(name: str) -> Any:
    """A script of .ci, which generates files from the models."""
    sys.path.insert(0, str(REPOSITORY / ".ci"))
    return importlib.import_module(name)


def test_they_are_current():
    found = {each.name: each.read_text(encoding="utf-8") for each in FOLDER.iterdir()}
    assert found == generator("json_schemas").as_files(), "run `make contract-reference`"


def test_the_reference_pages_are_current():
    for page, text in generator("contract_reference").pages().items():
        assert page.read_text(encoding="utf-8") == text, "run `make contract-reference`"


def test_a_description_is_of_a_field():
    """The generator needs one for each field; one of a field that is gone is a mistake as well."""
    module = generator("json_schemas")
    models = module.models()
    del models["ContractDefaults"]  # its fields are those of a contract
    for name, model in models.items():
        assert set(module.descriptions(model)) == set(model.model_fields), name


@pytest.mark.parametrize("name", ["contract", "defaults", "groups"])
def test_a_default_fits_its_own_field(name: str):
    schema = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    for model in schema["$defs"].values():
        for field, node in model["properties"].items():
            if "default" in node:
                found = Draft202012Validator({**node, "$defs": schema["$defs"]}).iter_errors(node["default"])
                assert list(found) == [], field


@pytest.mark.parametrize("file", SHIPPED, ids=lambda each: str(each.relative_to(REPOSITORY)))
def test_the_shipped_files_name_their_schema_and_fit_it(file: Path):
    first = file.read_text(encoding="utf-8").splitlines()[0]
    schema = (file.parent / first.removeprefix(f"# {SCHEMA_HEADER}")).resolve()
    assert schema == FOLDER / ("groups.json" if file.name == "groups.yaml" else "contract.json")
    assert list(validator(schema.stem).iter_errors(read_document(file, file.name).data)) == []
    assert load_contracts(file.parent).problems == ()


@pytest.mark.parametrize("file", sorted((REPOSITORY / "tests/data/cases").rglob("contract.yaml")), ids=str)
def test_contracts_of_the_cases_fit(file: Path):
    assert list(validator("contract").iter_errors(read_document(file, file.name).data)) == []


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"freshness": "15m", "start": {0: 5}, "properties": {"a": True}},
        {"topic": ["a", "b"], "start": "latest"},
        {"topic": {"pattern": "a.*", "omit": ["ab"]}, "start": "2024-01-31T00:00:00Z"},
        {"columns": "auto", "value": {"format": "avro"}},
        {"columns": [{"name": "n", "type": "long"}, "auto"], "value": {"format": "avro"}},
        {"columns": [{"auto": {"omit": ["x"]}}], "value": {"format": "avro"}},
        {"expectations": [{"type": "expect_column_values_to_be_between", "column": "n", "min_value": 0}]},
        {"mode": "upsert", "identifier": ["n"], "cdc": {"format": "debezium"}, "deletes": "hard"},
    ],
)
def test_what_the_model_takes_fits(more: dict[str, Any]):
    Contract.model_validate(BODY | more)
    as_json = json.loads(json.dumps(BODY | more))  # YAML's whole numbers as names become text
    assert list(validator("contract").iter_errors(as_json)) == []


@pytest.mark.parametrize(
    "more",
    [
        {"primary_key": ["n"]},
        {"mode": "merge"},
        {"freshness": "5 parsecs"},
        {"limits": {"records_per_batch": 0}},
        {"columns": [{"name": "n"}]},
        {"columns": [{"name": "n", "type": "long", "typ": "x"}]},
        {"columns": "all"},
        {"errors": {"max_ratio": 2}},
        {"auto": {}},
    ],
)
def test_what_the_model_refuses_does_not_fit(more: dict[str, Any]):
    assert list(validator("contract").iter_errors(BODY | more))


def test_defaults_and_groups():
    defaults, groups = validator("defaults"), validator("groups")
    assert list(defaults.iter_errors({"owner": "me", "errors": {"max_count": 3}})) == []
    assert list(defaults.iter_errors({"table": "a.b"}))
    good = {"defaults": {"retries": 1}, "shop": None, "lake": {"schedule": None, "timeout": "30m"}, "alerts": {}}
    assert list(groups.iter_errors(good)) == []
    assert list(groups.iter_errors({"shop": {"retires": 1}}))
