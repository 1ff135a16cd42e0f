"""A program: requests the web plugin's pages while Airflow is mounted below a base path; prints the answers as JSON.

A process of its own, because Airflow reads the base path once, at import.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from airflow.api_fastapi.app import API_ROOT_PATH
from airflow.api_fastapi.core_api.security import get_user, is_safe_url
from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient

from tests.support.pages_as_restricted_user import fixed_feed

# A browser's and a program's.
ACCEPT_HEADERS = ("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", "*/*")
PAGE_PATHS = (
    "/tables",
    "/tables/db.t/timeline?hours=1&at=2026-11-22T06%3A00%3A00%2B00%3A00&next=//evil",
    "/tables/%C3%A4%3F%23",
)
OTHER_PATHS = ("/api/tables", "/metrics", "/static/sluice.css")


def get_login_redirect(client: TestClient, at: str, kind: str) -> list[Any]:
    """Return the status, the redirect's path, its `next` parameter, and whether Airflow accepts that after login."""
    answer = client.get(at, headers={"Accept": kind})
    to = answer.headers.get("location")
    back = to and dict(parse_qsl(urlsplit(to).query))["next"]
    return [answer.status_code, to and urlsplit(to).path, back, bool(back and is_safe_url(back))]


def reject_token() -> None:
    """Fail as Airflow does for a token that is signed with another secret."""
    raise HTTPException(403, "Invalid JWT token")


def main() -> None:
    """Request the menu's links (with `id` for their placeholders), and each path as a user who is not logged in."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plugins"))
    import sluice_plugin as plugin
    from sluice_web import reading

    unread = dict.fromkeys(("status", "details", "quality", "runs", "groups", "failed"), fixed_feed(None))
    reading.feeds = lambda: SimpleNamespace(**unread)
    reading.get_auth_manager = lambda: SimpleNamespace(get_authorized_dag_ids=lambda **_: set())
    reading.is_readable_run = lambda *_: True
    airflow = FastAPI(root_path=API_ROOT_PATH.removesuffix("/"))
    (mounted,) = plugin.SluicePlugin.fastapi_apps
    airflow.mount(mounted["url_prefix"], mounted["app"])
    client = TestClient(airflow, follow_redirects=False)
    root = f"{API_ROOT_PATH.removesuffix('/')}{mounted['url_prefix']}"
    logins = {
        f"{kind} {at}": get_login_redirect(client, root + at, kind)
        for kind in ACCEPT_HEADERS
        for at in (*PAGE_PATHS, *OTHER_PATHS)
    }
    plugin.app.dependency_overrides[get_user] = reject_token
    logins[f"another {PAGE_PATHS[0]}"] = get_login_redirect(client, root + PAGE_PATHS[0], ACCEPT_HEADERS[0])
    (login,) = plugin.app.router.dependencies
    plugin.app.dependency_overrides |= {login.dependency: lambda: None, get_user: lambda: "somebody"}
    menu: dict[str, Any] = {}
    for view in plugin.SluicePlugin.external_views:
        answer = client.get(re.sub(r"\{\w+\}", "id", view["href"]))
        menu[view["href"]] = [answer.status_code, re.findall(r'(?:href|src|data-airflow)="([^"]*)"', answer.text)]
    print(json.dumps({"menu": menu, "logins": logins}))


if __name__ == "__main__":
    main()
