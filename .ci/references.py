"""Writes the generated pages of docs/reference: errors, environment, Sluice's own tables, JSON API and metrics.

`make references` runs it. Unit tests fail when a page is out of date. Commands have a script of their own.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / name) for name in ("include", "plugins", ".ci")]

import reference_texts as texts  # noqa: E402
from json_schemas import attributes  # noqa: E402

FOLDER = REPOSITORY / "docs" / "reference"
RUNBOOK = REPOSITORY / "docs" / "operate" / "runbook.md"
NOTE = "This page is generated from {} (`make references`)."


def cell(text: str) -> str:
    """Text that may stand in a cell of a table."""
    return " ".join(text.replace("|", "\\|").split())


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [head, tuple("---" for _ in head), *(tuple(cell(each) for each in row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def page(title: str, *parts: str) -> str:
    """A page in Markdown."""
    return "\n".join((f"# {title}\n", *(part.rstrip() + "\n" for part in parts)))


def error_classes() -> Iterator[type[Any]]:
    """The classes of errors that an operator may see, by name; those of the embedded stack are not among them."""
    from sluice import errors

    importlib.import_module("sluice.ledger.offsets_table")  # has one of its own

    def below(family: type[Any]) -> Iterator[type[Any]]:
        for each in family.__subclasses__():
            if not each.__module__.startswith("sluice.embedded"):
                yield from (each, *below(each))

    yield from sorted({*below(errors.RetryableError), *below(errors.TerminalError)}, key=lambda each: each.__name__)


def errors_page() -> str:
    """Each error with its meaning, its family and its next step; more is where the runbook's row leads."""
    from sluice import errors

    rows = re.findall(r"^\| `(\w+Error)` \|.*\| (.*) \|$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE)
    links = {name: re.sub(r"\]\(([^)]*)\)", r"](../operate/\1)", where) for name, where in rows}
    parts = [
        NOTE.format("the classes of errors"),
        "An error names the table or topic, the offsets if it is about offsets, and the next step. A message may have "
        "another next step than the one that is listed here, if more is known. Start with the "
        "[runbook](../operate/runbook.md) if you want to repair something.",
        table(
            ("family", "exit code", "means"),
            [
                ("retryable", "2", "It may pass when the step runs again. Airflow retries it."),
                ("terminal", "3", "It stops its table until somebody acts. The other tables of the group go on."),
            ],
        ),
    ]
    for each in error_classes():
        retryable = issubclass(each, errors.RetryableError)
        kind = "Retryable, exit code 2." if retryable else "Terminal, exit code 3."
        step = f"\nNext step: {escaped(each.advice)}\n" if each.advice else ""
        meaning = (each.__doc__ or "").partition("\n\n")[0]
        more = f"\nMore: {links[each.__name__]}."
        parts.append(f"## {each.__name__}\n\n{kind} {' '.join(meaning.split())}\n{step}{more}")
    return page("Errors", *parts)


def escaped(text: str) -> str:
    """Text whose angle brackets Markdown leaves as they are."""
    spans = re.split(r"(`[^`]*`)", text)
    return "".join(span if span.startswith("`") else span.replace("<", "\\<") for span in spans)


def environment_page() -> str:
    """The variables, and which of the worker's a Spark driver gets."""
    file = REPOSITORY / "plugins" / "sluice_airflow" / "driver_variables.py"
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Tuple)
    }
    parts = [
        NOTE.format("a list that a test compares with the code"),
        "Set the variables for each part of Airflow that needs them, and for the command line. In Airflow, "
        "Kafka, the registry and Spark are [connections](../connect/platform.md); the command line takes the first two "
        "where it has no variables of its own for them.",
    ]
    for title, variables in texts.VARIABLES.items():
        rows = [(f"`{name}`", meaning) for name, meaning in variables.items()]
        parts.append(f"## {title}\n\n{table(('variable', 'meaning'), rows)}")
    parts.append(
        "## What a Spark driver gets\n\n"
        "Of the worker's environment variables, a driver gets only these:\n\n"
        + ", ".join(f"`{name}`" for name in values["NAMES"])
        + "\n\nand those that begin with:\n\n"
        + ", ".join(f"`{name}*`" for name in values["PREFIXES"])
        + "\n\n`SLUICE_DRIVER_ENV`, set for the worker, names more. `AIRFLOW__*`, `AIRFLOW_CONN_*`, `AIRFLOW_VAR_*`, "
        "`SLUICE_PAGES_*` and names with `FERNET` or `JWT` never reach a driver. Kafka and the registry reach it as "
        "`SLUICE_KAFKA_CONFIG` and `SLUICE_REGISTRY_CONFIG`, from their connections."
    )
    return page("Environment variables", *parts)


