"""Takes the settings of Kafka and the registry from Airflow's connections, for a command whose environment has none.

In: the Airflow that is configured here. Out: variables of this process, which its Spark drivers inherit. Only the
command line asks: tasks and pages get connections from Airflow itself, and a Spark driver has no access to Airflow.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from sluice import airflow_process
from sluice.errors import ConfigError, RetryableError, SluiceError
from sluice.kafka.connections import KAFKA_CONN_ID, REGISTRY_CONN_ID, kafka_settings, registry_settings

SECONDS = 60.0
"""How long Airflow may take to answer: its import takes seconds on a busy machine."""


@dataclass(frozen=True)
class Settings:
    """Where settings come from.

    Attributes:
        variables: the environment's. The first takes what the connection says, as JSON.
        connection: Airflow's, used if none of the variables is set.
        convert: makes the client's settings of the connection.
    """

    variables: tuple[str, ...]
    connection: str
    convert: Callable[[Any], dict[str, Any]]


KAFKA = Settings(("SLUICE_KAFKA_CONFIG", "KAFKA_BOOTSTRAP_SERVERS"), KAFKA_CONN_ID, kafka_settings)
REGISTRY = Settings(("SLUICE_REGISTRY_CONFIG", "SCHEMA_REGISTRY_URL"), REGISTRY_CONN_ID, registry_settings)


@dataclass
class _Lookup:
    """What Airflow answered: both connections at once, the first time that one is needed."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    asked: bool = False
    error: SluiceError | None = None


_lookup: _Lookup | None = None
_taken: dict[str, str] = {}
"""The variables that were set, and from which connection."""


@contextmanager
def allow_lookup() -> Iterator[None]:
    """Let `export` ask Airflow in this block; the variables that it sets are removed at the end."""
    global _lookup  # noqa: PLW0603 - settings are read in many places, and this is about the whole process
    _lookup = _Lookup()
    try:
        yield
    finally:
        _lookup = None
        for variable in _taken:
            os.environ.pop(variable, None)
        _taken.clear()


def needs_lookup(settings: Settings) -> bool:
    """Whether the environment has no such settings and there is an Airflow to ask."""
    is_set = any(os.environ.get(each) for each in settings.variables)
    return _lookup is not None and not is_set and airflow_process.is_configured() and airflow_process.is_installed()


def export(settings: Settings) -> None:
    """Set the variable from Airflow's connection, if the environment has no such settings and Airflow has them.

    Raises:
        RetryableError: Airflow did not answer in time.
        ConfigError: Airflow can't be asked.
    """
    lookup = _lookup
    if lookup is None or not needs_lookup(settings):
        return
    with lookup.lock:
        if not lookup.asked:
            try:
                _take_connections()
            except SluiceError as error:
                lookup.error = error
            lookup.asked = True
    if lookup.error:
        raise lookup.error


def _take_connections() -> None:
    wanted = [each for each in (KAFKA, REGISTRY) if needs_lookup(each)]
    names = [each.connection for each in wanted]
    advice = f"Set {' or '.join(each.variables[0] for each in wanted)}, or see what `sluice doctor airflow` says."
    try:
        found = airflow_process.ask("connections", names, SECONDS)
    except TimeoutError as error:
        raise RetryableError(f"{error}, so connection {names[0]} is unknown.", next_step=advice) from None
    except ConfigError:  # its message may hold a password
        raise ConfigError(f"Airflow can't be asked for connection {names[0]}.", next_step=advice) from None
    for each in wanted:
        if fields := found.get(each.connection):
            take(each, each.convert(SimpleNamespace(**fields)))


def take(settings: Settings, values: Mapping[str, Any]) -> None:
    """Set the variable from what the connection says; nothing if that is empty: the environment decides."""
    if values:
        os.environ[settings.variables[0]] = json.dumps(values)
        _taken[settings.variables[0]] = settings.connection


def source(settings: Settings) -> str:
    """Name the variable or the connection that the settings come from; empty if there are none."""
    for variable in settings.variables:
        if os.environ.get(variable):
            connection = _taken.get(variable)
            return f"Airflow connection {connection}" if connection else f"variable {variable}"
    return ""
