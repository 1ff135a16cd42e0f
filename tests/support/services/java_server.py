"""The base class of Java servers that run for a `with` block, started and stopped like the embedded stack's."""

from __future__ import annotations

import os
import subprocess
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from sluice import jvm
from sluice.embedded.home import cache_folder
from sluice.embedded.java import find_java
from sluice.embedded.ports import free_port
from sluice.embedded.process import MARK_VARIABLE, Service, start_and_wait, stop_service


class JavaServer(ABC):
    """A server that a subclass describes with `command` and `answers`.

    Attributes:
        port: The free port that it listens on.
        folder: Its data.
    """

    NAME: str
    HEAP = "256m"

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.port = free_port()
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return the arguments after the JVM's options, and variables to add to the environment."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server answers requests."""

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process, f"{self.NAME} does not run"
        return self._process.pid

    def kill(self) -> None:
        """End the process without warning."""
        assert self._process, f"{self.NAME} does not run"
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        arguments, environment = self.command()
        java = str(find_java(cache_folder()).executable)
        service = Service(
            name=self.NAME,
            argv=[java, "-Xms64m", f"-Xmx{self.HEAP}", *jvm.SERVICE_OPTIONS, *arguments],
            env={**os.environ, **environment, MARK_VARIABLE: self._mark},
            cwd=self.folder,
            log=self.folder.with_suffix(".log"),
            ready=self.answers,
        )
        self._process = start_and_wait(service)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process:
            stop_service(self._process, self._mark, grace=10)
