"""Writes the JSON Schemas of contracts, `groups.yaml` and `defaults.yaml`, by which editors complete and check them.

Fields and descriptions come from the models in `sluice.contract`. `make contract-reference` runs it. A unit test fails
when a file is out of date. What needs more than one field is checked by `contract check` alone.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "include" / "sluice" / "contract" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
COLUMNS = ("table", "topic", "columns")
UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def attributes(docstring: str) -> dict[str, str]:
    """Return the description of each attribute, from the part "Attributes" of a class's docstring."""
    part = inspect.cleandoc(docstring).partition("\nAttributes:\n")[2]
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", part, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def descriptions(model: type) -> dict[str, str]:
    """Return the description of each field, from the docstrings of its class and bases."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__[: model.__mro__.index(BaseModel)]):
        found |= attributes(each.__doc__ or "")
    return found


def models() -> dict[str, type]:
    """Return the models of a contract's and a group's parts by name."""
    from sluice.contract import contract, groups  # noqa: F401 - the models exist once their modules are loaded
    from sluice.contract.values import StrictModel

    def below(model: type) -> list[type]:
        return [each for inner in model.__subclasses__() for each in (inner, *below(inner))]

    return {each.__name__: each for each in below(StrictModel) if each.__module__.startswith("sluice.contract.")}


def describe(schema: dict[str, Any]) -> None:
    """Set the description of each field of the models in a schema."""
    from sluice.contract.contract import Contract

    outer = [(Contract, schema)] if "table" in schema["properties"] else []
    for model, node in [*outer, *((models()[name], each) for name, each in schema["$defs"].items())]:
        texts = descriptions(model)
        for name, field in node["properties"].items():
            field["description"] = texts[name]


def duration(text: str) -> str:
    """Return an ISO 8601 duration as a contract writes it."""
    seconds = int(TypeAdapter(timedelta).validate_python(text).total_seconds())
    size, unit = next(each for each in UNITS if seconds % each[0] == 0)
    return f"{seconds // size}{unit}"


def tidy(node: Any) -> None:
    """Drop titles, which repeat names, and the parts of class descriptions that list attributes; write durations."""
    if isinstance(node, dict):
        if isinstance(default := node.get("default"), str) and re.fullmatch(r"P(T?\d+[DHMS])+", default):
            node["default"] = duration(default)
        if isinstance(node.get("title"), str):
            del node["title"]
        if isinstance(node.get("description"), str):
            node["description"] = " ".join(node["description"].partition("\n\n")[0].split())
        for each in node.values():
            tidy(each)
    elif isinstance(node, list):
        for each in node:
            tidy(each)


def contract_schema() -> dict[str, Any]:
    """Return the schema of a contract."""
    from sluice.contract.contract import Contract

    schema = Contract.model_json_schema()
    tidy(schema)
    describe(schema)
    properties = schema["properties"]
    auto = {"type": "object", "properties": {"auto": properties.pop("auto")}, "required": ["auto"]}
    auto["additionalProperties"] = False
    listed = properties["columns"]
    listed["items"] = {"anyOf": [listed["items"], {"const": "auto"}, auto]}
    description = {"description": listed.pop("description")}
    del properties["topic"]["default"]
    properties["columns"] = {"anyOf": [{"const": "auto"}, auto, listed], **description}
    schema["required"] = list(COLUMNS)  # the owner may be in defaults.yaml, and the group is the namespace
    return {"$schema": DIALECT, "title": "Contract of a table", **schema}


def defaults_schema(contract: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of `defaults.yaml`: the contract's, with the fields that may be shared."""
    from sluice.contract.folder import ContractDefaults

    schema = {each: contract[each] for each in ("$schema", "$defs", "additionalProperties", "type")}
    properties = {name: contract["properties"][name] for name in ContractDefaults.model_fields}
    return {**schema, "title": "Fields that the contracts of a folder share", "properties": properties}


def groups_schema() -> dict[str, Any]:
    """Return the schema of `groups.yaml`."""
    from sluice.contract.groups import AlertSettings, CommonMaintenance, GroupSettings

    class Groups(BaseModel):
        defaults: GroupSettings | None
        maintenance: CommonMaintenance | None
        alerts: AlertSettings | None

    schema = Groups.model_json_schema()
    tidy(schema)
    describe(schema)
    del schema["required"]
    schema["additionalProperties"] = schema["properties"]["defaults"]
    return {"$schema": DIALECT, "title": "Settings of groups", **schema}


def as_files() -> dict[str, str]:
    """Return the text of each file by its name."""
    contract = contract_schema()
    schemas = {"contract": contract, "defaults": defaults_schema(contract), "groups": groups_schema()}
    return {f"{name}.json": json.dumps(each, indent=1, ensure_ascii=False) + "\n" for name, each in schemas.items()}


if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY / "include"))
    FOLDER.mkdir(exist_ok=True)
    for name, text in as_files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
