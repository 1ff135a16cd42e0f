"""Submits applications through another service than spark-submit: docs/deploy/submitting.md has recipes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


@dataclass(frozen=True)
class Application:
    """One Spark application, independent of who starts it. All paths are the Airflow worker's.

    Attributes:
        name: a name for people.
        program: the main program, in Python.
        arguments: its arguments.
        conf: Spark settings.
        driver_memory: the driver's heap, as Spark writes it.
        executor_memory: an executor's; None: Spark's own.
        py_files: a zip of the package `sluice`.
        jars: jars for driver and executors.
        files: files for the driver's working folder. The first has the settings and contracts, and holds secrets: only
            the driver's user may read it. It is removed when `submit` returns.
        variables: environment variables of the driver, without secrets.
        secrets: environment variables of the driver that the first of `files` has; for a service with a secret store.
    """

    name: str
    program: Path
    arguments: tuple[str, ...]
    conf: Mapping[str, str]
    driver_memory: str
    executor_memory: str | None
    py_files: Path
    jars: tuple[Path, ...]
    files: tuple[Path, ...]
    variables: Mapping[str, str]
    secrets: Mapping[str, str] = field(repr=False)


class State(StrEnum):
    """The state of an application."""

    ACTIVE = "active"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class SparkService(ABC):
    """Starts applications, and knows their state. A subclass is given to `dags.build` as `service`.

    Attributes:
        poll_seconds: the pause between two calls of `state`.
    """

    poll_seconds = 10.0

    @abstractmethod
    def submit(self, application: Application) -> str:
        """Start an application once, without a retry by the service, and return its id."""

    @abstractmethod
    def state(self, application_id: str) -> tuple[State, str]:
        """Return the state, and why it failed or where its log is; `FAILED` for one that the service has forgotten."""

    @abstractmethod
    def cancel(self, application_id: str) -> None:
        """End an application; one that has ended is no error."""
