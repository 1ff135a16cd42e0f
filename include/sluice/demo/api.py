"""The little of Airflow's API that the demo uses: unpause, trigger, look."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from sluice.embedded.failure import StackError

_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # loopback, whatever proxy is set
DAG_PATIENCE_S = 90.0


class Airflow:
    """A running Airflow, by the variables of the stack's `env` file."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._url = env["SLUICE_PAGES_URL"]
        self.token = ""
        login = {"username": env["SLUICE_PAGES_USER"], "password": env["SLUICE_PAGES_PASSWORD"]}
        self.token = self._ask("POST", "/auth/token", login)["access_token"]

    def wait_for_dag(self, dag: str, *, tables: set[str]) -> None:
        """Return when Airflow knows the DAG with a task for each table.

        Raises:
            StackError: It does not, in time; with the import errors.
        """
        until = time.monotonic() + DAG_PATIENCE_S
        while time.monotonic() < until:
            try:
                tasks = {t["task_id"] for t in self._ask("GET", f"/api/v2/dags/{dag}/tasks")["tasks"]}
                if tables <= tasks:
                    return
            except StackError:
                pass
            time.sleep(1)
        errors = [e["stack_trace"] for e in self._ask("GET", "/api/v2/importErrors")["import_errors"]]
        raise StackError(f"Airflow does not show the DAG {dag}.\n" + "\n".join(errors))

    def pause(self, dag: str, paused: bool) -> None:
        """Pause a DAG or let it run."""
        self._ask("PATCH", f"/api/v2/dags/{dag}?update_mask=is_paused", {"is_paused": paused})

    def trigger(self, dag: str, **params: Any) -> str:
        """Ask the scheduler for a run; returns its id."""
        asked = {"logical_date": None, "conf": params}
        return str(self._ask("POST", f"/api/v2/dags/{dag}/dagRuns", asked)["dag_run_id"])

    def run_state(self, dag: str, run: str) -> str:
        """The state of a run."""
        return str(self._ask("GET", f"/api/v2/dags/{dag}/dagRuns/{run}")["state"])

    def tasks(self, dag: str, run: str) -> list[dict[str, Any]]:
        """The task instances of a run."""
        found = self._ask("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return list(found)

    def open_runs(self, dag: str) -> list[str]:
        """The runs that are queued or running."""
        query = "state=queued&state=running"
        return [r["dag_run_id"] for r in self._ask("GET", f"/api/v2/dags/{dag}/dagRuns?{query}")["dag_runs"]]

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
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
            said = error.read(300).decode("utf-8", "replace")
            raise StackError(f"Airflow answered {method} {path} with {error.code}: {said}") from error
        except OSError as error:
            raise StackError(f"Airflow did not answer {method} {path}: {error}") from error