def own_schemas() -> dict[str, Any]:
    """The Iceberg schema of each of Sluice's own tables."""
    from sluice.contract.contract import Contract
    from sluice.iceberg import schema
    from sluice.ledger import (
        ledger_rows,
        maintenance_table,
        pilot_table,
        quality_table,
        schemas_table,
        writer_schemas_table,
    )
    from sluice.usage import costs_table

    keys = {"table": "a.b", "topic": "t", "group": "g", "owner": "me", "mode": "upsert", "identifier": ["id"]}
    contract = Contract.model_validate({**keys, "columns": [{"name": "id", "type": "long", "source": "$key"}]})
    return {
        "sluice.offsets": ledger_rows.SCHEMA,
        "sluice.quality": quality_table.SCHEMA,
        "sluice.maintenance": maintenance_table.SCHEMA,
        "sluice.costs": costs_table.SCHEMA,
        "sluice.pilot": pilot_table.SCHEMA,
        "sluice.schemas": schemas_table.SCHEMA,
        "sluice.writer_schemas": writer_schemas_table.SCHEMA,
        "sluice_staging.<topic>": schema.staging_schema()[0],
        "sluice_quarantine.<table>": schema.quarantine_schema()[0],
        "sluice_deletes.<table>": schema.deletes_schema(contract),
    }


def tables_page() -> str:
    """The columns of Sluice's own tables."""
    parts = [
        NOTE.format("the tables' Iceberg schemas"),
        "Any engine may read these tables; [what you may change by hand]"
        "(../operate/manual-changes.md#sluices-own-tables) says how. In the names of the last three, each character of "
        "the topic's or table's name other than letters, digits and `_` is replaced, and a hash is appended: "
        "`SHOW TABLES IN sluice_staging` lists them.",
    ]
    for name, schema in own_schemas().items():
        meanings = column_meanings(name, schema)
        rows = [
            (f"`{field.name}`", type_text(field.field_type), "no" if field.required else "yes", meanings[field.name])
            for field in schema.fields
            if field.name in meanings
        ]
        columns = table(("column", "type", "null", "is"), rows)
        parts.append(f"## {name.replace('<', '&lt;').replace('>', '&gt;')}\n\n{texts.TABLES[name]}\n\n{columns}")
    return page("Sluice's own tables", *parts)


def column_meanings(name: str, schema: Any) -> dict[str, str]:
    """What each column of a table is: the text of this script, else that of the schema."""
    said = texts.COLUMNS[name]
    # The key of a deletes table has the columns that the contract names; here `id` stands for them.
    columns = [each for each in schema.fields if each.name != "id"]
    if unknown := set(said) - {each.name for each in columns}:
        raise SystemExit(f"{name} has no column {', '.join(sorted(unknown))}")
    if silent := [each.name for each in columns if not (said.get(each.name) or each.doc)]:
        raise SystemExit(f"{name}: reference_texts does not say what {', '.join(silent)} is")
    return {each.name: said.get(each.name) or each.doc for each in columns}


def type_text(kind: Any) -> str:
    """An Iceberg type without its field ids."""
    without = re.sub(r"\d+: ", "", str(kind))
    return f"`{without}`"


def metrics_page() -> str:
    """The metrics with their labels."""
    from sluice.pages.metrics import METRICS

    rows = [(f"`sluice_{n}`", ", ".join(f"`{x}`" for x in labels), text) for n, (text, labels) in METRICS.items()]
    return page(
        "Metrics",
        NOTE.format("the code that exports them"),
        "`GET /sluice/metrics`, in Prometheus' text format. All are gauges. A value that is not known is left out. "
        "Those of the last batch are of batches published within a week. See "
        "[monitoring](../operate/monitoring.md#metrics) for the scraper's settings and for alert rules.",
        table(("metric", "labels", "is"), rows),
    )


def openapi() -> dict[str, Any]:
    """The description of the JSON API, from the plugin; Airflow makes files in its home."""
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"AIRFLOW_HOME": home, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = "sqlite://"
        from sluice.pages import api_schema

        plugin = importlib.import_module("sluice_plugin")
        return api_schema.add_answer_schemas(plugin.app.openapi())


