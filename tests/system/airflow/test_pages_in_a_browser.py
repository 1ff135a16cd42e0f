"""The web pages in a browser inside Airflow's UI: by mouse, light and dark, wide and narrow, and checked by axe."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import FrameLocator, Locator, Page, Route, expect
from sqlalchemy.engine import make_url

from sluice.ledger import schemas_table
from sluice.ledger.ledger_rows import LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.pages import render
from sluice.pages.tables_overview import View, make_overview
from tests.support.airflow_stack import CONTRACT, make_records
from tests.support.browser import axe_violations, logged_in
from tests.support.faults import catalog_away

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]

PAGES = {
    "tables": "/tables",
    "table": "/tables/plain.orders",
    "table-quarantine": "/tables/mixed.bad#rejected",
    "table-offsets": "/tables/plain.orders#offsets",
    "timeline": "/timeline?hours=1",
    "table-timeline": "/tables/plain.orders/timeline?hours=1",
    "quality": "/quality",
    "no-table": "/tables/no.such",
}
# Airflow answers late where other tests keep the machine busy.
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)


def keep_picture(page: Page, name: str, *, whole: bool = False) -> None:
    """Into the folder that `SLUICE_PICTURES` names, to look at it or to renew those of the docs; else there is none."""
    if folder := os.environ.get("SLUICE_PICTURES"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=whole)


def in_airflow(page: Page, url: str) -> FrameLocator:
    page.goto(f"{url}/plugin/sluice")
    frame = page.frame_locator("iframe")
    expect(frame.locator("table.tables tbody a").first).to_be_visible()
    return frame


def times_follow_airflow(page: Page, moment: Locator) -> None:
    """They are in the browser's zone, Tokyo's, until another is chosen in Airflow."""
    utc = datetime.fromisoformat(moment.get_attribute("datetime") or "")
    expect(moment).to_contain_text(f"{utc.astimezone(ZoneInfo('Asia/Tokyo')):%H:%M:%S} GMT+9")
    for zone, label in (("Asia/Kathmandu", "GMT+5:45"), ("UTC", "UTC")):
        page.evaluate("zone => localStorage.setItem('timezone', JSON.stringify(zone))", zone)  # as Airflow does
        expect(moment).to_contain_text(f"{utc.astimezone(ZoneInfo(zone)):%H:%M:%S} {label}")


def see_what_became_of_a_record(frame):
    frame.get_by_label("Find a record").fill("0:0")
    frame.get_by_label("Find a record").press("Enter")
    expect(frame.locator("main")).to_contain_text("partition 0 offset 0: staged, and its batch is blocked")
    frame.locator("h1").get_by_role("link", name="mixed.bad").click()


def test_an_operator_finds_the_blocked_table_and_what_to_do(stack):
    url = stack.env["SLUICE_PAGES_URL"]
    with logged_in(stack.env, timezone_id="Asia/Tokyo", locale="en-GB") as browser:
        page = browser.new_page()
        broken: list[str] = []
        page.on("pageerror", lambda error: broken.append(str(error)))
        page.goto(url)
        page.get_by_role("link", name="Sluice").click()  # from Airflow's own navigation
        frame = in_airflow(page, url)
        first = frame.locator("table.tables tbody tr").first
        expect(first.locator(".badge")).to_have_text("blocked")
        keep_picture(page, "in-airflow")
        frame.get_by_role("link", name="mixed.bad", exact=True).click()
        frame.get_by_role("link", name="Quarantined records").click()  # a link to a part shows its tab
        expect(frame.locator("#rejected")).to_be_visible()
        expect(frame.locator("#day")).to_be_hidden()
        rejected = frame.locator("section[aria-labelledby=rejected]")
        expect(rejected).to_contain_text("misfit")
        expect(rejected).to_contain_text("need no replay")  # the next run publishes them
        rejected.get_by_text("SQL for these records").click()
        rejected.get_by_role("button", name="Copy").click()
        # A browser may not let a frame write to the clipboard.
        expect(rejected.locator("[data-copy]")).to_have_text(re.compile("Copied|Selected"))
        # What the refused run left behind, and back.
        frame.get_by_role("link", name="report").first.click()
        expect(frame.locator("main .lead", has_text=", written ")).to_be_visible()
        page.evaluate("history.back()")
        expect(rejected).to_be_visible()
        times_follow_airflow(page, rejected.locator("time").first)
        # A link of the page leads out of the frame.
        frame.get_by_role("link", name="ingest_mixed").first.click()
        page.wait_for_url(f"{url}/dags/ingest_mixed**")
        # Back, and to the run that was refused: a link of the timeline.
        frame = in_airflow(page, url)
        frame.get_by_role("link", name="mixed.bad", exact=True).click()
        see_what_became_of_a_record(frame)
        frame.locator("main").get_by_role("link", name="Timeline").click()
        expect(frame.locator("h1")).to_contain_text("of mixed.bad")
        expect(frame.locator("main")).to_contain_text("blocked")
        frame.locator("a[href*='/runs/']").first.click()  # leads there once the page's script has come
        page.wait_for_url(f"{url}/dags/ingest_mixed/runs/**")
        # The tab beside the run.
        page.get_by_role("link", name="Data quality").last.click()
        beside = page.frame_locator("iframe").locator("main")
        expect(beside).to_contain_text("id is at least 0")
        expect(beside.locator("h1")).to_contain_text("of run")
        # What is set apart, by class of error and field.
        apart = beside.locator("section[aria-label='mixed.bad']")
        expect(apart).to_contain_text("missing or invalid value (misfit) in id: 50")
        expect(apart).to_contain_text("need no replay")
        # And beside the task of one table.
        page.goto(f"{page.url.partition('/plugin')[0]}/tasks/mixed.good")
        page.get_by_role("link", name="Data quality").last.click()
        beside = page.frame_locator("iframe").locator("main")
        expect(beside).to_contain_text("id is at least 0")
        assert not broken


def test_a_page_without_an_answer_says_so_and_looks_again(stack):
    address = f"{stack.env['SLUICE_PAGES_URL']}/sluice/tables"
    with logged_in(stack.env) as browser:
        page = browser.new_page()
        page.clock.install()
        page.goto(address)
        link = page.get_by_role("link", name="killed.orders", exact=True)
        expect(link).to_be_visible()
        link.focus()
        page.route(address, lambda route: route.abort())
        page.clock.fast_forward(31_000)
        expect(page.locator(".stale")).to_contain_text("Airflow does not answer")
        page.unroute(address)
        page.clock.fast_forward(31_000)
        expect(page.locator(".stale")).to_have_count(0)
        expect(link).to_be_focused()
        link.click()
        page.clock.run_for(5_000)
        page.get_by_role("button", name="Backfill…").first.click()  # readiness may suggest it, too
        page.get_by_label("Reason").fill("so far")
        # A page that is renewed meanwhile takes no dialog away.
        page.clock.fast_forward(31_000)
        page.clock.run_for(4_000)
        expect(page.get_by_label("Reason")).to_have_value("so far")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_page_gives_way_to_the_report_that_has_come_and_stays_where_the_login_has_gone(stack):
    pages = f"{stack.env['SLUICE_PAGES_URL']}/sluice"
    with logged_in(stack.env) as browser:
        page = browser.new_page()
        page.clock.install()
        report = f"{pages}/tables/mixed.bad/report?run_id=none"
        page.goto(report)
        expect(page.locator("main")).to_contain_text("has not ended yet")
        page.route(
            report, lambda route: route.fulfill(body="<main>What run none came to</main>", content_type="text/html")
        )
        page.clock.fast_forward(31_000)
        # By the script, sooner than by the browser itself.
        expect(page.locator("main")).to_have_text("What run none came to", timeout=20_000)
        page.goto(f"{pages}/tables")
        expect(page.get_by_role("link", name="mixed.bad", exact=True)).to_be_visible()
        browser.clear_cookies()
        page.clock.fast_forward(31_000)
        expect(page.locator(".stale")).to_contain_text("log in again")


def test_the_pages_follow_airflows_theme_at_once(stack):
    with logged_in(stack.env) as browser:
        page = browser.new_page()
        frame = in_airflow(page, stack.env["SLUICE_PAGES_URL"])
        ground = "getComputedStyle(document.body).backgroundColor"
        root = frame.locator("html")
        light = root.evaluate(f"() => {ground}")
        page.evaluate("document.documentElement.classList.add('dark')")
        expect(root).to_have_class("dark")
        assert root.evaluate(f"() => {ground}") != light
        keep_picture(page, "in-airflow-dark")


def fits(page: Page, name: str, width: int, scheme: str) -> None:
    """A picture; nothing sticks out of the page, and axe finds nothing serious."""
    beside = "" if (width, scheme) == (1280, "light") else f"-{scheme}-{width}"
    keep_picture(page, f"{name}{beside}", whole=True)
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width, f"{name} at {width} px is {wide} px wide"
    assert axe_violations(page) == [], (name, width)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_nothing_sticks_out(stack, scheme):
    url = f"{stack.env['SLUICE_PAGES_URL']}/sluice"
    refused = Ledger(stack.catalog).rows({"mixed.bad": 0}, (LedgerState.BLOCKED,))[-1]
    report = f"/tables/mixed.bad/report?run_id={refused.run_id}"
    with logged_in(stack.env, color_scheme=scheme) as browser:
        page = browser.new_page()
        for name, path in PAGES.items():
            for width in (1280, 375):
                page.set_viewport_size({"width": width, "height": 900})
                page.goto(url + quote(path, safe="/?=&#"))
                expect(page.get_by_role("status").filter(has_text="Reading ")).to_have_count(0)
                fits(page, name, width, scheme)
                # By keyboard: the first thing that Tab reaches is seen to be reached. In a part Tab goes on from it.
                page.keyboard.press("Tab")
                assert "#" in path or page.evaluate("document.activeElement !== document.body"), name
        # From its own address no script would run in it, nor would axe.
        page.set_content(page.request.get(url + quote(report, safe="/?=&")).text())
        for width in (1280, 375):
            page.set_viewport_size({"width": width, "height": 900})
            fits(page, "report", width, scheme)


def test_what_a_page_says_that_has_nothing_to_show(stack):
    """Empty, unread, on its way, and beside what was known: by a catalog that is away, and by one that is slow."""
    url = f"{stack.env['SLUICE_PAGES_URL']}/sluice"
    database = Path(make_url(stack.env["PYICEBERG_CATALOG__LAKE__URI"]).database or "")
    runs = stack.airflow.request("GET", "/api/v2/dags/~/dagRuns?limit=100")["dag_runs"]
    # Of groups whose contracts have no expectations; nothing was read of these runs before.
    empty, unread, on_its_way, *_ = [quote(r["dag_run_id"]) for r in runs if r["dag_id"] != "ingest_mixed"]
    with logged_in(stack.env) as browser:
        page = browser.new_page()

        def says(name: str, path: str, words: str) -> None:
            found = page.locator("main")

            def has_words() -> bool:
                page.set_viewport_size({"width": 1280, "height": 900})  # rows out of sight have no text yet
                page.goto(url + path)
                return words in found.inner_text()

            stack.wait_until(has_words)
            for width, scheme in ((1280, "light"), (375, "dark")):
                page.emulate_media(color_scheme=scheme)
                page.set_viewport_size({"width": width, "height": 900})
                fits(page, name, width, scheme)

        with a_table_that_never_ran():
            says("empty-search", "/tables?q=nothing-of-this-name", "No table matches")
            says("empty-quality", f"/quality?run_id={empty}", "No results of this run")
            says("empty-table", "/tables/never.ran#batches", "No batch was published yet")
            says("empty-timeline", "/tables/never.ran/timeline?hours=1", "No events in the last 1 h")
        with catalog_away(database):
            says("unread-table", "/tables/reviewed.orders", "The table's history could not be read")
            says("unread-timeline", "/tables/reviewed.orders/timeline", "The ledger could not be read")
            says("unread-quality", f"/quality?run_id={unread}", "The results could not be read")
            says("away-tables", "/tables", "as of")  # beside the states of those that could not be asked
            for name in ("table", "timeline", "table-timeline", "quality"):
                says(f"away-{name}", PAGES[name], "The Iceberg catalog did not answer")
        with slow(database):
            says("reading-table", "/tables/kept.orders", "Reading the table's history")
            says("reading-timeline", "/tables/kept.orders/timeline", "Reading the ledger")
            says("reading-quality", f"/quality?run_id={on_its_way}", "Reading results")
        # What a page is before anything was read after a start of the API server, which nobody waits for here.
        for name, words, values in FIRST:
            page.route(f"{url}/{name}", partial(answer, first(**values)))
            says(name, f"/{name}", words)


FIRST = (
    ("reading-tables", "Reading Kafka and the catalog", {"reading": True, "unread": True}),
    ("unread-tables", "could not be read", {"unread": True, "errors": ["The Iceberg catalog did not answer."]}),
    ("empty-tables", "No tables to show", {"read_at": datetime(2026, 11, 22, 6, 0, tzinfo=UTC)}),
)


def answer(text: str, route: Route) -> None:
    """In place of the API server, with what it sends beside a page."""
    route.fulfill(body=text, headers={**render.SECURITY_HEADERS, "Content-Type": "text/html; charset=utf-8"})


def first(**values: object) -> str:
    """The page of all tables that has none."""
    common = {"base": "/sluice", "airflow": "", "refresh": 0, "here": "tables", "errors": [], "read_at": None}
    empty = {"overview": make_overview([], None, View()), "reading": False, "unread": False}
    return render.render_page("tables.html", **{**common, **empty, **values})


@contextmanager
def a_table_that_never_ran() -> Iterator[None]:
    """A contract beside those of a group whose DAG is there."""
    contract = Path(os.environ["SLUICE_CONTRACTS"], "never.ran.yaml")
    contract.write_text(CONTRACT.format(table="never.ran", topic="never.ran", group="plain"))
    try:
        yield
    finally:
        contract.unlink()


@contextmanager
def slow(database: Path) -> Iterator[None]:
    """Nobody reads the SQLite catalog, nor writes to it, until the block ends; whoever asks waits."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


