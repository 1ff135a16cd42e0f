"""The status of a stack: the condition of each service, and details for those that fail."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sluice.embedded import airflow_services, schema_registry
from sluice.embedded.env import pages_url
from sluice.embedded.failure import last_lines
from sluice.embedded.home import Home
from sluice.embedded.kafka_broker import broker_is_ready
from sluice.embedded.ports import HOST, describe_port_owner, is_free
from sluice.embedded.state import StackState, load_state, lock_owner

KAFKA = "kafka"
REGISTRY = "registry"
SERVICES = (KAFKA, REGISTRY, *airflow_services.PARTS)
PORT_OF = {KAFKA: "kafka", REGISTRY: "registry", "api-server": "pages"}


class Condition(StrEnum):
    """The condition of a service or of the whole stack."""

    STOPPED = "stopped"
    BUSY = "stopped, port taken"
    STARTING = "starting"
    HALF = "half-started"
    RUNNING = "running"
    SILENT = "not answering"
    CRASHED = "crashed"


@dataclass(frozen=True)
class ServiceStatus:
    """The status of one service.

    Attributes:
        name: The service.
        condition: Its condition.
        detail: Its address and process, or the problem.
        log: The file with its output; None if it was never started.
    """

    name: str
    condition: Condition
    detail: str = ""
    log: Path | None = None


@dataclass(frozen=True)
class StackStatus:
    """The status of a stack."""

    home: Home
    services: tuple[ServiceStatus, ...]

    @property
    def condition(self) -> Condition:
        """The first of `order` that any service has; RUNNING comes before BUSY, as not all services must run."""
        present = {each.condition for each in self.services}
        order = (
            Condition.STARTING,
            Condition.CRASHED,
            Condition.SILENT,
            Condition.HALF,
            Condition.RUNNING,
            Condition.BUSY,
        )
        return next((each for each in order if each in present), Condition.STOPPED)

    def __str__(self) -> str:
        lines = [f"stack {self.home.root}: {self.condition}"]
        lines += [f"  {each.name:14} {each.condition:20} {each.detail}".rstrip() for each in self.services]
        if self.condition is not Condition.STOPPED:
            lines.append(f"  {'catalog':14} {'':20} {self.home.catalog}")
            lines.append(f"  {'warehouse':14} {'':20} {self.home.warehouse}")
            lines.append(f"  for a shell:   . {shlex.quote(str(self.home.env_file))}")
        for each in self.services:
            if each.condition in (Condition.CRASHED, Condition.SILENT) and each.log:
                lines.append(f"  the end of {each.log}:\n{last_lines(each.log)}")
        return "\n".join(lines)


def stack_status(home: Home) -> StackStatus:
    """Check every service of a stack."""
    state = load_state(home)
    command_runs = lock_owner(home) is not None
    return StackStatus(home, tuple(service_status(state, name, command_runs=command_runs) for name in SERVICES))


def service_status(state: StackState, name: str, *, command_runs: bool) -> ServiceStatus:
    """Check one service.

    Args:
        state: The stack's state.
        name: The service.
        command_runs: Whether `up` or `down` is running, so that a service which is not ready may be starting.
    """
    record = state.services.get(name)
    if record is None:
        port = state.ports.get(PORT_OF.get(name, ""))
        if port and not command_runs and not is_free(port):
            return ServiceStatus(name, Condition.BUSY, f"port {port} is in use by {describe_port_owner(port)}")
        return ServiceStatus(name, Condition.STOPPED)
    pid = record.process.pid
    if not record.process.alive():
        if record.ready:
            return ServiceStatus(name, Condition.CRASHED, f"process {pid} has ended", record.log)
        return ServiceStatus(name, Condition.HALF, "its start did not finish", record.log)
    if not record.ready:
        if command_runs:
            return ServiceStatus(name, Condition.STARTING, f"process {pid}", record.log)
        return ServiceStatus(name, Condition.HALF, f"process {pid}; the command that started it has ended", record.log)
    answers = _answers(state, name)
    if not answers:
        return ServiceStatus(name, Condition.SILENT, f"process {pid} runs but does not answer", record.log)
    return ServiceStatus(name, Condition.RUNNING, f"{_address(state, name)}process {pid}", record.log)


def _answers(state: StackState, name: str) -> bool:
    if name == KAFKA:
        return broker_is_ready(state.ports["kafka"])
    return (
        schema_registry.registry_is_ready(state.ports["registry"])
        if name == REGISTRY
        else airflow_services.is_healthy(state, name)
    )


def _address(state: StackState, name: str) -> str:
    if name == KAFKA:
        return f"{HOST}:{state.ports['kafka']}, "
    if name == REGISTRY:
        return f"{schema_registry.registry_url(state.ports['registry'])}, "
    return f"{pages_url(state)}, " if name == "api-server" else ""
