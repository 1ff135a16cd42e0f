"""A real schema registry (Apicurio) on loopback, which answers as Confluent's: for the embedded stack and the tests."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

from sluice import jvm
from sluice.embedded import jars
from sluice.embedded.home import cache_folder
from sluice.embedded.inherited import inherited
from sluice.embedded.java import Java, find_java
from sluice.embedded.ports import HOST, answers, free_port, is_ok
from sluice.embedded.process import MARK, Service, end_alone, start_alone


def url(port: int) -> str:
    """Where a registry on that port answers as Confluent's does."""
    return f"http://{HOST}:{port}/apis/ccompat/v7"


def application(java: Java | None = None) -> Path:
    """The folder with the unpacked application: fetched, verified against the lock, and unpacked once."""
    packed = jars.ensure(jars.REGISTRY, java=java)
    folder = packed.with_name(f"{packed.name}-unpacked")
    if not folder.is_dir():
        draft = Path(tempfile.mkdtemp(prefix=f"{packed.name}-", dir=packed.parent))
        with tarfile.open(next(packed.glob("*.tar.gz"))) as archive:
            archive.extractall(draft, filter="data")
        try:
            draft.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(draft)
    return folder


def registry_service(
    folder: Path, log: Path, *, port: int, management_port: int, java: Java, app: Path, mark: str
) -> Service:
    """A registry whose schemas lie in a folder.

    Args:
        folder: Its data.
        log: What it says.
        port: For clients.
        management_port: For its own health pages.
        java: What it runs on: 17 or newer.
        app: The unpacked application.
        mark: The mark of the stack that it belongs to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "quarkus.http.host": HOST,
        "quarkus.http.port": str(port),
        "quarkus.management.host": HOST,
        "quarkus.management.port": str(management_port),
        "quarkus.log.level": "WARN",
        # Ids are for ever: they must outlive a restart.
        "apicurio.datasource.url": f"jdbc:h2:file:{folder}/registry",
        "apicurio.datasource.jdbc.initial-size": "1",
        "apicurio.datasource.jdbc.min-size": "1",
        "apicurio.datasource.jdbc.max-size": "8",
        "apicurio.storage.snapshot.location": str(folder),
    }
    options = ["-Xms64m", "-Xmx512m", *jvm.SERVICE, *(f"-D{name}={value}" for name, value in settings.items())]
    return Service(
        name="registry",
        argv=[str(java.executable), *options, "-jar", str(app / "quarkus-run.jar")],
        env={**inherited(), "JAVA_HOME": str(java.home), MARK: mark},
        cwd=folder,
        log=log,
        ready=lambda: is_ready(port),
        patience=180,
    )


def is_ready(port: int) -> bool:
    """Whether a registry answers on the port."""
    return answers(port) and is_ok(f"{url(port)}/subjects")


class Registry:
    """A registry of one's own, on a free port, for as long as a `with` block or until `stop`.

    Attributes:
        folder: Its data and log; keeps its content after `stop`, and `start` finds it again.
        port: For clients.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.port = free_port()
        self._management_port = free_port({self.port})
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The value of SCHEMA_REGISTRY_URL."""
        return url(self.port)

    def start(self) -> Self:
        """Start it and wait until it answers; a second call changes nothing.

        Raises:
            StackError: If it ends or does not answer; with the end of its log.
        """
        if self._process:
            return self
        java = find_java(cache_folder())
        service = registry_service(
            self.folder,
            self.folder / "registry.log",
            port=self.port,
            management_port=self._management_port,
            java=java,
            app=application(java),
            mark=self._mark,
        )
        self._process = start_alone(service)
        return self

    def stop(self) -> None:
        """Stop it and wait until it is gone; its schemas stay."""
        if self._process is None:
            return
        end_alone(self._process, self._mark, grace=10)
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