def filled_in_again(page: Page) -> None:
    """From the page of a run Airflow fills its form in, as the log of a dry run says."""
    page.get_by_role("button", name="Trigger").first.click()
    page.get_by_role("menuitem", name="Trigger again with this config").click()
    form = page.get_by_role("dialog")
    expect(form.locator("#element_table")).to_have_value("killed.orders")
    expect(form.locator("#element_why")).to_have_value("the id is in another field")


def test_a_click_on_a_chart_opens_the_table_at_that_batch(stack):
    url = f"{stack.env['SLUICE_PAGES_URL']}/sluice/tables/plain.orders"
    with logged_in(stack.env) as browser:
        page = browser.new_page()
        broken: list[str] = []
        page.on("pageerror", lambda error: broken.append(str(error)))
        page.goto(url)
        expect(page.locator(".plot canvas").nth(1)).to_be_visible()
        chart = page.locator(".plot .u-over").first
        box = chart.bounding_box()
        assert box is not None
        chart.click(position={"x": box["width"] - 1, "y": 20})
        page.wait_for_url(f"{url}/timeline?hours=24&at=**")
        expect(page.locator("#then")).to_contain_text("State as of")
        assert not broken


def dialog_of(frame: FrameLocator, button: str, shows: str) -> Locator:
    """Open the dialog of a button, and wait for its dry run."""
    frame.get_by_role("button", name=button).first.click()
    dialog = frame.get_by_role("dialog")
    expect(dialog.locator(".dry-run")).to_contain_text(shows)
    return dialog


