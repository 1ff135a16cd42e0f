"""What a stack is doing: each service's condition, told apart and explained."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sluice.embedded import pages, registry
from sluice.embedded.broker import is_ready
from sluice.embedded.env import pages_url
from sluice.embedded.failure import last_lines
from sluice.embedded.home import Home
from sluice.embedded.ports import HOST, holder, is_free
from sluice.embedded.state import State, at_work, load

KAFKA = "kafka"
REGISTRY = "registry"
SERVICES = (KAFKA, REGISTRY, *pages.PARTS)
PORT_OF = {KAFKA: "kafka", REGISTRY: "registry", "api-server": "pages"}


class Condition(StrEnum):
    """What can be true of a service, or of the stack."""

    STOPPED = "stopped"
    BUSY = "stopped, port taken"
    STARTING = "starting"
    HALF = "half-started"
    RUNNING = "running"
    SILENT = "not answering"
    CRASHED = "crashed"


@dataclass(frozen=True)
class ServiceStatus:
    """One service, now.

    Attributes:
        name: The service.
        condition: What is true of it.
        detail: Where it is, or what is wrong with it.
        log: Where its output goes; None if it was never started.
    """

    name: str
    condition: Condition
    detail: str = ""
    log: Path | None = None


@dataclass(frozen=True)
class StackStatus:
    """A whole stack, now."""

    home: Home
    services: tuple[ServiceStatus, ...]

    @property
    def condition(self) -> Condition:
        """The worst of what is true of its services; a stack of which some run and others were not asked for, runs."""
        seen = {each.condition for each in self.services}
        order = (
            Condition.STARTING,
            Condition.CRASHED,
            Condition.SILENT,
            Condition.HALF,
            Condition.RUNNING,
            Condition.BUSY,
        )
        return next((each for each in order if each in seen), Condition.STOPPED)

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
    """Look at every service of a stack."""
    state = load(home)
    busy = at_work(home) is not None
    return StackStatus(home, tuple(service_status(state, name, at_work=busy) for name in SERVICES))


def service_status(state: State, name: str, *, at_work: bool) -> ServiceStatus:
    """Look at one service.

    Args:
        state: The stack's memory.
        name: The service.
        at_work: Whether a command is at work on the stack, so that an unready service is on its way.
    """
    record = state.services.get(name)
    if record is None:
        port = state.ports.get(PORT_OF.get(name, ""))
        if port and not at_work and not is_free(port):
            return ServiceStatus(name, Condition.BUSY, f"its port {port} is held by {holder(port)}")
        return ServiceStatus(name, Condition.STOPPED)
    pid = record.process.pid
    if not record.process.alive():
        if record.ready:
            return ServiceStatus(name, Condition.CRASHED, f"process {pid} is gone", record.log)
        return ServiceStatus(name, Condition.HALF, "its start never came to an end", record.log)
    if not record.ready:
        if at_work:
            return ServiceStatus(name, Condition.STARTING, f"process {pid}", record.log)
        return ServiceStatus(name, Condition.HALF, f"process {pid}; whoever started it is gone", record.log)
    answers = _answers(state, name)
    if not answers:
        return ServiceStatus(name, Condition.SILENT, f"process {pid} runs but does not answer", record.log)
    return ServiceStatus(name, Condition.RUNNING, f"{_place(state, name)}process {pid}", record.log)


def _answers(state: State, name: str) -> bool:
    if name == KAFKA:
        return is_ready(state.ports["kafka"])
    return registry.is_ready(state.ports["registry"]) if name == REGISTRY else pages.healthy(state, name)


def _place(state: State, name: str) -> str:
    if name == KAFKA:
        return f"{HOST}:{state.ports['kafka']}, "
    if name == REGISTRY:
        return f"{registry.url(state.ports['registry'])}, "
    return f"{pages_url(state)}, " if name == "api-server" else ""
