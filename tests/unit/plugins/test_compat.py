"""Fails when Airflow or a provider offers a public way for what the `compat` modules do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

CHECK = """
import inspect, json
import airflow.sdk
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator, _YarnSparkSubmitBackend
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
hook = {name for name in dir(SparkSubmitHook) if not name.startswith("_")}
print(json.dumps({
    "exit_code": sorted(hook & {"exit_code", "returncode", "return_code"}),
    "log_filter": sorted(name for name in hook if "log" in name and "filter" in name),
    "internals": [hasattr(SparkSubmitHook, "_process_spark_submit_log"),
                  "_submit_sp" in inspect.getsource(SparkSubmitHook.submit)],
    "pod": "submission ID spark:" in inspect.getsource(SparkSubmitHook._process_spark_submit_log),
    "adopt": "_yarn_application_id" not in inspect.getsource(_YarnSparkSubmitBackend.poll_until_complete),
    "pod_state_key": SparkSubmitOperator._K8S_DRIVER_STATUS_KEY,
    "exit_code_text": [
        "(phase=Failed{container_state})" in inspect.getsource(SparkSubmitHook._poll_k8s_driver_via_api),
        "HTTP {resp.status_code}" in inspect.getsource(SparkSubmitHook._query_yarn_application_status),
    ],
    "sdk": sorted({"DagRun"} & set(airflow.sdk.__all__)),
    "count_runs": [hasattr(RuntimeTaskInstance, "get_dr_count"),
                   sorted(name for name in airflow.sdk.__all__ if "dr_count" in name)],
}))
"""


def test_the_internals_are_there_and_no_public_way_is(tmp_path: Path) -> None:
    env = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__UNIT_TEST_MODE": "True"}
    done = subprocess.run([sys.executable, "-c", CHECK], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "exit_code": [],  # else sluice_airflow.compat.ExitCodeHook.exit_code can go
        "log_filter": [],  # else its filter of start-up warnings can go
        "internals": [True, True],
        "pod": True,  # else the hook finds pods in any namespace, and _find_pod can go
        "adopt": True,  # else on_kill ends an application that a retry has found, and adopt can go
        "pod_state_key": "k8s_driver_status",
        "exit_code_text": [True, True],
        "count_runs": [True, []],  # else sluice_airflow.compat.count_active_runs can use it
        "sdk": [],  # else sluice_web.compat can use it
    }
