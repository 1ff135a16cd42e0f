"""A table of Iceberg's real sink for Kafka Connect is adopted after its worker was killed, and handed back to it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
pytestmark = [pytest.mark.infra, pytest.mark.timeout(600)]
COLUMNS = [{"name": "n", "type": "long"}, {"name": "text", "type": "string"}]


@contextmanager
def _sink(it: Lake, table: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A standalone worker, and its address; it is killed at the end."""
    database = os.environ["PYICEBERG_CATALOG__LAKE__URI"].removeprefix("sqlite:///").partition("?")[0]
    warehouse = os.environ["PYICEBERG_CATALOG__LAKE__WAREHOUSE"].removeprefix("file://")
    catalog = peers.jdbc_catalog(Path(database), Path(warehouse))
    pipe = peers.Pipe(folder, it.bootstrap, it.topic, table, catalog, commit_s=2, heap="512m")
    settings = {
        "transforms": "",
        "iceberg.catalog.jdbc.schema-version": "V1",
        "consumer.override.session.timeout.ms": "6000",
    }
    service = peers.connect(pipe, settings=settings)
    running = process.start_service(service)
    try:
        process.wait_ready({service.name: (service, running)})
        yield running, re.search(r"^listeners=(.*)$", (folder / "worker.properties").read_text(), re.MULTILINE)[1]  # type: ignore[index]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait(30)


def _ask(method: str, url: str, body: str = "") -> None:
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(
        urllib.request.Request(url, body.encode() or None, headers, method=method),
        timeout=30,
    ).close()


def _wait(condition: Callable[[], bool], seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.3)


def test_a_connector_that_was_killed_is_continued_and_goes_on_again(lake: Callable[..., Lake], tmp_path: Path) -> None:
    it = lake()
    it.create_topic(2)
    it.create_topic(1, f"control-{it.topic}")
    table = it.contract(columns=COLUMNS)
    it.spark.sql(f"CREATE TABLE lake.{table} (n bigint, text string) USING iceberg")
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        it.send((n % 2, None, {"n": n, "text": f"record {n}"}) for n in range(sent, sent + count))
        sent += count

    def numbers() -> list[int]:
        return sorted(row["n"] for row in it.rows(table))

    def read() -> PreviousWriter:
        base = it.catalog.load_table(table)
        return connect_sink.read_connector(it.admin, base, "iceberg", f"control-{it.topic}")

    refusals: set[str] = set()
    for attempt in range(4):
        with _sink(it, table, tmp_path) as (running, _):
            send(3_000)
            before = len(numbers())
            _wait(lambda before=before: len(numbers()) > before)  # type: ignore[misc]
            for _ in range(10):
                send(200)
                time.sleep(0.05 * attempt)
            if attempt == 0:
                with pytest.raises(RefusedError, match="still runs"):
                    read()
            os.killpg(running.pid, signal.SIGKILL)
        _wait(lambda: not it.admin.describe_consumer_groups(["connect-iceberg"])["connect-iceberg"].result(30).members)
        try:
            read()
        except RefusedError as error:
            refusals.add(error.message)
    if refusals:  # the last kill may have left announced files: one more commit takes them in
        with _sink(it, table, tmp_path) as (_, address):
            _wait(lambda: len(numbers()) == sent)
            _ask("PUT", f"{address}/connectors/iceberg/stop")
        _wait(lambda: not it.admin.describe_consumer_groups(["connect-iceberg"])["connect-iceberg"].result(30).members)
    send(500)
    names = {"TABLE": table, "NAME": "iceberg"}
    control = ("--control-topic", f"control-{it.topic}")
    assert "connector iceberg" in runbook.run_command(it, "adopt TABLE --connector NAME", *control, **names)
    applied = ("--why", "moves", "--yes", "--watch", "0.1")
    runbook.run_command(it, "adopt TABLE --connector NAME", *control, *applied, **names)
    it.drain(table)
    assert numbers() == list(range(sent))

    back = runbook.run_command(it, "offsets TABLE --as connect", TABLE=table)
    with _sink(it, table, tmp_path) as (_, address):
        _ask("PUT", f"{address}/connectors/iceberg/stop")
        _wait(lambda: not it.admin.describe_consumer_groups(["connect-iceberg"])["connect-iceberg"].result(30).members)
        _ask("PATCH", f"{address}/connectors/iceberg/offsets", back)
        _ask("PUT", f"{address}/connectors/iceberg/resume")
        send(100)
        _wait(lambda: len(numbers()) >= sent)
    assert numbers() == list(range(sent))
    print(json.dumps(sorted(refusals)))
