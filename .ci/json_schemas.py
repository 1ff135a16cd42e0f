"""Writes the JSON Schemas of contracts, `groups.yaml` and `defaults.yaml`, by which editors complete and check them.

The fields come from the models, their descriptions from the tables in docs/contracts.md. `make json-schemas` runs it. A
unit test fails when a file is out of date. What needs more than one field is checked by `contract check` alone.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "contracts.md"
FOLDER = REPOSITORY / "include" / "sluice" / "contract" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

# Where the fields of a table in the documentation are in a contract, by the table's heading.
PLACES = {
    "Fields": "",
    "Columns": "columns[]",
    "Columns from the registry": "auto",
    "Change events": "",
    "History": "",
    "Maintenance": "maintenance",
    "Expectations": "expectations[]",
    "Changing a contract": "schema_policy",
}
COLUMNS = ("table", "topic", "columns")


def documented() -> Iterator[tuple[str, str, str]]:
    """Yield heading, field and meaning of each row in the documentation's tables of fields."""
    heading, in_table = "", False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        cells = [each.strip() for each in re.split(r"(?<!\\)\|", line)[1:-1]]
        in_table = line.startswith("| field") or (in_table and bool(cells))
        if in_table and cells and (found := re.match(r"`([a-z_.]+)`", cells[0])):
            yield heading, found[1], plain(cells[-1])


def plain(text: str) -> str:
    """Return a text without Markdown's links."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("\\|", "|").strip()


def definition(schema: dict[str, Any], node: Any, want: str) -> dict[str, Any] | None:
    """Return the object with properties that a property refers to, in a list or beside null too."""
    if isinstance(node, dict) and "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    if isinstance(node, dict) and want in node.get("properties", {}):
        return node
    inner = [*node.get("anyOf", ()), *filter(None, [node.get("items")])] if isinstance(node, dict) else []
    return next((found for each in inner if (found := definition(schema, each, want))), None)


def describe(schema: dict[str, Any], path: list[str], text: str) -> None:
    """Set the description of a field; fields that only the YAML's other forms have are skipped."""
    node: dict[str, Any] | None = schema
    for at, step in enumerate(path):
        node = definition(schema, node, step)
        if node is None:
            return
        if at == len(path) - 1:
            node["properties"][step].setdefault("description", text)  # a later table has a special case
        node = node["properties"][step]


def tidy(node: Any) -> None:
    """Drop titles, which repeat names, and the parts of class descriptions that list attributes."""
    if isinstance(node, dict):
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
    for heading, field, meaning in documented():
        if heading in PLACES:
            place = [each.removesuffix("[]") for each in PLACES[heading].split(".") if each]
            describe(schema, [*place, *field.split(".")], meaning)
    properties = schema["properties"]
    auto = {"type": "object", "properties": {"auto": properties.pop("auto")}, "required": ["auto"]}
    auto["additionalProperties"] = False
    listed = properties["columns"]
    listed["items"] = {"anyOf": [listed["items"], {"const": "auto"}, auto]}
    description = {"description": listed.pop("description")} if "description" in listed else {}
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
    from pydantic import BaseModel

    from sluice.contract.groups import AlertSettings, CommonMaintenance, GroupSettings

    class Groups(BaseModel):
        defaults: GroupSettings | None
        maintenance: CommonMaintenance | None
        alerts: AlertSettings | None

    schema = Groups.model_json_schema()
    tidy(schema)
    for heading, name, meaning in documented():
        if heading == "groups.yaml":
            outer = name.split(".")[0]
            for place in ([], ["defaults"]):
                if place or outer in ("maintenance", "alerts"):
                    describe(schema, [*place, *name.split(".")], meaning)
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