def api_page(described: Mapping[str, Any]) -> str:
    """The addresses of the JSON API with their parameters and answers, and the fields of these."""
    schemas = described["components"]["schemas"]
    parts = [
        NOTE.format("the application's OpenAPI description"),
        "All addresses take tokens of Airflow's API, and answer only with tables that the caller may see. "
        "`GET /sluice/api/openapi.json` has this page as OpenAPI. Times are ISO 8601 in UTC. "
        "[Pages](../operate/pages.md#the-same-as-json-and-metrics) says how new the answers are.",
    ]
    for path, methods in described["paths"].items():
        if path.startswith("/api/") or path == "/metrics":
            parts.append(endpoint(path, methods["get"]))
    parts.append("## Fields of the answers")
    shown = reachable(described)
    for name, schema in sorted(schemas.items()):
        if name in shown and "properties" in schema:
            intro, meanings = documented(schema.get("description", ""))
            meanings = texts.API_FIELDS[""] | meanings | texts.API_FIELDS.get(name, {})
            fields = dict(schema["properties"])
            if name == "ExpectationResult":  # the fields are columns; values of records are never in an answer
                del fields["values"]
                meanings |= column_meanings("sluice.quality", own_schemas()["sluice.quality"])
            if silent := set(fields) - set(meanings):
                raise SystemExit(f"{name}: neither its docstring nor reference_texts says what {silent} is")
            rows = [(f"`{field}`", shape(each), meanings[field]) for field, each in fields.items()]
            parts.append(f"### {name}\n\n{intro}\n\n{table(('field', 'type', 'is'), rows)}")
        elif name in shown:
            intro = texts.API_FIELDS.get(name, {}).get("") or documented(schema["description"])[0]
            parts.append(f"### {name}\n\n{intro} Type: {shape(schema)}.")
    return page("JSON API", *parts)


def endpoint(path: str, get: Mapping[str, Any]) -> str:
    """One address."""
    lines = [f"## GET /sluice{path}\n", get.get("description") or get["summary"], ""]
    if parameters := get.get("parameters"):
        rows = []
        for each in parameters:
            kind = each["schema"]
            limits = [f"{word} {kind[name]}" for name, word in (("minimum", "from"), ("maximum", "to")) if name in kind]
            if kind.get("default") not in (None, ""):
                limits.append(f"default {kind['default']}")
            meaning = each.get("description") or "The table, such as `shop.orders`."
            rows.append((f"`{each['name']}`", ", ".join([shape(kind), *limits]), meaning))
        lines.append(table(("parameter", "type", "is"), rows))
    content = get["responses"]["200"].get("content", {}).get("application/json", {}).get("schema")
    if content:
        lines.append(f"Answer: {shape(content)}\n")
    rows = [(code, each["description"]) for code, each in get["responses"].items() if code not in ("200", "422")]
    lines.append(table(("error", "means"), rows))
    return "\n".join(lines)


def shape(schema: Mapping[str, Any]) -> str:
    """The type of a value in JSON, with a link to the fields of an object."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(shape(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array":
        kinds = [shape(each) for each in schema.get("prefixItems", [])] or [shape(schema.get("items", {}))]
        return f"list of {', '.join(dict.fromkeys(kinds))}"
    if isinstance(schema.get("additionalProperties"), Mapping):
        return f"map to {shape(schema['additionalProperties'])}"
    if schema.get("format") == "date-time":
        return "time"
    return {"integer": "whole number", "null": "null"}.get(schema.get("type", ""), schema.get("type", "any value"))


def documented(text: str) -> tuple[str, dict[str, str]]:
    """The introduction of a docstring, and the meaning of each of its attributes."""
    intro = text.partition("Attributes:")[0]
    return json_words(intro), {name: json_words(meaning) for name, meaning in attributes(text).items()}


def json_words(text: str) -> str:
    """A docstring's text in JSON's words."""
    return re.sub(r"\bNone\b", "null", " ".join(text.split()))


def reachable(described: Mapping[str, Any]) -> set[str]:
    """The names of the schemas that answers consist of."""
    found: set[str] = set()
    left = re.findall(r"#/components/schemas/(\w+)", json.dumps(described["paths"]))
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += re.findall(r"#/components/schemas/(\w+)", json.dumps(described["components"]["schemas"][name]))
    return found - {"HTTPValidationError", "ValidationError"}


PAGES = {
    "errors.md": errors_page,
    "environment.md": environment_page,
    "tables.md": tables_page,
    "metrics.md": metrics_page,
}
"""The pages that need no Airflow."""
API = "api.md"


if __name__ == "__main__":
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")
    (FOLDER / API).write_text(api_page(openapi()), encoding="utf-8")
