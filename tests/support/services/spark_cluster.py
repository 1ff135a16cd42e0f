"""A Spark standalone cluster on loopback: a master and workers, each in a JVM of its own."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pyspark

from sluice.embedded.home import cache_folder
from sluice.embedded.java import find_java
from sluice.embedded.ports import HOST, free_port
from tests.support.services.java_server import JavaServer
from tests.support.services.servers import ServerGroup


class _Daemon(JavaServer):
    """A process of the cluster. It listens on `port`, and its page is on `page`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        super().__init__(folder)
        self.page = free_port({self.port})

    def _start(self, program: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
        ports = ("--host", HOST, "--port", str(self.port), "--webui-port", str(self.page))
        home = Path(pyspark.__file__).parent
        command = ["-cp", f"{home}/jars/*", f"org.apache.spark.deploy.{program}", *ports, *arguments]
        # Spark's own scripts set the version of Scala: a worker starts executors by the same launcher.
        variables = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST, "SPARK_SCALA_VERSION": "2.13"}
        return command, {**variables, "JAVA_HOME": str(find_java(cache_folder()).home)}

    def state(self) -> dict[str, Any]:
        """What its page says of it."""
        with urlopen(f"http://{HOST}:{self.page}/json/", timeout=5) as answer:
            return dict(json.load(answer))

    def answers(self) -> bool:
        try:
            return bool(self.state())
        except (URLError, TimeoutError):
            return False


class _Master(_Daemon):
    NAME = "Spark master"

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self.port}"

    def command(self) -> tuple[list[str], dict[str, str]]:
        return self._start("master.Master")


class SparkWorker(_Daemon):
    """A worker with cores and memory for executors of two applications."""

    NAME = "Spark worker"

    def __init__(self, folder: Path, master: str) -> None:
        super().__init__(folder)
        self._master = master

    def command(self) -> tuple[list[str], dict[str, str]]:
        return self._start(
            "worker.Worker", "--cores", "2", "--memory", "2g", "--work-dir", str(self.folder), self._master
        )


class SparkCluster(ServerGroup):
    """A cluster for a `with` block.

    Attributes:
        host, port: the master's.
        workers: the workers by number; a test may stop one.
    """

    host = HOST

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._count = workers
        super().__init__()
        self.workers: list[SparkWorker] = []

    @property
    def master(self) -> str:
        """The master's address, for `spark.master`."""
        return self._master.url

    @property
    def port(self) -> int:
        return self._master.port

    @property
    def page(self) -> int:
        """The port of the master's page."""
        return self._master.page

    def state(self) -> dict[str, Any]:
        """The master's view: workers, applications, cores."""
        return self._master.state()

    def start(self, stack: ExitStack) -> None:
        self._master = stack.enter_context(_Master(self._folder / "master"))
        for n in range(self._count):
            worker = SparkWorker(self._folder / f"worker{n}", self._master.url)
            self.workers.append(stack.enter_context(worker))
