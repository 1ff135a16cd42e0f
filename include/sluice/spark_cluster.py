"""A standalone Spark cluster, as the pages of its master and workers show it, and why an application has no executor.

Spark waits for executors without limit, and does not say why there is none. Here an application waits as long as others
use the cluster, and fails if its executors end or fit on no worker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.request import urlopen

from sluice.errors import ConfigError, ExecutorsUnavailableError

Address = tuple[str, int]
STANDALONE = re.compile(r"spark://[^/\s]+")
_SIZE = re.compile(r"(\d+)([kmgt])b?")
_MIB = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024**2}
SECONDS = 5.0
PAGE_PORT = 8080
"""Spark's default for the master's page."""
TIMEOUT = "spark.sluice.executorTimeout"
DEFAULT_TIMEOUT = "120"
"""Seconds, on a standalone cluster. YARN and Kubernetes end an application whose executors fail."""
CAUSES = (
    "Usual causes: executors cannot connect to the driver (spark.driver.host, spark.driver.port, a firewall); they ask "
    "more memory or cores than a worker has; the workers have another Spark or Java; a Java option is wrong. "
    "The executor's standard error shows which: on the worker's page, in its work/APPLICATION/EXECUTOR/stderr, or by "
    "`yarn logs`. "
    "See docs/deploy/spark-cluster.md, `When no executor starts`."
)
LOSSES = 3
"""An application fails that lost so many executors and has none."""


def addresses(master: str) -> list[Address]:
    """Return the addresses in `spark://host:port`, or `spark://host:port,host:port` of masters that replace each other.

    Returns:
        None of another kind of master, such as `local[2]` or `yarn`.

    Raises:
        ValueError: A port is missing.
    """
    if not STANDALONE.fullmatch(master):
        return []
    found = []
    for each in master.removeprefix("spark://").split(","):
        host, _, port = each.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{master} is not spark://host:port: {each!r} has no port, which is usually 7077")
        found.append((host.strip("[]"), int(port)))
    return found


def page_address(host: str, port: int | str) -> str:
    """The address of a page on a host, whose address may be IPv6."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@dataclass(frozen=True)
class Need:
    """What one executor asks of a worker.

    Attributes:
        cores: at least so many.
        memory: in MiB.
        most_cores: `spark.cores.max`, the cores of all executors together.
    """

    cores: int
    memory: int
    most_cores: int | None = None

    @classmethod
    def of(cls, conf: Mapping[str, str], memory: str | None = None) -> Need:
        """What Spark's settings ask; `memory` as in `4g` instead of `spark.executor.memory`.

        Raises:
            ConfigError: a setting is no number.
        """
        text = (memory or conf.get("spark.executor.memory", "1g")).lower()
        size = _SIZE.fullmatch(text)
        most = conf.get("spark.cores.max", "")
        try:
            return cls(
                int(conf.get("spark.executor.cores", "1")),
                int(int(size[1]) * _MIB[size[2]]) if size else int(text),
                int(most) if most else None,
            )
        except ValueError as error:
            raise ConfigError(f"Spark's settings for executors can't be read: {error}") from None

    def __str__(self) -> str:
        most = "" if self.most_cores is None else f", with spark.cores.max {self.most_cores}"
        return f"{self.cores} core(s) and {self.memory:,} MiB{most}"


@dataclass(frozen=True)
class Worker:
    """A worker; memory is in MiB."""

    host: str
    page: str
    cores: int
    free_cores: int
    memory: int
    free_memory: int


@dataclass(frozen=True)
class Cluster:
    """What the master's page shows.

    Attributes:
        workers: those that are alive.
        applications: the state of each active application, by id: WAITING until it gets its first executor.
    """

    workers: tuple[Worker, ...]
    applications: dict[str, str]

    def is_too_small(self, need: Need) -> bool:
        """Whether no worker could run such an executor, even if nothing else ran on it."""
        return (need.most_cores is not None and need.most_cores < need.cores) or not any(
            each.cores >= need.cores and each.memory >= need.memory for each in self.workers
        )

    def is_busy(self, need: Need) -> bool:
        """Whether a worker could run such an executor, but other applications use its cores or memory."""
        return not self.is_too_small(need) and not any(
            each.free_cores >= need.cores and each.free_memory >= need.memory for each in self.workers
        )

    def __str__(self) -> str:
        if not self.workers:
            return "no worker is alive"
        largest = max(self.workers, key=lambda each: (each.memory, each.cores))
        return (
            f"{len(self.workers)} worker(s), the largest with {largest.cores} core(s) and {largest.memory:,} MiB; "
            f"{sum(w.free_cores for w in self.workers)} of {sum(w.cores for w in self.workers)} cores "
            f"and {sum(w.free_memory for w in self.workers):,} of {sum(w.memory for w in self.workers):,} MiB are free"
        )


def read_cluster(page: str) -> Cluster | None:
    """Read a master's page; None if it does not answer, or is not that of an active master."""
    found = _get_json(page)
    if found.get("status") != "ALIVE":
        return None
    names = ("host", "webuiaddress", "cores", "coresfree", "memory", "memoryfree")
    return Cluster(
        tuple(Worker(*(each[name] for name in names)) for each in found["workers"] if each["state"] == "ALIVE"),
        {each["id"]: each["state"] for each in found["activeapps"]},
    )


