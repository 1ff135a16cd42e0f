"""Writes the tables of fields into docs/reference/contract.md and groups.md, from the models in `sluice.contract`.

`make contract-reference` runs it after `.ci/json_schemas.py`. A unit test fails when a page is out of date.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from json_schemas import REPOSITORY, contract_schema, defaults_schema, groups_schema

FOLDER = REPOSITORY / "docs" / "reference"
BEGIN = re.compile(r"^<!-- fields of (\w+) -->\n(.*?)^<!-- end of fields -->\n", re.MULTILINE | re.DOTALL)


def kind(node: dict[str, Any], anchors: dict[str, str]) -> str:
    """What a field takes, as the page says it."""
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        return f"[map](#{anchors[name]})" if name in anchors else "map"
    if "anyOf" in node:
        found = [kind(each, anchors) for each in node["anyOf"]]
        return ", ".join(dict.fromkeys(each for each in found if each != "null"))
    if "enum" in node or "const" in node:
        return ", ".join(f"`{each}`" for each in node.get("enum", [node.get("const")]))
    match node.get("type"):
        case "array":
            inner = kind(node["items"], anchors)
            return f"list of {'maps'.join(inner.rsplit('map', 1)) if inner.startswith('[map]') else inner}"
        case "integer" | "number":
            bounds = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to"}
            limits = [f"{word} {node[each]}" for each, word in bounds.items() if each in node]
            return " ".join(["whole number" if node["type"] == "integer" else "number", *limits])
        case "string":
            return "duration" if "smhdw" in node.get("pattern", "") else "text"
        case other:
            return {"boolean": "`true`, `false`", "object": "map"}.get(str(other), str(other))


def default(name: str, node: dict[str, Any], required: list[str]) -> str:
    """The default of a field; nothing if its description says it, or if there is none."""
    value = node.get("default")
    if name in required:
        return "required"
    if value is None or isinstance(value, dict) or value == "" or "Default:" in node["description"]:
        return ""
    if isinstance(value, list):
        return f"`[{', '.join(value)}]`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def table(model: dict[str, Any], anchors: dict[str, str]) -> str:
    """The fields of a model as a table."""
    lines = ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, node in model["properties"].items():
        cells = (f"`{name}`", kind(node, anchors), default(name, node, model.get("required", [])), node["description"])
        lines.append("".join(f"| {each} ".replace("|  ", "| ") for each in cells) + "|")
    return "\n".join(lines) + "\n"


def with_fields(text: str) -> str:
    """The page with the parts between the markers written anew."""
    contract = contract_schema()
    contract["required"] = ["table", "topic", "owner", "columns"]
    # `auto` stands among the columns in the YAML.
    contract["properties"]["columns"]["anyOf"] = [{"const": "auto"}, contract["properties"]["columns"]["anyOf"][-1]]
    contract["properties"]["columns"]["anyOf"][1]["items"] = {"$ref": "#/$defs/Column"}
    models = {**contract["$defs"], **groups_schema()["$defs"], "Contract": contract}
    anchors: dict[str, str] = {}
    heading = ""
    for line in text.splitlines():
        heading = line.lstrip("# ").lower() if line.startswith("#") else heading
        if found := re.match(r"<!-- fields of (\w+)", line):
            anchors[found[1]] = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
    text = BEGIN.sub(
        lambda found: f"<!-- fields of {found[1]} -->\n{table(models[found[1]], anchors)}<!-- end of fields -->\n", text
    )
    shared = ", ".join(f"`{name}`" for name in defaults_schema(contract_schema())["properties"])
    return re.sub(r"(?<=<!-- fields that may be shared -->\n).*", shared + ".", text)


def pages() -> dict[Path, str]:
    """The text of each page that has tables of fields."""
    return {page: with_fields(page.read_text("utf-8")) for page in (FOLDER / "contract.md", FOLDER / "groups.md")}


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, "utf-8")
