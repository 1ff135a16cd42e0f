"""The health checks of Airflow's services in docker-compose.yaml, on the services of a running Airflow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.airflow_stack import AirflowStack
from tests.support.compose import health_check

pytestmark = pytest.mark.system


@pytest.mark.parametrize("service", ["api-server", "scheduler", "dag-processor", "triggerer"])
def test_a_service_that_runs_is_healthy(stack: AirflowStack, service: str) -> None:
    here = {"http://127.0.0.1:8080": stack.env["SLUICE_PAGES_URL"]} if service == "api-server" else {}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, **stack.env, "PATH": path}
    done = subprocess.run(
        health_check(service, here), env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
