"""Registers Sluice's pages and JSON API in Airflow: a navigation entry, and tabs of DAGs, runs and tasks.

All addresses require Airflow's login, and all are read-only: what a button does is a request to Airflow's own API.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode

from airflow.api_fastapi.app import API_ROOT_PATH
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import RedirectResponse
from sluice_web import api, costs, pages, timelines
from sluice_web.answers import PREFIX
from starlette.exceptions import HTTPException
from starlette.middleware.base import RequestResponseEndpoint

LIBRARIES = (
    "airflow.providers.apache.spark.operators.spark_submit",
    "airflow.providers.standard.decorators.python",
    "confluent_kafka.admin",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
)
"""The slowest imports of Sluice's DAG files and tasks. None of Sluice's modules: a new version of them would
only be used after a restart of Airflow."""

NO_PAGES = ("/api/", "/metrics", "/static/")
"""Paths that programs and pages request: without a login they get an error, not a redirect."""

app = FastAPI(
    title="Sluice",
    description="The status of all tables: the data behind the pages.",
    dependencies=[Depends(requires_access_view(AccessView.PLUGINS))],
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
)
app.include_router(pages.router)
app.include_router(timelines.router)
app.include_router(costs.router)
app.include_router(api.router)


@app.middleware("http")
async def add_security_headers(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Add the security and no-cache headers to every answer."""
    from sluice.pages import render

    answer = await call_next(request)
    for name, value in render.SECURITY_HEADERS.items():
        answer.headers.setdefault(name, value)
    return answer


@app.exception_handler(HTTPException)
async def redirect_to_login(request: Request, error: HTTPException) -> Response:
    """Redirect page requests without a login to Airflow's login page and back."""
    base, path = request.scope.get("root_path", "").rstrip("/"), request.scope["path"]
    page = not path.removeprefix(base).startswith(NO_PAGES)
    if page and "text/html" in request.headers.get("accept", "") and _is_logged_out(error):
        here = quote(path) + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{base.removesuffix(PREFIX)}/api/v2/auth/login?{urlencode({'next': here})}")
    return await http_exception_handler(request, error)


def _is_logged_out(error: HTTPException) -> bool:
    """Whether a login is needed: Airflow answers 403 for a token that was signed by another secret."""
    return error.status_code == 401 or (error.status_code, error.detail) == (403, "Invalid JWT token")


@app.get("/api/openapi.json", include_in_schema=False)
def openapi(request: Request) -> dict[str, Any]:
    """The OpenAPI description, with the address of the API."""
    from sluice.pages import api_schema

    return {
        **api_schema.add_answer_schemas(app.openapi()),
        "servers": [{"url": request.scope.get("root_path", "").rstrip("/") or "/"}],
    }


def is_forking_process() -> bool:
    """Whether Airflow forks this process to parse a DAG file or to run a task."""
    command = sys.argv[1:2]
    return command == ["dag-processor"] or (
        command == ["scheduler"] and "LocalExecutor" in conf.get("core", "executor", fallback="")
    )


AT = f"{API_ROOT_PATH.rstrip('/')}{PREFIX}"
"""The path of the pages for a browser. Airflow adds the path of its `base_url` to what it mounts, but not to the links
of `external_views`."""


class SluicePlugin(AirflowPlugin):
    """The pages, and their places in Airflow's UI."""

    name = "sluice"
    fastapi_apps = [{"app": app, "url_prefix": PREFIX, "name": "Sluice"}]  # noqa: RUF012 - Airflow's own shape
    external_views = [  # noqa: RUF012
        {
            "name": "Sluice",
            "href": f"{AT}/tables",
            "icon": f"{AT}/static/sluice.svg",
            "destination": "nav",
            "url_route": "sluice",
            "nav_top_level": True,
        },
        {
            "name": "Tables",
            "href": f"{AT}/tables?dag_id={{DAG_ID}}",
            "destination": "dag",
            "url_route": "sluice-dag-tables",
        },
        {
            "name": "Data quality",
            "href": f"{AT}/quality?dag_id={{DAG_ID}}&run_id={{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "sluice-run-quality",
        },
        {
            "name": "Data quality",
            "href": f"{AT}/quality?dag_id={{DAG_ID}}&run_id={{RUN_ID}}&task_id={{TASK_ID}}",
            "destination": "task_instance",
            "url_route": "sluice-task-quality",
        },
    ]

    @classmethod
    def on_load(cls, *_: Any, **__: Any) -> None:
        """Import slow libraries before forking: importing them takes most of the CPU time of a short task."""
        for name in LIBRARIES if is_forking_process() else ():
            with suppress(ImportError):  # the task that needs it reports the error
                importlib.import_module(name)
