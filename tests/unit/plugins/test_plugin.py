"""A user who may read one group's DAG sees nothing of other groups' tables, on any path of the plugin."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from jsonschema import Draft202012Validator

from sluice.embedded.home import REPOSITORY

pytestmark = pytest.mark.unit


def answered(script: str, home: Path, **setting: str) -> dict[str, Any]:
    """What a script of `tests/support` prints, in an Airflow of its own."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "include"), str(REPOSITORY)]),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
        **setting,
    }
    command = [sys.executable, str(REPOSITORY / "tests" / "support" / script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """What every address answers to somebody who may read one DAG of two."""
    asked = answered("pages_as_restricted_user.py", tmp_path_factory.mktemp("airflow"))
    return {at: (code, text) for at, (code, text) in asked.items()}


def test_each_reader_that_a_feed_imports_late_exists() -> None:
    text = (REPOSITORY / "plugins" / "sluice_web" / "reading.py").read_text("utf-8")
    readers = re.findall(r'_lazy_reader\("([\w.]+)", "(\w+)"\)', text)
    assert len(readers) > 8
    for module, name in readers:
        assert callable(getattr(import_module(f"sluice.pages.{module}"), name)), name


def test_a_table_is_shown_to_those_alone_who_may_read_its_dag(found: dict[str, tuple[int, str]]) -> None:
    mine = {
        at: answer
        for at, answer in found.items()
        if "db.other" not in at and not at.startswith(("refused: ", "all: ", "hidden run: "))
    }
    assert len(mine) > 10 and {code for code, _ in mine.values()} == {200}, {at: a[0] for at, a in mine.items()}
    told = [at for at, (_, text) in mine.items() if "db.other" in text or "t.other" in text]
    assert told == []
    assert all(
        "mine" in mine[at][1] for at in ("/tables", "/timeline", "/quality", "/metrics", "/api/tables", "/api/timeline")
    )
    runs = {at: text for at, (_, text) in mine.items() if at.endswith("/timeline")}
    assert len(runs) == 4 and all("run of ingest_mine: task plan failed" in text for text in runs.values())
    assert not [at for at, text in runs.items() if "ingest_other" in text or "rollback" in text]
    acting = ("run of backfill: ", "run of maintain_rewrite_data_files: ")
    assert all(words in text for text in runs.values() for words in acting)
    assert not [at for at, text in runs.items() if "maintain_expire" in text or "maintain_remove" in text]
    for stop in ("two topics make db.mine", "no pool for db.mine"):
        assert all(stop in mine[at][1] for at in ("/tables", "/api/tables"))
    slow = "OSError: When reading &#39;…&#39;: SLOW_DOWN"  # of the other's data
    assert slow in mine["/tables"][1] and slow.replace("&#39;", "'") in mine["/api/tables"][1]
    assert all("1 problem in contracts" in mine[at][1] for at in ("/tables", "/timeline", "/api/tables"))
    # What is shown while it is being read anew is looked at again soon.
    refresh = {at: re.findall(r'data-refresh="(\d+)"', mine[at][1]) for at in ("/timeline", "/tables", "/quality")}
    assert refresh == {"/timeline": ["5"], "/tables": ["5"], "/quality": ["30"]}
    words = (">db.mine<", ">db.mine_too<", "expect x", "expect y")
    judged = {
        at.removeprefix("/quality?run_id=r"): [word for word in words if word in text]
        for at, (_, text) in mine.items()
        if "run_id" in at
    }
    both = [*words[:2]]
    assert judged == {
        "": [*both, "expect x"],
        "&dag_id=ingest_mine": [*both, "expect x"],
        "&dag_id=ingest_mine&task_id=db.mine": [">db.mine<", "expect x"],
        "&dag_id=backfill": [*both, "expect y"],
    }
    apart = {at: text.count("3 quarantined") for at, (_, text) in mine.items() if at.startswith("/quality")}
    assert apart == {
        "/quality": 2,
        "/quality?run_id=r": 0,
        "/quality?run_id=r&dag_id=ingest_mine": 2,
        "/quality?run_id=r&dag_id=ingest_mine&task_id=db.mine": 1,
        "/quality?run_id=r&dag_id=backfill": 0,
    }
    others = {at: code for at, (code, _) in found.items() if "db.other" in at}
    assert len(others) >= 5 and set(others.values()) == {404}, others


def test_a_run_is_looked_up_among_readable_dags_before_anything_is_read(found: dict[str, tuple[int, str]]) -> None:
    """Any run id started a reading of the catalog; four of them kept all pages waiting."""
    for at in ("/quality?run_id=r&dag_id=ingest_other", "/quality?run_id=unknown"):
        code, text = found[f"hidden run: {at}"]
        assert code == 404 and "This run does not exist, or you may not read its DAG." in text, at
    bounds = {
        at: code for at, (code, _) in found.items() if at.startswith("hidden run: ") and ("rrr" in at or "%" in at)
    }
    assert len(bounds) == 5 and set(bounds.values()) == {422}, bounds


def test_what_is_said_of_a_table_names_no_other_that_its_reader_may_not_see(found: dict[str, tuple[int, str]]) -> None:
    shared, folders = "mine for db.mine, other for {}.", "names them"
    for at in (
        "/tables",
        "/tables/db.mine",
        "/api/tables",
        "/api/tables/db.mine",
        "/tables/db.mine/report",
        "/api/tables/db.mine/dry-run",
        "/api/tables/db.mine/record?at=0:3",
        "/tables/db.mine/record?at=0:3",
    ):
        assert shared.format("another table") in found[at][1], at
    for at in ("/api/tables", "/tables/db.mine", "/timeline", *(f"{x}/tables/db.mine/timeline" for x in ("", "/api"))):
        assert folders in found[at][1] and "hr.x" not in found[at][1] and "s3" not in found[at][1], at
    for at in ("/tables/db.mine", "/api/timeline"):  # who may see all is told all
        assert folders not in (told := found[f"all: {at}"][1]) and "hr.x in s3" in told
    assert shared.format("db.other") in found["all: /tables/db.mine"][1]


def test_a_table_says_who_may_read_it_and_what_the_reader_may_do(found: dict[str, tuple[int, str]]) -> None:
    access = json.loads(found["/api/tables/db.mine/readiness"][1])[-1]
    assert (access["subject"], access["ready"]) == ("Access", True)
    assert "users who may read DAG ingest_mine (" in access["evidence"]
    assert "you may trigger ingest_mine, backfill; you may not trigger rollback, accept_gap" in access["evidence"]
    assert "users who may read DAG ingest_mine" in found["/tables/db.mine"][1]


TEAMS = """
import sys
sys.path.insert(0, "plugins")
from types import SimpleNamespace
from airflow.models.dag import DagModel
from sluice_web import operations
DagModel.get_team_name = staticmethod({"ingest_a": "team a"}.get)
asked = []
manager = SimpleNamespace(is_authorized_dag=lambda details, **_: asked.append((details.id, details.team_name)))
operations.get_auth_manager = lambda: manager
viewer = operations.Viewer("somebody")
viewer.may_start("ingest_a"), viewer.may_edit("backfill")
print(asked)
"""


@pytest.mark.parametrize(("teams", "team"), [("True", "team a"), ("False", None)])
def test_where_airflow_has_teams_it_is_asked_of_a_dag_with_its_team(
    tmp_path: Path, teams: str, team: str | None
) -> None:
    """Without it a DAG was everybody's: who may not start one was told the opposite."""
    env = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__MULTI_TEAM": teams, "PYTHONPATH": "include"}
    done = subprocess.run(
        [sys.executable, "-c", TEAMS], env=env, cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == str([("ingest_a", team), ("backfill", None)])


def test_a_dry_run_is_for_those_who_may_trigger_the_dag(found: dict[str, tuple[int, str]]) -> None:
    told = json.loads(found["/api/tables/db.mine/dry-run"][1])
    assert (told["pinned"], told["error"]) == ({"ranges": {"0": [3, 9]}}, None)
    assert found["refused: /api/tables/db.mine/dry-run?dag=rollback"][0] == 403
    assert found["refused: /api/tables/db.mine/dry-run?dag=ingest_mine"][0] == 403  # which has no dry run
    for form in ("[]", "{", "%7B%22table%22"):
        assert found[f"refused: /api/tables/db.mine/dry-run?form={form}"][0] == 400


def test_a_table_that_could_not_be_asked_tells_what_was_known(found: dict[str, tuple[int, str]]) -> None:
    told = {t["table"]: t for t in json.loads(found["/api/tables"][1])["tables"]}
    kept = told["db.mine_too"]
    assert kept.pop("as_of") and kept.pop("unasked") == ["catalog"]
    assert kept == {k: v for k, v in (told["db.mine"] | {"table": "db.mine_too"}).items() if k in kept}
    (row,) = (row for row in found["/tables"][1].split("<tr>") if "db.mine_too" in row)
    assert "<small>as of <time" in row and "blocked" in row


def test_a_page_is_as_of_the_time_when_its_own_data_was_read(found: dict[str, tuple[int, str]]) -> None:
    """Not of when the status was read, which is read by itself."""
    head = re.compile(r'<p class="read" title="[^"]*">as of <time datetime="([^"]*)"')
    expected = json.loads(found["read at"][1])
    assert {at: head.findall(found[at][1]) for at in expected} == {at: [time] for at, time in expected.items()}


def test_what_all_tables_published_is_counted_over_those_that_the_reader_may_see(
    found: dict[str, tuple[int, str]],
) -> None:
    told = found["/tables"][1]
    assert "<b>1</b> records published a minute <small>mean of the last hour, 1 table</small>" in told
    squares = re.findall(r'<a tabindex="-1" href="([^"]*)&?at=[^"]*#then" class="(\w+)"', told)
    assert squares == [("/tables/db.mine/timeline?", "good")]
    # What was chosen is kept by every link, and is shown to nobody as HTML.
    chosen = found["chosen: /tables"][1]
    links = re.findall(r'aria-sort="ascending"[^>]*><a href="([^"]*)"', chosen)
    assert [html.unescape(each) for each in links] == [
        "/tables?q=T.&state=blocked&dag_id=ingest_mine&sort=lag&order=desc&by=group"
    ]
    assert chosen.count('<tr class="group">') == 1 and "db.mine_too</a>" in chosen
    assert "No table matches." in found["none: /tables"][1] and "<script>x" not in found["none: /tables"][1]


def test_a_report_of_a_run_that_has_not_ended_is_looked_for_again(found: dict[str, tuple[int, str]]) -> None:
    code, text = found["all: /tables/db.mine/report"]  # by the browser, as `asked` has seen
    assert code == 404 and "has not ended yet" in text


def test_what_is_counted_over_all_tables_is_told_to_those_who_may_see_all(found: dict[str, tuple[int, str]]) -> None:
    every = found["all: /metrics"][1]
    assert 'table="db.other"' in every and "sluice_ledger_rows 5.0" in every
    assert "sluice_ledger_rows" not in found["/metrics"][1]


def test_a_table_has_a_page_of_what_it_cost(found: dict[str, tuple[int, str]]) -> None:
    code, text = found["/tables/db.mine/cost"]
    assert code == 200 and "/tables/db.mine/cost" in found["/tables/db.mine"][1]
    for shown in ("2026-11-28", "7.5 s", "2.5 s", "0.7500 EUR", "5.0 kB", "0.5000 EUR", "last clean-up: 9."):
        assert shown in text, shown
    charts = json.loads(html.unescape(re.findall(r'data-charts="([^"]+)"', text)[0]))
    cpu = charts["charts"][0]["series"]
    assert [each["values"] for each in cpu] == [[5.0], [2.5]] and charts["tracks"][0]["batches"] == [3]
    assert 'sluice_table_last_day_cpu_seconds{table="db.mine"} 7.5' in found["/metrics"][1]


def test_what_is_not_of_now_is_said_to_be_so_while_a_reading_hangs(found: dict[str, tuple[int, str]]) -> None:
    why = "No answer for 9000 s."
    whole = json.loads(found["status hangs: /api/tables"][1])
    assert why in whole["unavailable"] and why not in json.loads(found["/api/tables"][1])["unavailable"]
    mine, now = (json.loads(found[at + "/api/tables/db.mine"][1]) for at in ("status hangs: ", ""))
    assert (now["as_of"], now["unasked"]) == (None, [])
    assert (mine["as_of"], mine["unasked"]) == (whole["at"], ["kafka", "catalog"])
    assert mine["lag_records"] == now["lag_records"] == 3  # what was known stays
    of_now, old, half = (found[at + "/metrics"][1] for at in ("", "status hangs: ", "groups hangs: "))
    lag = 'sluice_table_lag_offsets{table="db.mine",topic="t.mine"} 3.0'
    away = [f'sluice_unavailable{{source="{source}"}} 1.0' for source in ("kafka", "catalog")]
    assert lag in of_now and not [each for each in away if each in of_now]
    assert (
        lag not in old
        and "sluice_table_size{" in of_now
        and "sluice_table_size{" not in old
        and all(each in old for each in away)
    )
    (read,) = (line for line in of_now.splitlines() if line.startswith("sluice_read_timestamp_seconds"))
    assert read in old  # by which one sees how old it is
    assert lag in half and [each in half for each in away] == [False, True]
    for at, hangs in (("/api/tables/db.mine/readiness", "details"), ("/api/quality", "quality")):
        told, before = (json.loads(found[name + at][1]) for name in (f"{hangs} hangs: ", ""))
        lines, calm = ((x if isinstance(x, list) else x["db.mine"]) for x in (told, before))
        assert {line["unavailable"] for line in lines} == {why} and {line["unavailable"] for line in calm} == {None}


def test_the_page_of_the_json_api_is_current(found: dict[str, tuple[int, str]]) -> None:
    sys.path.insert(0, str(REPOSITORY / ".ci"))
    import references

    made = references.api_page(json.loads(found["/api/openapi.json"][1]))
    assert (references.FOLDER / references.API).read_text("utf-8") == made, "run: make references"


def test_the_answers_are_what_the_description_says_of_them(found: dict[str, tuple[int, str]]) -> None:
    described = json.loads(found["/api/openapi.json"][1])
    for shape in described["components"]["schemas"].values():
        if "properties" in shape:
            shape["additionalProperties"] = False  # here, so that a field which is not described is found
    checked = 0
    for path, methods in described["paths"].items():
        at = path.replace("{name}", "db.mine") + ("?at=0:3" if path.endswith("/record") else "")
        content = methods["get"]["responses"]["200"]["content"]
        if path == "/metrics":
            assert list(content) == ["text/plain"]
            continue
        shape = content["application/json"]["schema"]
        assert set(shape) & {"$ref", "items", "additionalProperties"}, (path, shape)
        answer = json.loads(found[at][1])
        assert answer, at
        jsonschema.validate(answer, {**shape, "components": described["components"]}, Draft202012Validator)
        checked += 1
    assert checked == 9


def test_the_description_says_what_is_answered_where_there_is_no_answer(found: dict[str, tuple[int, str]]) -> None:
    described = json.loads(found["/api/openapi.json"][1])
    told = {
        path: tuple(sorted(set(methods["get"]["responses"]) - {"200", "422"}))
        for path, methods in described["paths"].items()
    }
    of_table = ("401", "403", "404", "503")
    assert told == {
        **dict.fromkeys(("/metrics", "/api/tables", "/api/timeline", "/api/quality"), ("401", "403", "503")),
        "/api/tables/{name}": of_table,
        **dict.fromkeys((f"/api/tables/{{name}}/{part}" for part in ("readiness", "record", "cost")), of_table),
        **dict.fromkeys((f"/api/tables/{{name}}/{part}" for part in ("timeline", "dry-run")), ("400", *of_table)),
    }
    # And it is so.
    refused = {at.partition(" ")[2]: answer for at, answer in found.items() if at.startswith("refused: ")}
    codes = {at: code for at, (code, _) in refused.items() if "/dry-run" not in at}
    assert codes == {
        "/api/tables/db.mine/timeline?at=yesterday": 400,
        "/api/tables?login": 401,
        "/metrics?login": 401,
        "/api/tables/db.none": 404,
        "/api/tables/db.mine/record?at=0:3&topic=other": 422,
        "/api/tables?unread": 503,
        "/metrics?unread": 503,
    }
    shape = {"$ref": "#/components/schemas/ErrorAnswer", "components": described["components"]}
    for _, text in refused.values():
        jsonschema.validate(json.loads(text), shape, Draft202012Validator)


@pytest.fixture(scope="module", params=["", "/airflow"])
def below(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """The path that Airflow is below, and what it leads to."""
    base = f"https://airflow.example{request.param}"
    return request.param, answered(
        "pages_under_base_path.py", tmp_path_factory.mktemp("below"), AIRFLOW__API__BASE_URL=base
    )


def test_airflows_menu_leads_to_the_pages_below_a_path_of_its_own_too(below: tuple[str, dict[str, Any]]) -> None:
    path, menu = below[0], below[1]["menu"]
    of_run = f"{path}/sluice/quality?dag_id={{DAG_ID}}&run_id={{RUN_ID}}"
    pages = [f"{path}/sluice/{page}" for page in ("tables", "quality", "timeline")]
    of_dag = f"{path}/sluice/tables?dag_id={{DAG_ID}}"
    assert list(menu) == [pages[0], of_dag, of_run, f"{of_run}&task_id={{TASK_ID}}"]
    for code, (airflow, *links) in menu.values():
        assert (code, airflow) == (200, path) and set(pages) <= set(links)
        assert all(link.startswith(f"{path}/sluice/") for link in links), links


def test_who_asks_for_a_page_without_a_login_comes_to_airflows_and_back(below: tuple[str, dict[str, Any]]) -> None:
    path, logins = below[0], below[1]["logins"]
    assert len(logins) == 13
    for asked, (code, to, back, safe) in logins.items():
        kind, _, at = asked.partition(" ")
        if kind == "*/*" or at.startswith(("/api", "/metrics", "/static")):
            assert (code, to) == (401, None), asked
        else:
            assert (code, to, safe) == (307, f"{path}/api/v2/auth/login", True), asked
            assert back == f"{path}/sluice{at}", asked