def test_a_change_of_a_contract_is_answered_on_the_page_of_its_table(stack):
    url, contract = stack.env["SLUICE_PAGES_URL"], Path(os.environ["SLUICE_CONTRACTS"], "reviewed.orders.yaml")
    text = contract.read_text()
    contract.write_text(text.replace("bucket(4, id)", "bucket(8, id)"))
    assert stack.finish("reviewed", stack.start("reviewed"))[0] == "success"
    (review,) = stack.airflow.open_runs("review_schema")
    stack.wait_until(lambda: "awaiting_input" in {t["state"] for t in stack.airflow.tasks("review_schema", review)})
    with logged_in(stack.env) as browser:
        page = browser.new_page()
        frame = in_airflow(page, url)
        link = frame.get_by_role("link", name="reviewed.orders", exact=True)
        row = frame.locator("table.tables tbody tr", has=link)
        expect(row.locator(".badge")).to_have_text("schema change waiting")
        link.click()
        dialog = dialog_of(frame, "Reject…", "changes the partitions")
        dialog.get_by_label("Reason").fill("four are enough")
        dialog.get_by_role("button", name="Reject", exact=True).click()
        expect(dialog.get_by_role("status")).to_contain_text("has succeeded")
        dialog.get_by_role("button", name="Close").click()
        expect(dialog).to_have_count(0)
        # The run is among what operators did on the table.
        operations = frame.locator("section[aria-labelledby=operations]")
        expect(operations.get_by_role("row", name=review)).to_contain_text("success")
    (row,) = [r for r in schemas_table.read_schema_rows(stack.catalog, "reviewed.orders") if r.state == "rejected"]
    assert (row.why, row.who) == ("four are enough", stack.env["SLUICE_PAGES_USER"])
    contract.write_text(text)


