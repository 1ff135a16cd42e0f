"""A schema registry (Apicurio with Confluent's API) on loopback, for the embedded stack and the tests."""

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
from sluice.embedded.caller_env import inherited_env
from sluice.embedded.home import cache_folder
from sluice.embedded.java import Java, JavaServiceConfig, find_java
from sluice.embedded.ports import HOST, accepts_connections, answers_ok, free_port
from sluice.embedded.process import MARK_VARIABLE, Service, start_and_wait, stop_service


def registry_url(port: int) -> str:
    """Return the URL of the Confluent-compatible API of a registry on that port."""
    return f"http://{HOST}:{port}/apis/ccompat/v7"


def unpack_application(java: Java | None = None) -> Path:
    """Fetch the registry, verify it against the lock and unpack it once; return its folder."""
    packed = jars.ensure_jars(jars.REGISTRY, java=java)
    folder = packed.with_name(f"{packed.name}-unpacked")
    if not folder.is_dir():
        draft = Path(tempfile.mkdtemp(prefix=f"{packed.name}-", dir=packed.parent))
        with tarfile.open(next(packed.glob("*.tar.gz"))) as archive:
            archive.extractall(draft, filter="data")
        try:
            draft.rename(folder)
        except OSError:  # another process unpacked it first
            shutil.rmtree(draft)
    return folder


def registry_service(config: JavaServiceConfig, app: Path, *, port: int, management_port: int) -> Service:
    """Return the service of a registry that stores its schemas in a folder.

    Args:
        config: Its folder, log, Java (17 or newer) and mark.
        app: The unpacked application.
        port: The port for clients.
        management_port: The port for its health pages.
    """
    folder = config.folder
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "quarkus.http.host": HOST,
        "quarkus.http.port": str(port),
        "quarkus.management.host": HOST,
        "quarkus.management.port": str(management_port),
        "quarkus.log.level": "WARN",
        # On disk, because schema ids must survive a restart.
        "apicurio.datasource.url": f"jdbc:h2:file:{folder}/registry",
        "apicurio.datasource.jdbc.initial-size": "1",
        "apicurio.datasource.jdbc.min-size": "1",
        "apicurio.datasource.jdbc.max-size": "8",
        "apicurio.storage.snapshot.location": str(folder),
    }
    options = ["-Xms64m", "-Xmx512m", *jvm.SERVICE_OPTIONS, *(f"-D{name}={value}" for name, value in settings.items())]
    return Service(
        name="registry",
        argv=[str(config.java.executable), *options, "-jar", str(app / "quarkus-run.jar")],
        env={**inherited_env(), "JAVA_HOME": str(config.java.home), MARK_VARIABLE: config.mark},
        cwd=folder,
        log=config.log,
        ready=lambda: registry_is_ready(port),
        patience=180,
    )


def registry_is_ready(port: int) -> bool:
    """Whether a registry answers on the port."""
    return accepts_connections(port) and answers_ok(f"{registry_url(port)}/subjects")


class EmbeddedRegistry:
    """A registry on a free port, started by a `with` block or `start` and stopped at the block's end or by `stop`.

    Attributes:
        folder: Its data and log; they stay after `stop`, and `start` uses them again.
        port: The port for clients.
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
        return registry_url(self.port)

    def start(self) -> Self:
        """Start the registry and wait until it answers; does nothing if it runs.

        Raises:
            StackError: The registry ended or does not answer; the message has the end of its log.
        """
        if self._process:
            return self
        java = find_java(cache_folder())
        config = JavaServiceConfig(self.folder, self.folder / "registry.log", java, self._mark)
        service = registry_service(
            config, unpack_application(java), port=self.port, management_port=self._management_port
        )
        self._process = start_and_wait(service)
        return self

    def stop(self) -> None:
        """Stop the registry and wait until its process has ended; its schemas stay."""
        if self._process is None:
            return
        stop_service(self._process, self._mark, grace=10)
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
