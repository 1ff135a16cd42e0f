"""The real driver of a run, which stops for ever at a named point and says so by making a file.

Started by spark-submit in place of a file of jobs/ (`SLUICE_TEST_JOB`, else ingest.py), with the same arguments;
`SLUICE_TEST_POINT` and `SLUICE_TEST_MARK` name the point and the file. What happens to it there (kill -9, SIGSTOP) is
the test's to choose.
"""

from __future__ import annotations

import os
import runpy
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:  # noqa: C901 - a catalogue of points
    """Put the stop in place, then run the job as it is."""
    repository = Path(__file__).resolve().parents[2]
    sys.path.insert(0, str(repository / "include"))
    from sluice import maintain, plan, publish, settle, stage, upkeep
    from sluice.commit import Attempt
    from sluice.ledger import Ledger

    mark = Path(os.environ["SLUICE_TEST_MARK"])

    def stop() -> None:
        mark.touch()
        # A zombie goes on from here when the file is gone; one that is killed never does.
        while mark.exists():
            time.sleep(0.05)

    def around(owner: Any, name: str, *, before: Callable[..., bool] | None = None, after: Any = None) -> None:
        original = getattr(owner, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            if before and before(*arguments):
                stop()
            result = original(*arguments, **named)
            if after and after(*arguments):
                stop()
            return result

        setattr(owner, name, wrapped)

    def staging(attempt: Attempt) -> bool:
        return attempt.identifier[0].startswith("sluice_staging")

    def typed(attempt: Attempt) -> bool:
        return not staging(attempt)

    def uncommitted(owner: Any, name: str, namespace: str) -> None:
        """From that call on nobody can commit, until this process ends; the mark is made when the files are written."""
        original = getattr(owner, name)
        data = Path(os.environ["SLUICE_TEST_WAREHOUSE"]) / namespace

        def wrapped(*arguments: Any, **named: Any) -> Any:
            before = set(data.glob("*/data/**/*.parquet"))
            writer = sqlite3.connect(os.environ["SLUICE_TEST_DATABASE"], check_same_thread=False)
            writer.execute("BEGIN IMMEDIATE")
            held.append(writer)

            def watch() -> None:
                # A file is complete when its writer is closed; Spark's commit then waits for the database.
                while not any(f.stat().st_size > 0 for f in set(data.glob("*/data/**/*.parquet")) - before):
                    time.sleep(0.05)
                time.sleep(1)
                mark.touch()

            threading.Thread(target=watch, daemon=True).start()
            return original(*arguments, **named)

        setattr(owner, name, wrapped)

    held: list[sqlite3.Connection] = []
    points: dict[str, Callable[[], None]] = {
        "planned": lambda: around(plan, "look", before=lambda *_: True),
        # Inside stage: the branch is made, nothing is written; the rows are on the branch; main has moved onto them.
        "stage: branch made": lambda: around(stage, "read", before=lambda *_: True),
        "stage: written": lambda: around(Attempt, "land", before=staging),
        "staged": lambda: around(Attempt, "land", after=staging),
        # Inside publish, likewise.
        "publish: branch made": lambda: around(publish, "merge_in", before=lambda *_: True),
        "publish: merged": lambda: around(publish, "merge_in", after=lambda *_: True),
        "publish: before land": lambda: around(Attempt, "land", before=typed),
        "published": lambda: around(Attempt, "land", after=typed),
        # The run is over but for its rows in the ledger.
        "before the ledger": lambda: around(Ledger, "append", before=lambda *_: True),
        "after the ledger": lambda: around(Ledger, "append", after=lambda *_: True),
        # The tasks have written their files, and the commit can't come.
        "stage: files written": lambda: uncommitted(stage, "read", "sluice_staging"),
        "publish: files written": lambda: uncommitted(publish, "merge_in", "db"),
        "settle: tidied": lambda: around(settle, "_tidy", after=lambda *_: True),
        # Maintenance: files are rewritten and the commit can't come; the mark is set and nothing is deleted yet;
        # what was done is not written down.
        "rewrite: files written": lambda: uncommitted(maintain, "_rewrite", "db"),
        "expire: marked": lambda: around(maintain, "_delete_through", before=lambda *_: True),
        "expire: deleted": lambda: around(maintain, "_delete_through", after=lambda *_: True),
        # The snapshots are gone from the metadata, their files partly; of the orphans some are gone.
        "expire: half of the files gone": lambda: half_way(mark, "expire_snapshots", "metadata/*.avro"),
        "orphans: half of the files gone": lambda: half_way(mark, "remove_orphan_files", "data/orphan-*"),
        "before it is kept": lambda: around(upkeep, "keep", before=lambda *_: True),
    }
    points[os.environ["SLUICE_TEST_POINT"]]()
    runpy.run_path(str(repository / "jobs" / os.environ.get("SLUICE_TEST_JOB", "ingest.py")), run_name="__main__")


def half_way(mark: Path, procedure: str, pattern: str) -> None:
    """The whole driver stops, JVM and all, as soon as the procedure has removed one of the files there are."""
    from sluice import maintain

    original = maintain._rows

    def watch(paths: list[Path]) -> None:
        while all(path.exists() for path in paths):
            pass
        mark.touch()
        os.killpg(os.getpgrp(), signal.SIGSTOP)

    def wrapped(context: Any, subject: Any, called: str, **named: Any) -> Any:
        if called == procedure and not named.get("dry_run"):
            table = Path(os.environ["SLUICE_TEST_WAREHOUSE"]).joinpath(*subject.identifier)
            threading.Thread(target=watch, args=(list(table.glob(pattern)),), daemon=True).start()
        return original(context, subject, called, **named)

    maintain._rows = wrapped


if __name__ == "__main__":
    main()