def test_three_clicks_unpause_and_run_and_the_page_shows_the_new_state_as_soon_as_the_run_has_ended(stack):
    """Behind the dialog that started the run, and in place of what was read just before its end."""
    assert stack.finish("plain", stack.start("plain"))[0] == "success"
    stack.airflow.pause("ingest_plain", True)
    stack.send("plain.orders", make_records(1000, 2))
    with logged_in(stack.env) as browser:
        page = browser.new_page()
        page.goto(f"{stack.env['SLUICE_PAGES_URL']}/sluice/tables/plain.orders")
        lead = page.locator("p.lead").first
        expect(lead).to_contain_text("DAG ingest_plain is paused")
        expect(page.locator("dl.facts")).to_contain_text("2 offsets")
        page.get_by_role("button", name="Unpause…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Unpause", exact=True).click()
        expect(lead).to_contain_text("2 offsets are unread")  # behind the dialog
        dialog.get_by_role("button", name="Run now", exact=True).click()
        status = dialog.get_by_role("status")
        run = dialog.get_by_role("link").inner_text()
        assert stack.end("ingest_plain", run)[0] == "success"
        expect(status).to_contain_text("has succeeded")
        reported = time.monotonic()
        expect(status).to_contain_text("The page behind shows the state as of ")
        expect(lead).to_contain_text("All records of the topics are published")
        seconds = time.monotonic() - reported
        ended = stack.airflow.request("GET", f"/api/v2/dags/ingest_plain/dagRuns/{quote(run)}")["end_date"]
        shown = page.locator("p.read time").get_attribute("datetime") or ""
        assert datetime.fromisoformat(shown) >= datetime.fromisoformat(ended)
        print(f"after the end of the run was reported: {seconds:.1f} s")
        dialog.get_by_role("button", name="Close").click()
        expect(lead).to_contain_text("All records of the topics are published")