class Executor(NamedTuple):
    """An executor that a worker has started; `log` is the address of its standard error."""

    ended: bool
    log: str


def find_executors(workers: Sequence[Worker], application: str) -> list[Executor]:
    """Find the executors of an application: those that run, then those that have ended."""

    def of_worker(worker: Worker) -> list[Executor]:
        found = _get_json(worker.page)
        where = f"{worker.page}/log/?appId={application}&logType=stderr&executorId="
        return [
            Executor(ended, f"{where}{each['id']}")
            for ended, name in ((False, "executors"), (True, "finishedexecutors"))
            for each in found.get(name, ())
            if each["appid"] == application
        ]

    with ThreadPoolExecutor(max(1, min(len(workers), 16))) as pool:
        return sorted(each for found in pool.map(of_worker, workers) for each in found)


def read_last_lines(log: str, lines: int = 3) -> str:
    """Read the last lines of an executor's standard error, without stack traces; empty if there are none."""
    text = ""
    with suppress(OSError), urlopen(f"{log}&byteLength=20000", timeout=SECONDS) as answer:  # noqa: S310
        text = answer.read().decode(errors="replace")
    found = [each.strip() for each in text.splitlines() if each.strip() and not each[0].isspace()]
    # The first lines are the page's, the command, and the JVM's on its options.
    said = [each for each in found if not each.startswith(("====", "Spark Executor Command:", "Picked up "))]
    return " / ".join(each[:300] for each in said[-lines:])


def _get_json(page: str) -> dict[str, Any]:
    # The address is that of a master that Spark connects to too, or of its workers.
    with suppress(OSError, ValueError), urlopen(f"{page}/json/", timeout=SECONDS) as answer:  # noqa: S310
        found = json.load(answer)
        return found if isinstance(found, dict) else {}
    return {}


@dataclass
class ExecutorSearch:
    """Why an application has no executor: asks a standalone cluster, and makes the error.

    Attributes:
        conf: the settings of the application that runs.
        find_page_port: asks a master, by host and port, for the port of its page.
        timeout: the most seconds without an executor, except while other applications use the cluster; None: no limit.
    """

    conf: Mapping[str, str]
    find_page_port: Callable[[str, int], int | None]
    timeout: float | None = field(init=False)
    _page: str | None = field(default=None, init=False)
    _cluster: Cluster | None = field(default=None, init=False)
    _executors: list[Executor] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.master, self.application = self.conf["spark.master"], self.conf["spark.app.id"]
        self._need = Need.of(self.conf)
        self._masters = addresses(self.master)
        text = self.conf.get(TIMEOUT, DEFAULT_TIMEOUT if self._masters else "")
        try:
            self.timeout = float(text) if text else None
        except ValueError:
            raise ConfigError(f"{TIMEOUT} must be a number of seconds, not {text!r}.") from None

    def look(self, waited: float) -> None:
        """Ask the cluster, after so many seconds without an executor.

        Raises:
            ExecutorsUnavailableError: executors were started and ended, none can be started, or none was in time.
        """
        self._cluster = self._read()
        if self._cluster is not None:
            if self._cluster.applications.get(self.application) != "WAITING":
                self._executors = find_executors(self._cluster.workers, self.application)
                if sum(each.ended for each in self._executors) >= LOSSES:
                    raise self.error("Spark's cluster starts executors, and each one ends before it registers")
            elif self._cluster.workers and self._cluster.is_too_small(self._need):
                raise self.error("No worker of Spark's cluster is large enough for an executor")
            elif self._cluster.is_busy(self._need):
                return
        if self.timeout is not None and waited > self.timeout:
            raise self.error(f"No executor has registered within {self.timeout:g} s ({TIMEOUT})")

    def _read(self) -> Cluster | None:
        if self._page:
            return read_cluster(self._page)
        for host, port in self._masters:
            if found := self.find_page_port(host, port):
                page = page_address(host, found)
                if cluster := read_cluster(page):
                    self._page = page
                    return cluster
        return None

    def __str__(self) -> str:
        has = self._cluster or ("the master's page does not answer" if self._masters else "Spark's log may say why")
        return f"an executor asks {self._need}; {self.master}: {has}"

    def error(self, message: str) -> ExecutorsUnavailableError:
        """Make the error of an application without an executor."""
        log = self._executors[-1].log if self._executors else None
        last = read_last_lines(log) if log else ""
        return ExecutorsUnavailableError(
            f"{message}{f', with: {last}' if last else '.'}",
            next_step=CAUSES,
            master=self.master,
            application=self.application,
            executor=self._need,
            instances=self.conf.get("spark.executor.instances"),
            registered=0,
            ended=sum(each.ended for each in self._executors) if self._cluster else None,
            cluster=self._cluster,
            stderr=log,
        )


def asks_for_executors(conf: Mapping[str, str]) -> bool:
    """Whether Spark asks for executors before there are tasks."""
    names = ("dynamicAllocation.initialExecutors", "dynamicAllocation.minExecutors", "executor.instances")
    on_demand = conf.get("spark.dynamicAllocation.enabled", "false").lower() == "true"
    on_cluster = not conf["spark.master"].startswith("local")
    return on_cluster and (not on_demand or any(int(conf.get(f"spark.{n}", "0")) for n in names))
