"""The pages as an operator sees them: in Airflow's frame, by mouse, light and dark, wide and narrow, and by axe."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from playwright.sync_api import FrameLocator, Page, expect

from tests.support.browser import logged_in, told_by_axe

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]

PAGES = {
    "tables": "/tables",
    "table": "/tables/mixed.bad",
    "timeline": "/timeline?hours=1",
    "table-timeline": "/tables/mixed.good/timeline?hours=1",
    "quality": "/quality",
    "no-table": "/tables/no.such",
}
# Airflow answers late where other tests keep the machine busy.
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where pictures go: the folder that `SLUICE_PICTURES` names, to look at them or to renew those of the docs."""
    folder = Path(os.environ.get("SLUICE_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def in_airflow(page: Page, url: str) -> FrameLocator:
    page.goto(f"{url}/plugin/sluice-tables")
    frame = page.frame_locator("iframe")
    expect(frame.locator("table.tables tbody a").first).to_be_visible()
    return frame


def test_an_operator_finds_the_blocked_table_and_what_to_do(stack, pictures):
    url = stack.env["SLUICE_PAGES_URL"]
    with logged_in(stack.env, timezone_id="Asia/Tokyo", locale="en-GB") as browser:
        page = browser.new_page()
        broken: list[str] = []
        page.on("pageerror", lambda error: broken.append(str(error)))
        page.goto(url)
        page.get_by_role("link", name="Tables").click()  # from Airflow's own navigation
        frame = in_airflow(page, url)
        first = frame.locator("table.tables tbody tr").first
        expect(first.locator(".badge")).to_have_text("blocked")
        page.screenshot(path=pictures / "in-airflow.png")
        frame.get_by_role("link", name="mixed.bad", exact=True).click()
        expect(frame.locator("#rejected")).to_be_visible()
        rejected = frame.locator("section[aria-labelledby=rejected]")
        expect(rejected).to_contain_text("misfit")
        # What the refused run left behind, and back.
        frame.get_by_role("link", name="report").first.click()
        expect(frame.locator("main")).to_contain_text("What run ")
        page.evaluate("history.back()")
        expect(rejected).to_be_visible()
        # Times are the viewer's; UTC is what it was made with.
        moment = rejected.locator("time").first
        utc, shown = moment.get_attribute("datetime") or "", moment.inner_text()
        in_tokyo = f"{(int(utc[11:13]) + 9) % 24:02}{utc[13:19]}"
        assert shown.endswith(in_tokyo), (utc, shown)
        # What the form of the replay takes, copied; and the way there, out of the frame.
        rejected.get_by_role("button", name="Copy").last.click()
        expect(rejected.get_by_role("button", name="Copied")).to_be_visible()
        copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
        assert (copied["table"], copied["source"]) == ("mixed.bad", "quarantine")
        rejected.get_by_role("link", name="backfill").click()
        page.wait_for_url(f"{url}/dags/backfill**")
        # Back, and to the run that was refused: a link of the timeline.
        frame = in_airflow(page, url)
        frame.get_by_role("link", name="mixed.bad", exact=True).click()
        frame.get_by_role("link", name="Timeline").last.click()
        expect(frame.locator("main")).to_contain_text("blocked")
        frame.locator("a[data-airflow-path*='/runs/']").first.click()
        page.wait_for_url(f"{url}/dags/ingest_mixed/runs/**")
        # The tab beside the run.
        page.get_by_role("link", name="Data quality").last.click()
        beside = page.frame_locator("iframe").locator("main")
        expect(beside).to_contain_text("expect column values to be between")
        expect(beside.locator("h1")).to_contain_text("of run")
        # And beside the task of one table.
        page.goto(f"{page.url.partition('/plugin')[0]}/tasks/mixed.good")
        page.get_by_role("link", name="Data quality").last.click()
        beside = page.frame_locator("iframe").locator("main")
        expect(beside).to_contain_text("expect column values to be between")
        assert not broken


def test_a_page_without_an_answer_says_so_and_looks_again(stack):
    address = f"{stack.env['SLUICE_PAGES_URL']}/sluice/tables"
    with logged_in(stack.env) as browser:
        page = browser.new_page()
        # As in a browser without TLS, which lets no script have the clipboard.
        page.add_init_script("Object.defineProperty(Navigator.prototype, 'clipboard', { get: () => undefined })")
        page.clock.install()
        page.goto(address)
        link = page.get_by_role("link", name="mixed.bad", exact=True)
        expect(link).to_be_visible()
        link.focus()
        page.route(address, lambda route: route.abort())
        page.clock.fast_forward(31_000)
        expect(page.locator(".missed")).to_contain_text("Airflow does not answer")
        page.unroute(address)
        page.clock.fast_forward(31_000)
        expect(page.locator(".missed")).to_have_count(0)
        expect(link).to_be_focused()
        link.click()
        page.clock.run_for(5_000)
        copy = page.locator("section[aria-labelledby=rejected]").get_by_role("button", name="Copy").last
        expect(copy).to_be_visible()
        page.clock.pause_at(datetime.now(UTC) + timedelta(minutes=10))  # however slow the machine, no time goes by
        copy.click()
        # What a page tells of a click is not taken away by an answer that was under way.
        page.clock.run_for(4_000)
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        # Not by each moment on the way: the page gives up an answer after 20 s, and the real one takes its time.
        page.clock.fast_forward(31_000)
        page.clock.resume()
        expect(page.get_by_role("button", name="Copied")).to_have_count(0)


def test_the_pages_follow_airflows_theme_at_once(stack, pictures):
    with logged_in(stack.env) as browser:
        page = browser.new_page()
        frame = in_airflow(page, stack.env["SLUICE_PAGES_URL"])
        ground = "getComputedStyle(document.body).backgroundColor"
        root = frame.locator("html")
        light = root.evaluate(f"() => {ground}")
        page.evaluate("document.documentElement.classList.add('dark')")
        expect(root).to_have_class("dark")
        assert root.evaluate(f"() => {ground}") != light
        page.screenshot(path=pictures / "in-airflow-dark.png")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_nothing_sticks_out(stack, pictures, scheme):
    url = f"{stack.env['SLUICE_PAGES_URL']}/sluice"
    with logged_in(stack.env, color_scheme=scheme) as browser:
        page = browser.new_page()
        for name, path in PAGES.items():
            for width in (1280, 375):
                page.set_viewport_size({"width": width, "height": 900})
                page.goto(url + quote(path, safe="/?=&"))
                expect(page.get_by_role("status").filter(has_text="Reading ")).to_have_count(0)
                page.screenshot(path=pictures / f"{name}-{scheme}-{width}.png", full_page=True)
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{name} at {width} px is {wide} px wide"
                assert told_by_axe(page) == [], (name, width)
                # By keyboard: the first thing that Tab reaches is seen to be reached.
                page.keyboard.press("Tab")
                assert page.evaluate("document.activeElement !== document.body"), name


def test_a_repaired_contract_and_the_replay_by_hand_turn_the_table_green(stack, pictures):
    """The last of all: the table was blocked until here."""
    url, contract = stack.env["SLUICE_PAGES_URL"], Path(os.environ["SLUICE_CONTRACTS"], "mixed.bad.yaml")
    text = contract.read_text() + "errors: {max_ratio: 1.0}\n"
    assert text.count("errors:") == 1
    contract.write_text(text)  # what does not fit is set apart, and later batches go on
    assert stack.finish("mixed", stack.start("mixed"))[1]["mixed.bad"] == "success"
    contract.write_text(text.replace("required: true", "required: true, source: number"))
    with logged_in(stack.env) as browser:
        page = browser.new_page()
        frame = in_airflow(page, url)
        frame.get_by_role("link", name="mixed.bad", exact=True).click()
        rejected = frame.locator("section[aria-labelledby=rejected]")
        expect(rejected).to_contain_text("misfit")
        rejected.get_by_role("button", name="Copy").last.click()
        rejected.get_by_role("link", name="backfill").click()
        page.wait_for_url(f"{url}/dags/backfill**")
        page.get_by_role("button", name="Trigger").first.click()
        form = page.get_by_role("dialog")
        form.get_by_role("button", name="Advanced Options").click()
        editor = form.locator(".monaco-editor").last
        expect(editor).to_contain_text("dry_run")
        editor.click()
        page.keyboard.press("ControlOrMeta+A")
        page.keyboard.press("ControlOrMeta+V")
        expect(editor).to_contain_text("quarantine")
        form.get_by_role("button", name="Run Parameters").click()
        expect(form.locator("#element_table")).to_have_value("mixed.bad")
        expect(form.locator("#element_topic")).to_be_visible()  # nothing of the form was lost to what was pasted
        form.locator("#element_why").fill("the id is in another field")
        form.locator("[name=element_dry_run]").locator("..").click()
        page.screenshot(path=pictures / "form.png")
        form.get_by_role("button", name="Trigger", exact=True).click()
        page.wait_for_url(f"{url}/dags/backfill/runs/**")
        assert stack.end("backfill", unquote(page.url.rpartition("/")[2]))[0] == "success"
        assert stack.ids("mixed.bad") == list(range(50))
        frame = in_airflow(page, url)
        row = frame.locator("table.tables tbody tr", has=frame.get_by_role("link", name="mixed.bad", exact=True))
        expect(row.locator(".badge")).to_have_text("fresh")
        row.get_by_role("link", name="mixed.bad", exact=True).click()
        expect(rejected).to_contain_text("No record is in quarantine")
        page.screenshot(path=pictures / "green.png")
