"""The alert rules and the dashboard of docs/operate ask for metrics and labels that exist; links lead somewhere."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from sluice.embedded.home import REPOSITORY
from sluice.pages.metrics import METRICS
from sluice.status.verdicts import URGENCY
from tests.unit.test_doc_links import headings

pytestmark = pytest.mark.unit

OPERATE = REPOSITORY / "docs" / "operate"
RULES = yaml.safe_load((OPERATE / "prometheus-rules.yaml").read_text("utf-8"))
DASHBOARD = json.loads((OPERATE / "grafana-dashboard.json").read_text("utf-8"))
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"] if panel["type"] != "row"}
VARIABLES = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
ADDRESS = "https://sluice.example/"

STRING = r'"(?:[^"\\]|\\.)*"'
MATCHER = re.compile(rf"(\w+)\s*(?:=~|!~|!=|=)\s*({STRING})")
SELECTOR = re.compile(rf"\b(sluice_\w+)\s*(?:\{{((?:[^}}\"]|{STRING})*)\}})?")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")


def expressions() -> dict[str, str]:
    """By alert, panel and variable what it asks Prometheus for."""
    asked = {name: rule["expr"] for name, rule in ALERTS.items()}
    asked |= {f"{title} {each['refId']}": each["expr"] for title, p in PANELS.items() for each in p["targets"]}
    return asked | {name: each["query"]["query"] for name, each in VARIABLES.items() if each["type"] == "query"}


EXPRESSIONS = expressions()


def find_mistakes(expression: str) -> list[str]:
    """The names that the exporter does not have: of metrics, of their labels, and of states."""
    found = []
    known: set[str] = set()
    for metric, matchers in SELECTOR.findall(expression):
        labels = METRICS.get(metric.removeprefix("sluice_"), ("", None))[1]
        if labels is None:
            found.append(metric)
            continue
        known |= {*labels}
        for label, value in MATCHER.findall(matchers):
            if label not in labels:
                found.append(f"{metric}: {label}")
            if label == "state":
                found += [word for word in value.strip('"').split("|") if word not in URGENCY]
    grouped = [label.strip() for each in GROUPING.findall(expression) for label in each.split(",")]
    grouped += re.findall(r"^label_values\(.*,\s*(\w+)\)$", expression)
    return found + [label for label in grouped if label not in known]


def test_each_metric_label_and_state_exists() -> None:
    assert [name for name, each in EXPRESSIONS.items() if "sluice_" not in each] == []
    assert {name: found for name, each in EXPRESSIONS.items() if (found := find_mistakes(each))} == {}


@pytest.mark.parametrize(
    ("expression", "mistakes"),
    [
        ("sluice_table_lag > 1", ["sluice_table_lag"]),
        ('sum(sluice_table_size{table="a}", off="files"})', ["sluice_table_size: off"]),
        ('sluice_table_state{state=~"late|slow"} == 1', ["slow"]),
        ("max by (topic) (sluice_table_failing)", ["topic"]),
        ("label_values(sluice_table_state, team)", ["team"]),
    ],
)
def test_what_does_not_exist_is_found(expression: str, mistakes: list[str]) -> None:
    assert find_mistakes(expression) == mistakes


def test_each_alert_is_complete_and_leads_to_a_page() -> None:
    for name, rule in ALERTS.items():
        notes = rule["annotations"]
        assert rule["for"] and rule["labels"]["severity"] in {"critical", "warning"} and notes["summary"], name
        target, _, anchor = notes["runbook_url"].removeprefix(ADDRESS).partition("#")
        page = REPOSITORY / "docs" / target.replace(".html", ".md")
        assert page.parent == OPERATE and page.exists(), name
        assert not anchor or anchor in headings(page), name


def test_the_panels_are_alone_in_their_places_and_use_the_variables() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len(PANELS) > 15 and len(ALERTS) > 10
    queries = [query for panel in PANELS.values() for query in panel["targets"]]
    assert {each["datasource"]["uid"] for each in [*queries, *PANELS.values()] if "datasource" in each} == {
        "${datasource}"
    }
    of_tables = [each["expr"] for each in queries if "sluice_table_" in each["expr"]]
    assert [each for each in of_tables if 'table=~"$table"' not in each] == []
    used = {name for each in EXPRESSIONS.values() for name in re.findall(r"\$(\w+)", each)}
    assert used | {"datasource"} == set(VARIABLES)
