"""The pages' own script and style in Chromium, without Airflow: what dialogs say, and what a narrow frame shows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect, sync_playwright

from sluice.ledger.schemas_table import SchemaRow, SchemaState
from sluice.pages import detail, render
from sluice.pages.table_contract import ContractColumn, TableContract
from sluice.status import verdicts
from sluice.status.model import TableStatus
from tests.support.browser import FLAGS, axe_violations, find_chromium
from tests.unit.pages.test_render import NOW, error, page, table

pytestmark = pytest.mark.unit

SITE = "http://sluice.test"
TASKS = "taskInstances?state=failed"
BLOCKED = table(quarantined=402, last_error=error("blocked"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        yield found
        found.close()


def shown(browser: Browser, text: str, answers: dict[str, Any], width: int = 1280) -> tuple[Page, list[str]]:
    """Open a page. Returns it, and the requests that change something, as they are sent.

    Args:
        answers: by a part of the request's address; every other address has the page.
    """
    sent: list[str] = []

    def answer(route: Route) -> None:
        request = route.request
        path = request.url.removeprefix(SITE)
        if request.method != "GET":
            sent.append(f"{request.method} {path}")
            return route.fulfill(json={})
        if static := render.read_static(path.rpartition("/")[2]):
            return route.fulfill(body=static[0], content_type=static[1])
        found = next((value for part, value in answers.items() if part in path), None)
        return route.fulfill(json=found) if found is not None else route.fulfill(body=text, content_type="text/html")

    made = browser.new_page(viewport={"width": width, "height": 900})
    made.set_default_timeout(10_000)
    made.route("**/*", answer)
    made.goto(f"{SITE}/sluice/tables")
    return made, sent


def table_page(given: TableStatus) -> str:
    return page("table.html", table=given, verdicts=list(verdicts.list_verdicts(given)), detail=None)


def publish(page: Page) -> Locator:
    page.get_by_role("button", name="Publish anyway…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("it was a test")
    dialog.get_by_role("button", name="Publish anyway").click()
    return dialog


PREVIEW = {"at": NOW.isoformat(), "lines": ["published by the next run: batch 3 of t"], "pinned": {}, "error": None}
DRY_RUN = {"/dry-run?": PREVIEW}


def failed(log: list[dict[str, Any]]) -> dict[str, Any]:
    """What Airflow answers of a run of which two tasks failed."""
    later = {"task_id": "settle", "map_index": -1, "try_number": 1, "end_date": "2026-11-29T11:20:09Z"}
    first = {"task_id": "publish", "map_index": 2, "try_number": 3, "end_date": "2026-11-29T11:20:01.5Z"}
    return {
        **DRY_RUN,
        "/taskInstances/publish/logs/3?map_index=2": {"content": log},
        TASKS: {"task_instances": [later, first]},
        "/dagRuns/": {"state": "failed", "end_date": "2026-11-29T11:20:10Z"},
    }


HOSTILE = "<img src=x onerror=alert(1)>\n   is no batch " + "x" * 600


SPARK = (
    "Cannot execute: spark-submit --master local[2] --conf spark.jars=a.jar run. Error code is: 3.\n"
    "Last spark-submit output:\nINFO sluice Spark is up\nERROR sluice No space left\n"
)


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (
            [
                {"event": "::group::Log message source details"},
                {"event": "Task failed", "level": "error", "error_detail": [{"exc_type": "E", "exc_value": HOSTILE}]},
                {"event": "Exit status 1", "level": "info"},
                {"event": "a line of standard error", "level": "error"},
            ],
            "<img src=x onerror=alert(1)> is no batch xxx",
        ),
        (
            [{"event": "Task failed with exception", "level": "error", "error_detail": [{"exc_value": SPARK}]}],
            "spark-submit ended with code 3. Its last line: ERROR sluice No space left Log of task publish.",
        ),
        ([{"event": "Kafka is away.", "level": "critical"}, {"event": "bye", "level": "info"}], "Kafka is away."),
    ],
)
def test_the_dialog_of_a_run_that_failed_has_the_error_of_its_first_failed_task(
    browser: Browser, log: list[dict[str, Any]], says: str
) -> None:
    page, sent = shown(browser, table_page(BLOCKED), failed(log))
    dialog = publish(page)
    status = dialog.get_by_role("status")
    expect(status).to_contain_text(f"has failed. {says}")
    assert len(status.locator("q").inner_text()) <= 501 and status.locator("img").count() == 0
    href = dialog.get_by_role("link", name="Log of task publish").get_attribute("href") or ""
    assert href.startswith("/dags/publish_blocked/runs/publish_blocked__db.t__") and href.endswith(
        "/tasks/publish/mapped/2"
    )
    assert sent == ["POST /api/v2/dags/publish_blocked/dagRuns"]
    page.close()


def test_where_the_log_says_nothing_the_run_is_linked(browser: Browser) -> None:
    page, _ = shown(browser, table_page(BLOCKED), failed([{"event": "bye", "level": "info"}]))
    expect(publish(page).get_by_role("status")).to_contain_text("has failed. Its log says why.")
    page.close()


def test_a_dry_run_says_when_it_was_made_and_is_above_the_fields_that_do_not_change_it(browser: Browser) -> None:
    page, _ = shown(browser, table_page(BLOCKED), DRY_RUN)
    page.get_by_role("button", name="Publish anyway…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".dry-run")).to_have_text("published by the next run: batch 3 of t")
    expect(dialog.locator(".checked")).to_contain_text("Dry run of ")
    expect(dialog.get_by_role("button", name="Dry run")).to_have_count(0)
    expect(dialog.get_by_role("button", name="Try again")).to_be_hidden()
    expect(dialog.get_by_label("Reason")).to_be_focused()
    above, below = (dialog.locator(each).bounding_box() for each in (".dry-run", "fieldset"))
    assert above and below and above["y"] < below["y"]
    dialog.get_by_role("button", name="Cancel").click()
    # That of a backfill depends on the range: it is asked for.
    page.get_by_role("button", name="Backfill…").click()
    expect(dialog.get_by_role("button", name="Dry run")).to_be_visible()
    expect(dialog.locator(".dry-run")).to_have_text("Nothing is shown yet: press Dry run.")
    page.close()


def test_a_follow_up_that_starts_at_once_asks_for_nothing(browser: Browser) -> None:
    paused = replace(BLOCKED, paused=True)
    page, sent = shown(browser, table_page(paused), {"/dagRuns/": {"state": "running"}})
    page.get_by_role("button", name="Unpause…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Unpause", exact=True).click()
    dialog.get_by_role("button", name="Run now", exact=True).click()
    expect(dialog.get_by_role("status")).to_contain_text("is running.")
    expect(dialog.get_by_label("Reason")).to_have_count(0)
    assert sent[-1] == "POST /api/v2/dags/ingest_g/dagRuns"
    page.close()


@pytest.mark.parametrize("width", [390, 820, 1024, 1280, 1440])
def test_every_button_and_cell_of_a_row_is_within_the_frame(browser: Browser, width: int) -> None:
    names = ("shop.payments", "a_schema_of_a_long_name.and_a_table_of_a_longer_one")
    tables = [replace(BLOCKED, table=name) for name in names]
    page_, _ = shown(browser, page("tables.html", tables=tables), {}, width)
    box = page_.locator(".wide").first
    assert box.evaluate("each => each.scrollWidth - each.clientWidth") == 0
    for each in page_.locator("table.tables tbody :is(button, td, th)").all():
        at = each.bounding_box()
        assert at and at["width"] > 0 and at["x"] + at["width"] <= width, each.inner_text()
    page_.close()


def test_on_a_phone_the_tables_come_before_the_cards(browser: Browser) -> None:
    page_, _ = shown(browser, page("tables.html", tables=[BLOCKED]), {}, 390)
    rows, cards = (page_.locator(each).bounding_box() for each in ("table.tables", ".cards"))
    assert rows and cards and rows["y"] + rows["height"] <= cards["y"] and rows["y"] < 350
    page_.close()


def test_a_page_shows_the_age_of_what_it_shows_and_is_read_again_on_request(browser: Browser) -> None:
    page_, _ = shown(browser, page("tables.html", tables=[BLOCKED], read_at=NOW - timedelta(days=1)), {})
    expect(page_.locator(".read .age")).to_contain_text(" ago)")
    newer = page("tables.html", tables=[BLOCKED], read_at=NOW)
    page_.route("**/tables", lambda route: route.fulfill(body=newer, content_type="text/html"))
    page_.get_by_role("button", name="Refresh").click()
    expect(page_.locator(".read time")).to_have_attribute("datetime", NOW.isoformat())
    expect(page_.get_by_role("button", name="Refresh")).to_be_enabled()
    page_.unroute("**/tables")
    page_.route("**/tables", lambda route: route.abort())
    page_.get_by_role("button", name="Refresh").click()
    expect(page_.locator(".stale")).to_contain_text("Airflow does not answer")
    expect(page_.get_by_role("button", name="Refresh")).to_be_enabled()
    page_.close()


def contract_page() -> str:
    columns = [
        ContractColumn("order_id", "string", "field `order` of the record's key", "Its number", ["key", "required"]),
        ContractColumn("x" * 60, "struct<a: list<struct<b: decimal(38, 9)>>>", f"computed: `{'f(' * 60}`", "", []),
    ]
    location = f"s3://lake/{'warehouse/' * 12}orders"
    policy = {"auto": ["add column", "widen"], "review": ["drop column"] * 9}
    text = f"SELECT count(*) FROM iceberg_scan('{location}/metadata/00001.metadata.json')"
    promise = TableContract("All orders", "15m", columns, policy, 1, "lake", location, 2, [("DuckDB", text)])
    version = SchemaRow("db.t", SchemaState.APPLIED, 1, "id", words=["creates the table"], at=NOW)
    known = detail.TableDetail(promise=promise, versions=[version], version=1)
    return page("contract.html", table=replace(BLOCKED, freshness_promised_seconds=900.0), detail=known)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_contract_is_readable_on_a_phone_and_in_the_dark(browser: Browser, scheme: Literal["light", "dark"]) -> None:
    page_, _ = shown(browser, contract_page(), {}, 390)
    page_.emulate_media(color_scheme=scheme)
    page_.reload()
    expect(page_.locator("html")).to_have_class("dark" if scheme == "dark" else "")
    expect(page_.get_by_role("heading", name="Did my record arrive?")).to_be_visible()
    assert page_.evaluate("document.documentElement.scrollWidth") <= 390
    assert axe_violations(page_) == []
    if folder := os.environ.get("SLUICE_PICTURES"):
        page_.screenshot(path=f"{folder}/contract-{scheme}-390.png", full_page=True)
        page_.set_viewport_size({"width": 1280, "height": 900})
        page_.screenshot(path=f"{folder}/contract-{scheme}.png", full_page=True)
    page_.close()
