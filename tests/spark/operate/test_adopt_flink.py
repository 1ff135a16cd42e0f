"""A table of a real Flink job is adopted after the job was killed, and handed back to it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench import peers
from sluice.embedded import process
from sluice.embedded.ports import HOST, free_port
from sluice.errors import RefusedError
from sluice.operate import previous_writer
from tests.support import runbook
from tests.support.lake import Lake, record

# Flink's jars, 200 MB, are fetched for this test and the benchmarks alone.
pytestmark = [pytest.mark.infra, pytest.mark.timeout(900)]


@dataclass
class Job:
    """A Flink SQL job from a topic to a table, whose every start goes on at its last checkpoint or savepoint."""

    it: Lake
    table: str
    folder: Path
    group: str
    sent: int = 0
    port: int = field(default_factory=free_port)

    @property
    def database(self) -> Path:
        return Path(os.environ["PYICEBERG_CATALOG__LAKE__URI"].removeprefix("sqlite:///").partition("?")[0])

    @contextmanager
    def running(self, **options: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run the job; it is killed at the end. With `options` of the source it starts without state."""
        warehouse = os.environ["PYICEBERG_CATALOG__LAKE__WAREHOUSE"].removeprefix("file://")
        catalog = peers.jdbc_catalog(self.database, Path(warehouse))
        folder = self.folder / f"start-{time.time_ns()}"
        folder.mkdir()
        pipe = peers.Pipe(folder, self.it.bootstrap, self.it.topic, self.table, catalog, commit_s=1, heap="768m")
        source = {"scan.bounded.mode": "unbounded", "properties.group.id": self.group, **options}
        settings = {
            "execution.checkpointing.dir": f"file://{self.folder}/checkpoints",
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            "rest.bind-port": str(self.port),
        }
        if not options and (state := self.last_state()):
            settings["execution.state-recovery.path"] = f"file://{state}"
        service = peers.flink(pipe, "id STRING, n BIGINT, text STRING", options=source, settings=settings)
        job = process.start_and_wait(service)
        try:
            yield job
        finally:
            job.kill()
            job.wait(30)

    def last_state(self) -> Path | None:
        """The folder of the last checkpoint or savepoint."""
        found = sorted(self.folder.glob("*points/**/_metadata"), key=lambda file: file.stat().st_mtime)
        return found[-1].parent if found else None

    def stop(self) -> None:
        """Do what `flink stop` does, and wait until the job has ended."""
        (found,) = _ask(f"http://{HOST}:{self.port}/jobs")["jobs"]
        target = {"targetDirectory": f"file://{self.folder}/savepoints", "drain": False}
        _ask(f"http://{HOST}:{self.port}/jobs/{found['id']}/stop", json.dumps(target))
        log = max(self.folder.glob("start-*/flink.log"))
        _wait(lambda: "from state RUNNING to FINISHED" in log.read_text("utf-8"))

    def send(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        self.it.send((n % 2, f"k{n}", record(n)) for n in numbers)
        self.sent += count

    def rows(self) -> list[tuple[str, int, str]]:
        return sorted(((row["id"], row["n"], row["text"]) for row in self.it.rows(self.table)), key=lambda row: row[1])

    def assert_all_once(self) -> None:
        assert self.rows() == [(f"k{n}", n, f"record {n}") for n in range(self.sent)]

    def committed(self) -> int:
        """The number of records before the consumer group's offsets."""
        with suppress(RefusedError):
            group = previous_writer.read_consumer_group(self.it.admin, self.group)
            return sum(group.offsets[self.it.topic].values())
        return 0


@contextmanager
def _locked(database: Path) -> Iterator[None]:
    """Let all commits to the catalog wait."""
    with closing(sqlite3.connect(database, isolation_level=None, timeout=60)) as held:
        held.execute("BEGIN IMMEDIATE")
        yield


def _ask(url: str, body: str = "") -> dict:  # type: ignore[type-arg]
    asked = urllib.request.Request(url, body.encode() or None, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return dict(json.load(answer))


def _wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)


def test_a_job_that_was_killed_is_continued_and_goes_on_again(lake: Callable[..., Lake], tmp_path: Path) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract()
    it.spark.sql(f"CREATE TABLE lake.{table} (id string, n bigint, text string) USING iceberg")
    job = Job(it, table, tmp_path, f"flink-{it.topic}")
    for attempt in range(2):
        with job.running():
            before = len(job.rows())
            job.send(3_000)
            _wait(lambda before=before: len(job.rows()) > before)  # type: ignore[misc]
            for _ in range(10):
                job.send(200)
                time.sleep(0.1 + 0.07 * attempt)

    # The job completes a checkpoint and commits its offsets to Kafka; it is killed before it commits the files.
    with job.running() as running:
        _wait(lambda: len(job.rows()) == job.committed() == job.sent)
        with _locked(job.database):
            job.send(1_000)
            _wait(lambda: job.committed() == job.sent)
            running.kill()
            running.wait(30)
    assert len(job.rows()) == job.sent - 1_000
    by_checkpoint = "adopt TABLE --checkpoint FOLDER"
    names = {"TABLE": table, "GROUP": job.group, "FOLDER": str(job.last_state())}
    told = runbook.run_command(it, by_checkpoint, refused=True, **names)
    assert "that are not in the table" in told
    told = runbook.run_command(it, "adopt TABLE --consumer-group GROUP", refused=True, **names)
    assert "can differ from what is in the table" in told

    with job.running():
        job.send(100)
        _wait(lambda: len(job.rows()) == job.sent)
        job.send(100)
        job.stop()
    assert job.committed() <= len(job.rows())
    told = runbook.run_command(it, by_checkpoint, refused=True, **names)
    assert "The table has the files of checkpoint" in told
    job.send(500)
    names["FOLDER"] = str(job.last_state())
    facts = json.loads(runbook.run_command(it, by_checkpoint, "--json", **names))
    assert sum(facts["offsets"][it.topic].values()) == len(job.rows())
    runbook.run_command(it, by_checkpoint, "--why", "moves", "--yes", "--watch", "0.1", **names)
    it.drain(table)
    job.assert_all_once()

    back = runbook.run_command(it, "offsets TABLE --as flink", TABLE=table).strip()
    with job.running(**{"scan.startup.mode": "specific-offsets", "scan.startup.specific-offsets": back}):
        job.send(100)
        _wait(lambda: len(job.rows()) >= job.sent)
        job.stop()
    job.assert_all_once()
