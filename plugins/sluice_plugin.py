"""Sluice's pages in Airflow: Tables and Data quality in the navigation, what a run judged as a tab beside it.

Every address asks for Airflow's own login. Nothing here changes anything.
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
from sluice_web import api, pages
from sluice_web.pages import PREFIX
from starlette.exceptions import HTTPException
from starlette.middleware.base import RequestResponseEndpoint

LIBRARIES = (
    "airflow.providers.apache.spark.operators.spark_submit",
    "airflow.providers.standard.decorators.python",
    "confluent_kafka.admin",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
)
"""What Sluice's DAG files and tasks take longest to import. No code of Sluice: that would stay as it was when a new one
is put in place, until Airflow is started again."""

NO_PAGES = ("/api/", "/metrics", "/static/")
"""What programs ask for, and the pages themselves: they are told that nobody is logged in."""

app = FastAPI(
    title="Sluice",
    description="Where every table stands: the facts behind the pages.",
    dependencies=[Depends(requires_access_view(AccessView.PLUGINS))],
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
)
app.include_router(pages.router)
app.include_router(api.router)


@app.middleware("http")
async def secured(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """No answer is kept by a browser or a proxy, or taken for what it is not: JSON, metrics and errors as the pages."""
    from sluice.pages import render

    answer = await call_next(request)
    for name, value in render.SECURITY.items():
        answer.headers.setdefault(name, value)
    return answer


@app.exception_handler(HTTPException)
async def refused(request: Request, error: HTTPException) -> Response:
    """Who asks for a page and is not logged in comes to Airflow's login and back, as from Airflow's own pages."""
    base, path = request.scope.get("root_path", "").rstrip("/"), request.scope["path"]
    page = not path.removeprefix(base).startswith(NO_PAGES)
    if page and "text/html" in request.headers.get("accept", "") and _logged_out(error):
        here = quote(path) + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{base.removesuffix(PREFIX)}/api/v2/auth/login?{urlencode({'next': here})}")
    return await http_exception_handler(request, error)


def _logged_out(error: HTTPException) -> bool:
    """By what Airflow's own pages tell it: the secret that a token was signed by may be gone."""
    return error.status_code == 401 or (error.status_code, error.detail) == (403, "Invalid JWT token")


@app.get("/api/openapi.json", include_in_schema=False)
def openapi(request: Request) -> dict[str, Any]:
    """What the API answers, and where it is."""
    from sluice.pages import answers

    return {
        **answers.described(app.openapi()),
        "servers": [{"url": request.scope.get("root_path", "").rstrip("/") or "/"}],
    }


def forks() -> bool:
    """Whether this process is one that Airflow forks for each parse of a DAG file, or for each task."""
    command = sys.argv[1:2]
    return command == ["dag-processor"] or (
        command == ["scheduler"] and "LocalExecutor" in conf.get("core", "executor", fallback="")
    )


AT = f"{API_ROOT_PATH.rstrip('/')}{PREFIX}"
"""Where a browser finds the pages. Airflow puts the path of its `base_url` before what it mounts, but not before what
its own pages lead to."""


class SluicePlugin(AirflowPlugin):
    """The pages and where Airflow shows them."""

    name = "sluice"
    fastapi_apps = [{"app": app, "url_prefix": PREFIX, "name": "Sluice"}]  # noqa: RUF012 - Airflow's own shape
    external_views = [  # noqa: RUF012
        {
            "name": "Tables",
            "href": f"{AT}/tables",
            "destination": "nav",
            "url_route": "sluice-tables",
            "nav_top_level": True,
        },
        {"name": "Data quality", "href": f"{AT}/quality", "destination": "nav", "url_route": "sluice-quality"},
        {"name": "Timeline", "href": f"{AT}/timeline", "destination": "nav", "url_route": "sluice-timeline"},
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
        """Import once what each fork would import anew: most of the processor time of a short task."""
        for name in LIBRARIES if forks() else ():
            with suppress(ImportError):  # of a task that needs it, it is the error
                importlib.import_module(name)
