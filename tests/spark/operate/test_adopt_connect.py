"""A table of Iceberg's real sink for Kafka Connect is adopted after its worker was killed, and handed back to it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench import peers
from sluice.embedded import process
from sluice.errors import RefusedError
from sluice.operate import connect_sink
from sluice.operate.previous_writer import PreviousWriter
from tests.support import runbook
from tests.support.lake import Lake

# The sink's jars, 150 MB, are fetched for this test alone.
pytestmark = [pytest.mark.infra, pytest.mark.timeout(900)]
COLUMNS = [{"name": "n", "type": "long"}, {"name": "text", "type": "string"}]
GROUP = "connect-iceberg"


@dataclass
class Sink:
    """The connector `iceberg`, from a topic to a table."""

    it: Lake
    table: str
    folder: Path
    sent: int = 0

    @contextmanager
    def running(self) -> Iterator[str]:
        """Run its worker, and give the address of its REST API; the worker is killed at the end."""
        database = os.environ["PYICEBERG_CATALOG__LAKE__URI"].removeprefix("sqlite:///").partition("?")[0]
        warehouse = os.environ["PYICEBERG_CATALOG__LAKE__WAREHOUSE"].removeprefix("file://")
        catalog = peers.jdbc_catalog(Path(database), Path(warehouse))
        pipe = peers.Pipe(self.folder, self.it.bootstrap, self.it.topic, self.table, catalog, commit_s=2, heap="512m")
        service = peers.connect(pipe, settings={"transforms": "", "consumer.override.session.timeout.ms": "6000"})
        worker = process.start_service(service)
        try:
            process.wait_ready({service.name: (service, worker)})
            settings = (self.folder / "worker.properties").read_text()
            yield re.findall(r"^listeners=(.*)$", settings, re.MULTILINE)[0]
        finally:
            self._kill(worker)
        _wait(lambda: not self.it.admin.describe_consumer_groups([GROUP])[GROUP].result(30).members)

    def _kill(self, worker: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(30)

    def send(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        self.it.send((n % 2, None, {"n": n, "text": f"record {n}"}) for n in numbers)
        self.sent += count

    def numbers(self) -> list[int]:
        return sorted(row["n"] for row in self.it.rows(self.table))

    def read(self) -> PreviousWriter:
        base = self.it.catalog.load_table(self.table)
        return connect_sink.read_connector(self.it.admin, base, "iceberg", f"control-{self.it.topic}")


def _ask(method: str, url: str, body: str = "") -> None:
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(url, body.encode() or None, headers, method=method)
    urllib.request.urlopen(asked, timeout=30).close()


def _wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.3)


def test_a_connector_that_was_killed_is_continued_and_goes_on_again(lake: Callable[..., Lake], tmp_path: Path) -> None:
    it = lake()
    it.create_topic(2)
    it.create_topic(1, f"control-{it.topic}")
    table = it.contract(columns=COLUMNS)
    it.spark.sql(f"CREATE TABLE lake.{table} (n bigint, text string) USING iceberg")
    sink = Sink(it, table, tmp_path)
    for attempt in range(3):
        with sink.running():
            before = len(sink.numbers())
            sink.send(3_000)
            _wait(lambda before=before: len(sink.numbers()) > before)  # type: ignore[misc]
            if attempt == 0:
                with pytest.raises(RefusedError, match="still runs"):
                    sink.read()
            for _ in range(10):
                sink.send(200)
                time.sleep(0.1 * attempt)
    refused = ""
    try:
        sink.read()
    except RefusedError as error:
        refused = error.message
    if refused:  # announced files are left: one more commit takes them in
        assert "files that are not in the table yet" in refused
        with sink.running() as address:
            _wait(lambda: len(sink.numbers()) == sink.sent)
            _ask("PUT", f"{address}/connectors/iceberg/stop")
    sink.send(500)
    names = {"TABLE": table, "NAME": "iceberg"}
    control = ("--control-topic", f"control-{it.topic}")
    assert "connector iceberg" in runbook.run_command(it, "adopt TABLE --connector NAME", *control, **names)
    applied = ("--why", "moves", "--yes", "--watch", "0.1")
    runbook.run_command(it, "adopt TABLE --connector NAME", *control, *applied, **names)
    it.drain(table)
    assert sink.numbers() == list(range(sink.sent))

    back = runbook.run_command(it, "offsets TABLE --as connect", TABLE=table)
    with sink.running() as address:
        _ask("PUT", f"{address}/connectors/iceberg/stop")
        _wait(lambda: not it.admin.describe_consumer_groups([GROUP])[GROUP].result(30).members)
        _ask("PATCH", f"{address}/connectors/iceberg/offsets", back)
        _ask("PUT", f"{address}/connectors/iceberg/resume")
        sink.send(100)
        _wait(lambda: len(sink.numbers()) >= sink.sent)
    assert sink.numbers() == list(range(sink.sent))
