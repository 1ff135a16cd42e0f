"""Starts a Spark job that stops at a named point of a run, so that its driver can be killed there.

Spark starts it in place of Python, by `PYSPARK_DRIVER_PYTHON`: `stop.py POINT MARK JOB ARGUMENTS…`. At the point it
creates the file MARK, and waits.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

AFTER_STAGE, BEFORE_LANDING, AFTER_PUBLISH = "after-stage", "before-landing", "after-publish"
LONGEST_WAIT_S = 300


def install(point: str, mark: Path) -> None:
    """Make the commit that moves a table's main branch stop before or after it, in staging or the typed table."""
    from sluice.iceberg import table_names
    from sluice.ingest.branch_write import BranchWrite

    move = BranchWrite.fast_forward_main
    own = (table_names.STAGING, table_names.QUARANTINE, table_names.DELETES)

    def stopping(write: BranchWrite) -> Any:
        namespace = write.identifier[0]
        reached = namespace == table_names.STAGING if point == AFTER_STAGE else namespace not in own
        if reached and point == BEFORE_LANDING:
            _wait(mark)
        moved = move(write)
        if reached and point != BEFORE_LANDING:
            _wait(mark)
        return moved

    BranchWrite.fast_forward_main = stopping  # type: ignore[method-assign, assignment]


def _wait(mark: Path) -> None:
    mark.touch()
    time.sleep(LONGEST_WAIT_S)
    os._exit(1)  # whoever was to kill this process has died


def main() -> None:
    """Run the job's file."""
    point, mark, program, *arguments = sys.argv[1:]
    install(point, Path(mark))
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
