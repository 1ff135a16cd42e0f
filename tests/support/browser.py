"""Opens a Chromium browser (`SLUICE_CHROMIUM` or on the PATH) that is logged in to Airflow, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Frame, Page, StorageState, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
# No network access of its own; --no-sandbox, because it may run as root in a container.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_chromium() -> str:
    """Return Chromium's path; skip the test if there is none."""
    found = os.environ.get("SLUICE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.skip("no Chromium here, so the pages were NOT looked at in a browser: apt-get install chromium")
    return found


# Cookies by Airflow's address: logging in is slow, so it is done once per test run.
LOGIN_STATES: dict[str, StorageState] = {}


@contextmanager
def logged_in(env: Mapping[str, str], **settings: Any) -> Iterator[BrowserContext]:
    """Yield a browser that is logged in through Airflow's login form.

    Args:
        env: The stack's environment.
        settings: Further arguments of Playwright's `new_context`.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        try:
            url = env["SLUICE_PAGES_URL"]
            view = {"viewport": {"width": 1280, "height": 900}, "storage_state": LOGIN_STATES.get(url)}
            context = browser.new_context(**{**view, **settings})  # type: ignore[arg-type]
            context.set_default_timeout(60_000)
            context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
            if url not in LOGIN_STATES:
                page = context.new_page()
                page.goto(url)
                page.fill("input[name=username]", env["SLUICE_PAGES_USER"])
                page.fill("input[name=password]", env["SLUICE_PAGES_PASSWORD"])
                page.click("button[type=submit]")
                page.get_by_role("link", name="Dags").first.wait_for()
                page.close()
                LOGIN_STATES[url] = context.storage_state()
            yield context
        finally:
            browser.close()


def axe_violations(page: Page | Frame) -> list[str]:
    """Return axe's serious and critical violations on a page: the rule and its first element."""
    found = Axe().run(page).response["violations"]  # type: ignore[arg-type]
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found if each["impact"] in ("serious", "critical")
    ]