def test_no_other_site_can_send_what_a_button_sends(stack):
    """The session is a cookie that other sites' requests do not have; and no form can send JSON."""
    url = stack.env["SLUICE_PAGES_URL"]
    with logged_in(stack.env) as browser:
        (session,) = [each for each in browser.cookies() if each["name"] == "_token"]
        assert session["sameSite"] == "Lax"
        body = json.dumps({"logical_date": None, "conf": {}})
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            answer = browser.request.post(
                f"{url}/api/v2/dags/ingest_plain/dagRuns", data=body, headers={"Content-Type": kind}
            )
            assert answer.status == 422, kind


def test_typing_narrows_the_rows_and_a_refresh_keeps_them(stack):
    with logged_in(stack.env) as browser:
        page = browser.new_page()
        page.clock.install()
        page.goto(f"{stack.env['SLUICE_PAGES_URL']}/sluice/tables?q=orders")
        rows = page.locator("table.tables th[scope=row]")
        expect(page.get_by_role("link", name="plain.orders", exact=True)).to_be_visible()
        search = page.get_by_label("Search")
        search.fill("plain")
        expect(rows.filter(visible=True)).to_have_count(1)
        page.wait_for_url("**/tables?q=plain")
        search.fill("mixed")  # the server has left its tables out so far
        page.clock.run_for(1_000)
        expect(page.get_by_role("link", name="mixed.bad", exact=True)).to_be_visible()
        expect(search).to_be_focused()
        page.get_by_role("link", name="Lag", exact=True).click()
        page.wait_for_url("**/tables?q=mixed&sort=lag&order=desc")
        expect(page.locator("th[aria-sort=descending]")).to_have_text("Lag")
        search.fill("mixed.b")
        page.evaluate("document.activeElement.blur()")
        page.clock.fast_forward(31_000)
        expect(page.locator("table[data-searched='mixed.b']")).to_be_visible()  # by a refresh
        expect(search).to_have_value("mixed.b")
        expect(rows).to_have_count(1)
        page.get_by_role("link", name="need attention").click()
        expect(page.get_by_role("link", name="mixed.bad", exact=True)).to_be_visible()
        # Its only batch was refused: the square leads to the table's timeline then.
        page.locator(".batches a.bad").first.click()
        page.wait_for_url("**/tables/mixed.bad/timeline?**")
        expect(page.locator("#then")).to_contain_text("State as of")


