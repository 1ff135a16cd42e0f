"""The place for measurements: a temporary folder with a broker, catalogs and warehouses, and separate drivers."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from sluice import jvm
from sluice.embedded import class_archive, jars
from sluice.embedded.home import REPOSITORY, cache_folder
from sluice.embedded.java import find_java
from sluice.embedded.kafka_broker import EmbeddedBroker

HEAP = "2g"
MASTER = "local[2]"


def say(text: str = "") -> None:
    """Print a line, unbuffered."""
    print(text, flush=True)


def judge(what: str, reached: float | None, *, most: float | None = None, least: float | None = None) -> None:
    """Print a target, what was reached (None: not measured), and whether the target is met or missed."""
    wanted = f"at least {least}" if least is not None else f"at most {most}"
    if reached is None:
        result = "NOT MEASURED"
    else:
        met = reached >= least if least is not None else reached <= (most or 0)
        result = f"{reached:6.2f}   {'met' if met else 'MISSED'}"
    say(f"    target  {what:58} {wanted:14} {result}")


def driver_env(folder: Path, *, tuned: bool) -> dict[str, str]:
    """Return the variables that set how a driver and its JVM start.

    Args:
        folder: The driver's jars.
        tuned: With the JVM options and class archive of Sluice's DAGs; otherwise with the defaults.
    """
    found = [str(jar) for jar in sorted(folder.glob("*.jar"))]
    if not tuned:
        return {"PYSPARK_SUBMIT_ARGS": f"--driver-memory {HEAP} --jars {','.join(found)} pyspark-shell"}
    home = class_archive.spark_home(folder.parent, found)
    options = " ".join(
        (jvm.THREAD_STACK_SIZE, *jvm.DRIVER_OPTIONS, *(class_archive.driver_archive_options(home) if home else ()))
    )
    path = f"--driver-class-path {os.pathsep.join(found)}"
    arguments = f'--driver-memory {HEAP} {path} --conf "spark.driver.extraJavaOptions={options}" pyspark-shell'
    return {"PYSPARK_SUBMIT_ARGS": arguments, **({"SPARK_HOME": str(home)} if home else {})}


@dataclass(frozen=True)
class Whole:
    """What whole processes took, from the start of the first to the end of the last.

    Attributes:
        seconds: By the clock.
        cpu: Of the processor.
    """

    seconds: float
    cpu: float

    @staticmethod
    def mark() -> Whole:
        """Return the time, and the CPU seconds of all descendants that have ended."""
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Whole(time.monotonic(), spent.ru_utime + spent.ru_stime)

    def since(self, before: Whole) -> Whole:
        """Return the difference between two marks."""
        return Whole(self.seconds - before.seconds, self.cpu - before.cpu)


class Lab:
    """The folder and its broker, for a `with` block.

    Attributes:
        folder: The folder.
        broker: The broker.
        whole: What the processes of the last `call` or `drive` took.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sluice-bench-"))
        self.broker = EmbeddedBroker(self.folder / "kafka")
        self._keep = keep
        self.whole = Whole(0, 0)

    def __enter__(self) -> Self:
        try:
            self.broker.start()
        except BaseException:
            self._clean()
            raise
        say(f"{os.cpu_count()} cores, {MASTER}, driver heap {HEAP}, load average before: {os.getloadavg()[0]:.1f}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.broker.stop(grace=5)
        self._clean()

    def _clean(self) -> None:
        if self._keep:
            say(f"kept: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def lake(self, *, tuned: bool = True) -> dict[str, str]:
        """Create an empty catalog, warehouse and folder of contracts; return the environment of its drivers."""
        folder = self.folder / f"lake-{uuid.uuid4().hex[:8]}"
        for name in ("contracts", "warehouse", "spark"):
            (folder / name).mkdir(parents=True)
        java = find_java(cache_folder())
        found = jars.ensure_jars(jars.SPARK, java=java)
        return {
            "BENCH_FOLDER": str(folder),
            "SLUICE_CONTRACTS": str(folder / "contracts"),
            "KAFKA_BOOTSTRAP_SERVERS": self.broker.bootstrap,
            "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
            "PYICEBERG_CATALOG__LAKE__URI": f"sqlite:///{folder}/iceberg.db?timeout=60",
            "PYICEBERG_CATALOG__LAKE__WAREHOUSE": f"file://{folder}/warehouse",
            "SLUICE_JARS": str(found),
            "JAVA_HOME": str(java.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder / "spark"),
            "PYTHONPATH": f"{REPOSITORY}/include:{REPOSITORY}",
            **driver_env(found, tuned=tuned),
        }

    def drop(self, lake: dict[str, str]) -> None:
        """Remove a lake's files, so that they do not affect the next measurement."""
        if not self._keep:
            shutil.rmtree(lake["BENCH_FOLDER"], ignore_errors=True)

    def drive(self, lake: dict[str, str], module: str, **arguments: Any) -> Any:
        """Run `main(**arguments)` of a module in a separate process; return its result.

        Raises:
            SystemExit: It failed; the message has the end of its log.
        """
        folder = Path(lake["BENCH_FOLDER"])
        answer, log = folder / "answer.json", folder / "driver.log"
        answer.unlink(missing_ok=True)
        command = [sys.executable, "-m", "bench.drive", module, json.dumps(arguments), str(answer)]
        self.call(command, lake, log)
        return json.loads(answer.read_text(encoding="utf-8"))

    def call(self, command: list[str], lake: dict[str, str], log: Path) -> None:
        """Run a command and kill the processes that it leaves behind.

        Raises:
            SystemExit: It failed; the message has the end of its log.
        """
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYICEBERG_", "SLUICE_"))} | lake
        before = Whole.mark()
        with log.open("ab") as stream, _adopted_orphans():
            process = subprocess.Popen(
                command, cwd=REPOSITORY, env=env, stdout=stream, stderr=stream, start_new_session=True
            )
            try:
                code = process.wait()
                self._wait_for_group(process.pid)  # the first JVM writes the class archive when it ends
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        self.whole = Whole.mark().since(before)
        if code:
            tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:])
            raise SystemExit(f"{' '.join(command[:4])} ended with {code}:\n{tail}")

    @staticmethod
    def _wait_for_group(group: int, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < end:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(-group, os.WNOHANG)
                os.killpg(group, 0)
                time.sleep(0.05)


@contextlib.contextmanager
def _adopted_orphans() -> Iterator[None]:
    """Become the parent of processes whose parent ends, as a driver's JVM: otherwise their CPU time is not known."""
    linux = sys.platform == "linux"
    subreaper = 36  # PR_SET_CHILD_SUBREAPER
    if linux:
        ctypes.CDLL(None).prctl(subreaper, 1, 0, 0, 0)
    try:
        yield
    finally:
        if linux:
            ctypes.CDLL(None).prctl(subreaper, 0, 0, 0, 0)


def contract(lake: dict[str, str], table: str, topic: str, **changes: Any) -> None:
    """Write a contract with the columns that all measurements use."""
    body = {
        "table": table,
        "topic": topic,
        "group": "bench",
        "owner": "bench",
        "columns": COLUMNS,
        **changes,
    }
    if body.get("mode") in ("upsert", "history"):
        body["identifier"] = ["id"]
    if body.get("mode") == "history":
        body["columns"] = [*COLUMNS, {"name": "until", "type": "timestamptz", "source": "$valid_to"}]
        body["deletes"] = "ignore"
    (Path(lake["SLUICE_CONTRACTS"]) / f"{table}.yaml").write_text(yaml.safe_dump(body), encoding="utf-8")


COLUMNS = [
    {"name": "id", "type": "string", "source": "$key"},
    {"name": "n", "type": "long"},
    {"name": "amount", "type": "double"},
    {"name": "at", "type": "timestamptz"},
    {"name": "note", "type": "string"},
]
SCHEMA = "n BIGINT, amount DOUBLE, at TIMESTAMP, note STRING"


def value(n: int) -> bytes:
    """Return the JSON value of record `n`: 100 bytes."""
    text = (
        f'{{"n":{n},"amount":{n % 9973}.25,"at":"2024-0{1 + n % 9}-{10 + n % 18}T{10 + n % 14}:{10 + n % 50}:'
        f'{10 + n % 50}Z","note":"'
    )
    return f'{text}{"abcdefghijklmnopqrstuvwxyzabcdefghijkl"[: 98 - len(text)]}"}}'.encode()
