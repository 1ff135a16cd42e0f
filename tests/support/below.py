"""Ask the plugin's pages as Airflow mounts them below a path of its own; prints what each address answers as JSON.

A process of its own: that path is a setting, which Airflow reads when it is imported.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.api_fastapi.app import API_ROOT_PATH
from airflow.api_fastapi.core_api.security import get_user
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.support.asked import known


def main() -> None:
    """Ask what Airflow's menu leads to, with the ids of a run in place of those that its pages fill in."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plugins"))
    import sluice_plugin as plugin
    from sluice_web import reading

    unread = dict.fromkeys(("status", "details", "quality", "runs", "groups", "failed"), known(None))
    reading.feeds = lambda: SimpleNamespace(**unread)
    reading.get_auth_manager = lambda: SimpleNamespace(get_authorized_dag_ids=lambda **_: set())
    airflow = FastAPI(root_path=API_ROOT_PATH.removesuffix("/"))
    (mounted,) = plugin.SluicePlugin.fastapi_apps
    airflow.mount(mounted["url_prefix"], mounted["app"])
    client = TestClient(airflow)
    (login,) = plugin.app.router.dependencies
    plugin.app.dependency_overrides |= {login.dependency: lambda: None, get_user: lambda: "somebody"}
    menu: dict[str, Any] = {}
    for view in plugin.SluicePlugin.external_views:
        answer = client.get(re.sub(r"\{\w+\}", "id", view["href"]))
        menu[view["href"]] = [answer.status_code, re.findall(r'(?:href|src|data-airflow)="([^"]*)"', answer.text)]
    print(json.dumps(menu))


if __name__ == "__main__":
    main()
