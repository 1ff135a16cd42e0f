"""Fixtures for all tests: the test run's broker and schema registry, and embedded stacks in temporary folders."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from sluice import jvm
from sluice.embedded.home import REPOSITORY, Home
from sluice.embedded.kafka_broker import EmbeddedBroker
from sluice.embedded.process import stop_services
from sluice.embedded.schema_registry import EmbeddedRegistry
from sluice.embedded.state import load_state

# `make test` starts parts in the background, where the shell makes them ignore Ctrl-C; services would keep running.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Collect garbage rarely: table metadata is many objects without cycles, and by default this takes 7 % of the CPU time.
gc.set_threshold(50_000, 50, 50)
# The JVMs of tests are short-lived: the second compiler would take half of the CPU time and never pay off. Hadoop runs
# chmod twice for each local file, which is a fifth faster with vfork.
JVM = [*jvm.SHORT_LIVED_OPTIONS]
if sys.platform == "linux":
    JVM.append("-Djdk.lang.Process.launchMechanism=VFORK")
os.environ.setdefault("JAVA_TOOL_OPTIONS", " ".join(JVM))
# By default retention and compaction run every few minutes; tests need them within seconds.
QUICK_HOUSEKEEPING = {
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.segment.delete.delay.ms": "500",
    "group.min.session.timeout.ms": "1000",
}


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """The broker of the test run; tests use topics with unique names."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), settings=QUICK_HOUSEKEEPING) as running:
        yield running


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRegistry]:
    """The schema registry of the test run, started by the first test that uses it."""
    folder = tmp_path_factory.mktemp("registry")
    patch = pytest.MonkeyPatch()
    with EmbeddedRegistry(folder) as running:
        patch.setenv("SCHEMA_REGISTRY_URL", running.url)
        patch.setenv("SLUICE_SCHEMAS", str(folder / "kept"))
        yield running
    patch.undo()


@pytest.fixture
def sluice_env(tmp_path: Path, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Set the environment of a stack: the run's broker, and an empty catalog and warehouse in `tmp_path`."""
    (tmp_path / "catalog").mkdir()
    (tmp_path / "warehouse").mkdir()
    variables = {
        "SLUICE_HOME": str(tmp_path),
        "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap,
        "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
        "PYICEBERG_CATALOG__LAKE__URI": f"sqlite:///{tmp_path}/catalog/iceberg.db?timeout=60",
        "PYICEBERG_CATALOG__LAKE__WAREHOUSE": f"file://{tmp_path}/warehouse",
        "GX_ANALYTICS_ENABLED": "false",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name in ("SLUICE_KAFKA_CONFIG", "SLUICE_CATALOG"):
        monkeypatch.delenv(name, raising=False)
    return variables


Embedded = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Embedded]:
    """Return a function that runs `python -m sluice.embedded …` on a stack in `tmp_path`; it is stopped afterwards."""
    homes: set[Path] = set()

    def run(*arguments: str, home: str = "home", env: dict[str, str] | None = None, wait: bool = True) -> object:
        folder = tmp_path / home
        homes.add(folder)
        command: Sequence[str] = [sys.executable, "-m", "sluice.embedded", *arguments]
        variables = {**os.environ, "PYTHONPATH": str(REPOSITORY / "include"), "SLUICE_HOME": str(folder), **(env or {})}
        if not wait:
            return subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=240)

    yield run  # type: ignore[misc]
    for folder in homes:
        if (folder / "state.json").exists():
            state = load_state(Home(folder))
            stop_services([each.process for each in state.services.values()], state.mark, grace=10)
