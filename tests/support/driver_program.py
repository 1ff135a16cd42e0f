"""The program of `killable_driver`: runs real jobs that stop at named points and create a file when they have.

spark-submit starts it in place of a file of jobs/. `SLUICE_TEST_JOBS` is a JSON list of jobs: the module with the job's
`main`, its arguments, the point where it stops, and the file to create. Each job runs in its own thread, because a
driver's start takes longer than a job; the first job that ends also ends the process.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(eq=False)
class Job:
    """A job of the driver; the threads that its thread starts know it too.

    Attributes:
        module: The module with the job's `main`.
        arguments: The arguments of `main`.
        point: The point where it stops.
        mark: The file to create when it has stopped.
        rounds: So many rounds of a continuous group end before it stops.
        waiting: It is at its point and waits until no other job has a commit to make.
    """

    module: str
    arguments: list[str]
    point: str
    mark: Path
    rounds: int
    waiting: bool = False

    def stop(self) -> None:
        self.mark.touch()
        # A job that is not killed continues when the test removes the file.
        while self.mark.exists():
            time.sleep(0.05)


JOBS = [Job(**{**job, "mark": Path(job["mark"])}) for job in json.loads(os.environ["SLUICE_TEST_JOBS"])]


def pass_jobs_to_threads() -> None:
    """Make each new thread take over the job of the thread that starts it."""
    begin = threading.Thread.start

    def start(self: threading.Thread) -> None:
        self.__dict__.setdefault("job", vars(threading.current_thread()).get("job"))
        begin(self)

    threading.Thread.start = start  # type: ignore[method-assign]


def job_stopping_at(point: str) -> Job | None:
    """Return this thread's job if it stops at `point`."""
    job: Job | None = vars(threading.current_thread()).get("job")
    return job if job and job.point == point and job.rounds == 0 else None


