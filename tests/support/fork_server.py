"""A process that has imported Airflow, and forks for each program it is given: see `own_airflow`.

Reads programs from stdin, a line of JSON each, and answers with a line: the exit code. What a fork finds imported is
other people's alone: the package and the DAG files are its own to import, in the environment that it was given.
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
PATIENCE_S = 120


def serve_forks() -> Iterator[dict[str, Any]]:
    """What is asked for, each in a process of its own; the server itself waits for each, and answers."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what Airflow prints is no answer
    for module in PRELOADED_MODULES:
        import_module(module)
    assert psutil.Process().num_threads() == 1, "a fork would lack the other threads"
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
    """Be the server; in a fork, be the program, as `python -c` would run it."""
    for asked in serve_forks():
        signal.alarm(PATIENCE_S)
        for number, name in enumerate((os.devnull, asked["out"], asked["err"])):
            os.dup2(os.open(name, os.O_RDWR), number)
        os.environ.clear()
        os.environ.update(asked["env"])
        sys.argv = ["-c", *asked["arguments"]]
        program = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(asked["program"], "<string>", "exec"), vars(program))


if __name__ == "__main__":
    main()