def unpause(frame: FrameLocator, row: Locator) -> None:
    """By the button in a row of all tables, which says at once what was done."""
    row.get_by_role("button", name="Unpause…").click()
    dialog = frame.get_by_role("dialog")
    dialog.get_by_role("button", name="Unpause", exact=True).click()
    expect(dialog.get_by_role("status")).to_contain_text("Done.")
    dialog.get_by_role("button", name="Close").click()
    expect(row).not_to_contain_text("Unpause")


def test_the_stale_table_whose_dag_is_paused_its_quarantined_record_and_all_is_green(stack):
    """The last of all: from here on the table is late, and one of its records was quarantined by an earlier run."""
    url, contract = stack.env["SLUICE_PAGES_URL"], Path(os.environ["SLUICE_CONTRACTS"], "killed.orders.yaml")
    text = contract.read_text().replace("required: true", "required: true, source: number")  # repaired
    contract.write_text(f"{text}freshness: 1s\n")
    stack.airflow.pause("ingest_killed", True)
    stack.send("killed.orders", [b'{"number": 101}'])
    with logged_in(stack.env) as browser:
        page = browser.new_page()
        frame = in_airflow(page, url)
        link = frame.get_by_role("link", name="killed.orders", exact=True)
        row = frame.locator("table.tables tbody tr", has=link)
        expect(row.locator(".badge")).to_have_text("stale")
        expect(row).to_contain_text("DAG ingest_killed has no schedule: start a run.")
        frame.get_by_label("State").select_option("stale")
        expect(frame.locator("table.tables tbody tr")).to_have_count(1)
        expect(row.locator("td").nth(1)).to_contain_text("/ 1s")
        expect(row.get_by_role("img", name="stale")).to_be_visible()
        keep_picture(page, "late")
        unpause(frame, row)
        assert not stack.airflow.request("GET", "/api/v2/dags/ingest_killed")["is_paused"]
        link.click()
        expect(frame.locator("main")).to_contain_text("1 unread offset is older than the freshness target of 1s")
        rejected = frame.locator("section[aria-labelledby=rejected]")
        expect(rejected).to_contain_text("missing or invalid value (misfit) in id: 1")
        frame.locator(".tabs").get_by_role("link", name="Quarantine").click()
        # Two clicks and a reason.
        dialog = dialog_of(frame, "Replay all…", "killed.orders from killed.orders (quarantine)")
        dialog.get_by_role("button", name="Replay", exact=True).click()
        expect(dialog.locator("textarea:invalid")).to_have_count(1)  # no run starts without a reason
        dialog.get_by_label("Reason").fill("the id is in another field")
        keep_picture(page, "replay")
        assert axe_violations(page.frames[-1]) == []
        dialog.get_by_role("button", name="Replay", exact=True).click()
        started = dialog.get_by_role("link")
        expect(started).to_contain_text("replay__killed.orders__")
        run = stack.start("killed")  # what is unread is no replay's, which moves no cursor
        assert stack.end("backfill", started.inner_text())[0] == "success"
        assert stack.finish("killed", run)[0] == "success"
        assert stack.ids("killed.orders") == list(range(102))
        expect(dialog.get_by_role("status")).to_contain_text("has succeeded")
        started.click()  # out of the frame
        page.wait_for_url(f"{url}/dags/backfill/runs/**")
        filled_in_again(page)
        frame = in_airflow(page, url)
        expect(row.locator(".badge")).to_have_text("up to date")
        link.click()
        expect(rejected).to_contain_text("No record is quarantined")
        keep_picture(page, "green")
