"""The program behind `airflow_process`: imports Airflow once, then forks for each program it reads from stdin.

Each request is a line of JSON, each answer a line with the exit code. Sluice and the DAG files are not imported here,
so each fork imports them in its own environment.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import psutil

PRELOADED_MODULES = (
    "airflow.sdk",
    "airflow.dag_processing.dagbag",
    "airflow.providers.apache.spark.operators.spark_submit",
)
PATIENCE_S = 300


def serve_forks() -> Iterator[dict[str, Any]]:
    """Fork for each request: yields the request in the fork; the server waits for it and writes the exit code."""
    answers = os.dup(1)
    os.dup2(2, 1)  # Airflow's output must not mix with the answers
    for module in PRELOADED_MODULES:
        import_module(module)
    assert psutil.Process().num_threads() == 1, "a fork has only the thread that forks"
    gc.freeze()
    for line in sys.stdin:
        if child := os.fork():
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os.write(answers, f"{code}\n".encode())
        else:
            os.close(answers)
            yield json.loads(line)
            return


def main() -> None:
    """Serve; in each fork, run the program as `python -c` would."""
    for request in serve_forks():
        signal.alarm(PATIENCE_S)
        for number, name in enumerate((os.devnull, request["out"], request["err"])):
            os.dup2(os.open(name, os.O_RDWR), number)
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = ["-c", *request["arguments"]]
        program = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(request["program"], "<string>", "exec"), vars(program))


if __name__ == "__main__":
    main()