def install_stops() -> None:  # noqa: C901 - a catalogue of points
    """Wrap the functions at the jobs' points, so that they stop there."""
    from sluice.ingest import merge_batch, settle, stage
    from sluice.ingest.branch_write import BranchWrite
    from sluice.ledger import maintenance_table
    from sluice.ledger.offsets_table import Ledger
    from sluice.maintain import expire, rewrite
    from sluice.plan import plan

    def around(
        point: str, owner: Any, name: str, *, before: Callable[..., bool] | None = None, after: Any = None
    ) -> None:
        original = getattr(owner, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            job = job_stopping_at(point)
            if job and before and before(*arguments):
                job.stop()
            result = original(*arguments, **named)
            if job and after and after(*arguments):
                job.stop()
            return result

        setattr(owner, name, wrapped)

    def staging(attempt: BranchWrite) -> bool:
        return attempt.identifier[0].startswith("sluice_staging")

    def typed(attempt: BranchWrite) -> bool:
        return not staging(attempt)

    def ended(_: Any, effects: list[maintenance_table.ActionResult]) -> bool:
        return any(effect.state in maintenance_table.ENDED for effect in effects)

    def uncommitted(point: str, owner: Any, name: str, namespace: str) -> None:
        """Block all commits from that call on, until this process ends; create the mark when files are written."""
        original = getattr(owner, name)
        data = Path(os.environ["SLUICE_TEST_WAREHOUSE"]) / namespace

        def wrapped(*arguments: Any, **named: Any) -> Any:
            job = job_stopping_at(point)
            if not job:
                return original(*arguments, **named)
            job.waiting = True
            while not all(other.waiting or other.mark.exists() for other in JOBS):
                time.sleep(0.05)
            before = set(data.glob("*/data/**/*.parquet"))
            with locking:
                if not held:
                    writer = sqlite3.connect(os.environ["SLUICE_TEST_DATABASE"], check_same_thread=False)
                    writer.execute("BEGIN IMMEDIATE")
                    held.append(writer)

            def watch() -> None:
                # A file gets its size when its writer is closed; Spark's commit then waits for the database.
                while not any(f.stat().st_size > 0 for f in set(data.glob("*/data/**/*.parquet")) - before):
                    time.sleep(0.05)
                time.sleep(1)
                job.mark.touch()

            threading.Thread(target=watch, daemon=True).start()
            return original(*arguments, **named)

        setattr(owner, name, wrapped)

    held: list[sqlite3.Connection] = []
    locking = threading.Lock()
    points: dict[str, Callable[[str], None]] = {
        "planned": lambda point: around(point, plan, "make_plan", before=lambda *_: True),
        # In stage: the branch exists and is empty; the rows are on the branch; main has moved onto them.
        "stage: branch made": lambda point: around(point, stage, "read_from_kafka", before=lambda *_: True),
        "stage: written": lambda point: around(point, BranchWrite, "fast_forward_main", before=staging),
        "staged": lambda point: around(point, BranchWrite, "fast_forward_main", after=staging),
        # The same in publish.
        "publish: branch made": lambda point: around(point, merge_batch, "merge_batch", before=lambda *_: True),
        "publish: merged": lambda point: around(point, merge_batch, "merge_batch", after=lambda *_: True),
        "publish: before fast-forward": lambda point: around(point, BranchWrite, "fast_forward_main", before=typed),
        "published": lambda point: around(point, BranchWrite, "fast_forward_main", after=typed),
        # Only the run's ledger rows are missing.
        "before the ledger": lambda point: around(point, Ledger, "append", before=lambda *_: True),
        "after the ledger": lambda point: around(point, Ledger, "append", after=lambda *_: True),
        # The tasks have written their files, and the commit is blocked.
        "stage: files written": lambda point: uncommitted(point, stage, "read_from_kafka", "sluice_staging"),
        "publish: files written": lambda point: uncommitted(point, merge_batch, "merge_batch", "db"),
        "before settle": lambda point: around(point, settle, "settle_round", before=lambda *_: True),
        "settle: tidied": lambda point: around(point, settle._Settlement, "_clean_up_refs", after=lambda *_: True),
        # Maintenance: files are rewritten and the commit is blocked; the expiry mark is set and nothing is deleted yet;
        # the results are not written yet.
        "rewrite: files written": lambda point: uncommitted(point, rewrite, "rewrite_files", "db"),
        "expire: marked": lambda point: around(point, expire, "_delete_through", before=lambda *_: True),
        "expire: deleted": lambda point: around(point, expire, "_delete_through", after=lambda *_: True),
        # The snapshots are removed from the metadata and some of their files are deleted; some orphans are deleted.
        "expire: half of the files gone": lambda point: stop_halfway(point, "expire_snapshots", "metadata/*.avro"),
        "orphans: half of the files gone": lambda point: stop_halfway(point, "remove_orphan_files", "data/orphan-*"),
        "before it is kept": lambda point: around(point, maintenance_table, "write_results", before=ended),
    }
    for point in {job.point for job in JOBS if job.point}:
        points[point](point)


def count_rounds() -> None:
    """Make each job know how many of its rounds have ended."""
    from sluice.ingest import settle

    settle_round = settle.settle_round

    def counted(*arguments: Any, **named: Any) -> None:
        settle_round(*arguments, **named)
        job: Job = vars(threading.current_thread())["job"]
        job.rounds = max(job.rounds - 1, 0)

    settle.settle_round = counted


def run_jobs() -> int:
    """Run all jobs at the same time; return the exit code of the first that ends."""
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()

    def carry_out(job: Job) -> None:
        code = 1
        try:
            code = importlib.import_module(job.module).main(job.arguments)
        finally:
            ended.put(code)

    for job in JOBS:
        thread = threading.Thread(target=carry_out, args=(job,), daemon=True)
        vars(thread)["job"] = job
        thread.start()
    return ended.get()


def stop_halfway(point: str, procedure: str, pattern: str) -> None:
    """Stop the whole driver, with its JVM, as soon as the procedure has removed one of the existing files."""
    from sluice.maintain import procedures

    original = procedures.call_for_rows

    def watch(job: Job, paths: list[Path]) -> None:
        while all(path.exists() for path in paths):
            pass
        job.mark.touch()
        os.killpg(os.getpgrp(), signal.SIGSTOP)

    def wrapped(context: Any, subject: Any, called: str, **named: Any) -> Any:
        if (job := job_stopping_at(point)) and called == procedure and not named.get("dry_run"):
            table = Path(os.environ["SLUICE_TEST_WAREHOUSE"]).joinpath(*subject.identifier)
            threading.Thread(target=watch, args=(job, list(table.glob(pattern))), daemon=True).start()
        return original(context, subject, called, **named)

    procedures.call_for_rows = wrapped


if __name__ == "__main__":
    repository = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(repository / "include"), str(repository)]
    pass_jobs_to_threads()
    install_stops()
    count_rounds()
    sys.exit(run_jobs())
