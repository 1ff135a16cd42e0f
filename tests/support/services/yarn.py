"""YARN on loopback: a ResourceManager and a NodeManager, each in a JVM of its own; files are local.

The REST API of Hadoop's shaded jars breaks off in mid-answer. In its place a small server answers with what the
ResourceManager says over RPC, by Hadoop's own command line.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pyspark

from sluice.embedded.home import cache_folder
from sluice.embedded.java import find_java
from sluice.embedded.ports import HOST, free_port
from tests.support import pinned_jars
from tests.support.services.java_server import JavaServer
from tests.support.services.servers import ServerGroup, serving

OPENED = ("java.lang", "java.io")


class _Daemon(JavaServer):
    def __init__(self, folder: Path, name: str, program: str, page: str) -> None:
        folder.mkdir(parents=True)
        super().__init__(folder)
        self.NAME = name
        self._program, self._page = program, page

    def command(self) -> tuple[list[str], dict[str, str]]:
        jars = ":".join(map(str, pinned_jars.jars_in_set(pinned_jars.YARN)))
        path = f"{self.folder.parent}/conf:{jars}:{Path(pyspark.__file__).parent}/jars/*"
        opened = (f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in OPENED)
        return [*opened, "-cp", path, f"org.apache.hadoop.yarn.server.{self._program}"], {}

    def answers(self) -> bool:
        try:
            with urlopen(self._page, timeout=5) as answer:
                # The NodeManager's page answers before it has registered.
                return "RUNNING" in answer.read().decode() or self._page.endswith("info")
        except (URLError, TimeoutError, ConnectionError):
            return False


class _Rest(ThreadingHTTPServer):
    """The part of the ResourceManager's REST API that Airflow's provider uses."""

    def __init__(self, yarn: Yarn) -> None:
        self.yarn = yarn
        super().__init__((HOST, 0), _RestHandler)


class _RestHandler(BaseHTTPRequestHandler):
    server: _Rest

    def do_GET(self) -> None:
        report = self.server.yarn.report(self.path.rpartition("/")[2])
        self._answer(200 if report else 404, {"app": report})

    def do_PUT(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert wanted == {"state": "KILLED"}
        self.server.yarn.command("application", "-kill", self.path.split("/")[-2])
        self._answer(202, wanted)

    def _answer(self, code: int, body: object) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Yarn(ServerGroup):
    """YARN for a `with` block.

    Attributes:
        conf: the folder for HADOOP_CONF_DIR.
        address: the REST API.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.conf = folder, folder / "conf"
        self.conf.mkdir(parents=True)
        names = (
            "resourcemanager.address", "resourcemanager.scheduler.address", "resourcemanager.resource-tracker.address",
            "resourcemanager.admin.address", "resourcemanager.webapp.address", "nodemanager.address",
            "nodemanager.localizer.address", "nodemanager.webapp.address",
        )  # fmt: skip
        ports: dict[str, int] = {}
        for name in names:
            ports[name] = free_port(set(ports.values()))
        self._page = f"http://{HOST}:{ports['resourcemanager.webapp.address']}/ws/v1/cluster"
        scheduler = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
        settings = {
            **{name: f"{HOST}:{port}" for name, port in ports.items()},
            "resourcemanager.hostname": HOST,
            "resourcemanager.scheduler.class": scheduler,
            "nodemanager.hostname": HOST,
            "nodemanager.local-dirs": str(folder / "local"),
            "nodemanager.log-dirs": str(folder / "logs"),
            "nodemanager.resource.memory-mb": "6144",
            "nodemanager.resource.cpu-vcores": "4",
            "nodemanager.vmem-check-enabled": "false",
            "nodemanager.pmem-check-enabled": "false",
            "nodemanager.disk-health-checker.enable": "false",
            "nodemanager.delete.debug-delay-sec": "600",
            "scheduler.minimum-allocation-mb": "256",
        }
        self._write("yarn-site.xml", {f"yarn.{name}": value for name, value in settings.items()})
        self._write("core-site.xml", {"fs.defaultFS": "file:///"})
        super().__init__()

    def _write(self, name: str, settings: dict[str, str]) -> None:
        properties = (f"<property><name>{n}</name><value>{v}</value></property>" for n, v in settings.items())
        (self.conf / name).write_text(f"<configuration>{''.join(properties)}</configuration>")

    def command(self, *arguments: str) -> str:
        """Run Hadoop's command line; returns what it prints."""
        path = f"{self.conf}:{Path(pyspark.__file__).parent}/jars/*"
        program = [
            str(find_java(cache_folder()).executable),
            "-cp",
            path,
            "org.apache.hadoop.yarn.client.cli.ApplicationCLI",
        ]
        done = subprocess.run([*program, *arguments], capture_output=True, text=True, check=False, timeout=60)
        return done.stdout

    def report(self, application: str) -> dict[str, str]:
        """What the ResourceManager says of an application; empty if it knows none."""
        lines = self.command("application", "-status", application).splitlines()
        found = {name.strip(): value.strip() for name, _, value in (line.partition(" : ") for line in lines)}
        if "State" not in found:
            return {}
        names = {
            "state": "State",
            "finalStatus": "Final-State",
            "diagnostics": "Diagnostics",
            "name": "Application-Name",
        }
        return {name: found[theirs] for name, theirs in names.items()}

    def states(self) -> dict[str, str]:
        """The final state of each application, by name."""
        rows = self.command("application", "-list", "-appStates", "ALL").splitlines()
        fields = [[each.strip() for each in row.split("\t")] for row in rows if row.startswith("application_")]
        return {row[1]: row[6] for row in fields}

    def logs(self) -> str:
        """What the containers have written."""
        return "\n".join(path.read_text(errors="replace") for path in sorted((self.folder / "logs").rglob("std*")))

    def start(self, stack: ExitStack) -> None:
        apps = self._page
        program = "resourcemanager.ResourceManager"
        stack.enter_context(_Daemon(self.folder / "manager", "YARN ResourceManager", program, f"{apps}/info"))
        program = "nodemanager.NodeManager"
        stack.enter_context(_Daemon(self.folder / "node", "YARN NodeManager", program, f"{apps}/nodes"))
        rest = stack.enter_context(serving(_Rest(self)))
        self.address = f"http://{HOST}:{rest.server_port}"
