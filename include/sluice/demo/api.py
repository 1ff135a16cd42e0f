"""A client of Airflow's REST API: pause and trigger DAGs, read runs and their tasks."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from sluice.embedded.failure import StackError

_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # loopback: proxy settings are ignored
DAG_PATIENCE_S = 90.0


class AirflowClient:
    """A client that is logged in to the Airflow of a stack, whose `env` file it is given."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._url = env["SLUICE_PAGES_URL"]
        self.token = ""
        login = {"username": env["SLUICE_PAGES_USER"], "password": env["SLUICE_PAGES_PASSWORD"]}
        self.token = self.request("POST", "/auth/token", login)["access_token"]

    def wait_for_dag(self, dag: str, *, tables: set[str]) -> None:
        """Wait until Airflow has the DAG with a task for each table.

        Raises:
            StackError: It does not have it in time; the message has the import errors.
        """
        until = time.monotonic() + DAG_PATIENCE_S
        while time.monotonic() < until:
            try:
                tasks = {t["task_id"] for t in self.request("GET", f"/api/v2/dags/{dag}/tasks")["tasks"]}
                if tables <= tasks:
                    return
            except StackError:
                pass
            time.sleep(1)
        errors = [e["stack_trace"] for e in self.request("GET", "/api/v2/importErrors")["import_errors"]]
        raise StackError(f"Airflow has no DAG {dag} with the tasks {sorted(tables)}.\n" + "\n".join(errors))

    def pause(self, dag: str, paused: bool) -> None:
        """Pause or unpause a DAG."""
        self.request("PATCH", f"/api/v2/dags/{dag}?update_mask=is_paused", {"is_paused": paused})

    def trigger(self, dag: str, **params: Any) -> str:
        """Trigger a DAG with these params; return the run's id."""
        body = {"logical_date": None, "conf": params}
        return str(self.request("POST", f"/api/v2/dags/{dag}/dagRuns", body)["dag_run_id"])

    def run_state(self, dag: str, run: str) -> str:
        """Return the state of a run."""
        return str(self.request("GET", f"/api/v2/dags/{dag}/dagRuns/{run}")["state"])

    def tasks(self, dag: str, run: str) -> list[dict[str, Any]]:
        """Return the task instances of a run."""
        found = self.request("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return list(found)

    def open_runs(self, dag: str) -> list[str]:
        """Return the ids of the runs that are queued or running."""
        query = "state=queued&state=running"
        return [r["dag_run_id"] for r in self.request("GET", f"/api/v2/dags/{dag}/dagRuns?{query}")["dag_runs"]]

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request; return the decoded JSON.

        Raises:
            StackError: Airflow does not answer, or answers with an error.
        """
        request = urllib.request.Request(  # noqa: S310 - always http on loopback
            self._url + path.replace("+", "%2B"),
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
        )
        try:
            with _open(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read(300).decode("utf-8", "replace")
            raise StackError(f"Airflow answered {method} {path} with {error.code}: {text}") from error
        except OSError as error:
            raise StackError(f"Airflow did not answer {method} {path}: {error}") from error
