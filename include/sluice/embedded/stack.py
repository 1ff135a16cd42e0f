"""Up and down: what starts a stack, in which order, and how it ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path

from sluice.embedded import jars, pages
from sluice.embedded.broker import broker_service
from sluice.embedded.env import USER, pages_url, service_env, stack_env, write_env
from sluice.embedded.failure import StackError, say
from sluice.embedded.home import Home, cache_folder
from sluice.embedded.inherited import foreign
from sluice.embedded.java import Java, find_java
from sluice.embedded.ports import HOST, free_port, holder, is_free
from sluice.embedded.process import Service, end, identity, start, wait_ready
from sluice.embedded.registry import application, registry_service
from sluice.embedded.state import Record, State, exclusive, load, save
from sluice.embedded.status import KAFKA, REGISTRY, SERVICES, Condition, service_status

AIRFLOW = tuple(pages.PARTS)
# Who needs a port, and by which variable the user can choose it.
PORTS = {
    "kafka": (KAFKA, "SLUICE_KAFKA_PORT"),
    "controller": (KAFKA, ""),
    "registry": (REGISTRY, "SLUICE_REGISTRY_PORT"),
    "registry management": (REGISTRY, ""),
    "pages": ("api-server", "SLUICE_PAGES_PORT"),
}

Start = tuple[Service, subprocess.Popen[bytes]]


def up(home: Home, *, only: str | None = None, registry: bool = True) -> None:
    """Start what does not run yet; harmless when everything runs.

    A broken or half-started service is ended first, together with the rest of Airflow if it is a part of Airflow.

    Args:
        home: The stack's folder.
        only: `kafka` for the broker alone.
        registry: Whether the schema registry is wanted.

    Raises:
        StackError: If a port is taken or a service does not start; what this call started is then ended again.
    """
    with exclusive(home):
        state = load(home)
        wanted = (KAFKA,) if only else (KAFKA, *([REGISTRY] if registry else []), *AIRFLOW)
        missing = _missing(state, wanted)
        if not missing:
            say(f"already running: {_where(home, state)}")
            return
        _clear(home, state, missing)
        _choose_ports(state, missing)
        home.logs.mkdir(exist_ok=True)
        home.warehouse.mkdir(exist_ok=True)
        home.catalog.parent.mkdir(exist_ok=True)
        save(home, state)
        started: dict[str, Start] = {}
        try:
            _start(home, state, missing, started)
        except BaseException:
            _end(home, state, list(started))
            raise
        say(f"running: {_where(home, state)}")


def alive(home: Home) -> frozenset[str]:
    """The services that run, or were started and live; of Airflow all, where any part does."""
    if not home.state_file.exists():
        return frozenset()
    found = {name for name, record in load(home).services.items() if record.process.alive()}
    return frozenset(found | set(AIRFLOW) if found & set(AIRFLOW) else found)


def down(home: Home, *, but: Collection[str] = ()) -> None:
    """End exactly what `up` started, and what descends from it; the data stays. Harmless when nothing runs.

    Args:
        but: services that go on.
    """
    if not home.state_file.exists():
        say(f"nothing to stop: no stack was started in {home.root}")
        return
    with exclusive(home):
        state = load(home)
        known = [name for name in state.services if name not in but]
        if known:
            say(f"stopping: {', '.join(known)} (up to 20 s)")
        killed = _end(home, state, known)
        forced = f" ({killed} processes had to be killed)" if killed else ""
        say(f"stopped: {', '.join(known)}{forced}" if known else "already stopped")


def _missing(state: State, wanted: Iterable[str]) -> list[str]:
    """The wanted services that do not run; Airflow's parts start and stop together."""
    broken = {name for name in wanted if service_status(state, name, at_work=False).condition is not Condition.RUNNING}
    if broken & set(AIRFLOW):
        broken |= set(AIRFLOW)
    return [name for name in SERVICES if name in broken]


def _clear(home: Home, state: State, names: list[str]) -> None:
    left = [name for name in names if name in state.services]
    if left:
        say(f"clearing away what is left of an earlier start: {', '.join(left)}")
        _end(home, state, left)


def _end(home: Home, state: State, names: list[str]) -> int:
    leaders = [state.services[name].process for name in names if name in state.services]
    keep = {record.process.pid for name, record in state.services.items() if name not in names}
    if not keep or set(AIRFLOW) & set(names):
        killed = end(leaders, state.mark, keep=keep)
    else:
        # Kafka or the registry: they have no descendants, and a task's own processes must not be taken for strays.
        killed = end(leaders, f"{state.mark}-none")
    for name in names:
        state.services.pop(name, None)
    save(home, state)
    return killed


def _choose_ports(state: State, missing: list[str]) -> None:
    """Give each service a port, once; a remembered one that is taken is reported, since clients know it."""
    for use, (service, variable) in PORTS.items():
        chosen = os.environ.get(variable, "") if variable else ""
        if chosen and service in missing:
            if not chosen.isdigit() or not 0 < int(chosen) < 65536:
                raise StackError(f"{variable}={chosen} is not a port number")
            state.ports[use] = int(chosen)
        port = state.ports.setdefault(use, 0) or free_port(state.ports.values())
        if service in missing and not is_free(port):
            if not variable:
                port = free_port(state.ports.values())
            else:
                raise StackError(
                    f"port {port} for {service} is busy: held by {holder(port)}",
                    way_out=f"end that process, or choose another port: {variable}={free_port()} make up",
                )
        state.ports[use] = port


def _start(home: Home, state: State, missing: list[str], started: dict[str, Start]) -> None:
    java = find_java(cache_folder())
    variables = stack_env(home, state, java=java, spark_jars=jars.ensure(jars.SPARK, java=java))
    env = service_env(variables, state)
    write_env(home, variables)

    def launch(service: Service) -> None:
        process = start(service)
        state.services[service.name] = Record(process=identity(process), log=service.log)
        save(home, state)
        started[service.name] = (service, process)

    if KAFKA in missing:
        say(f"kafka: starting on {HOST}:{state.ports['kafka']}")
        launch(
            broker_service(
                home.kafka,
                home.logs / "kafka.log",
                port=state.ports["kafka"],
                controller_port=state.ports["controller"],
                java=java,
                jar_folder=jars.ensure(jars.KAFKA, java=java),
                mark=state.mark,
            )
        )
    if REGISTRY in missing:
        app = _registry(java)
        say(f"registry: starting on {HOST}:{state.ports['registry']} (5 to 20 s)")
        launch(
            registry_service(
                home.registry,
                home.logs / "registry.log",
                port=state.ports["registry"],
                management_port=state.ports["registry management"],
                java=java,
                app=app,
                mark=state.mark,
            )
        )
    if set(AIRFLOW) & set(missing):
        if left := [name for name in foreign() if name not in variables]:
            say(f"airflow: not passed on, as they are about another installation: {', '.join(left)}")
        pages.prepare(home, state, env)
        save(home, state)
        say(f"airflow: starting on {pages_url(state)} (15 to 40 s)")
        for service in pages.services(home, state, env):
            launch(service)
    wait_ready(started)
    if set(AIRFLOW) & set(missing):
        pages.make_pools(state)
    for name in started:
        state.services[name].ready = True
    save(home, state)


def _registry(java: Java) -> Path:
    try:
        return application(java)
    except StackError as error:
        way_out = f"make up REGISTRY=no starts the rest, which does without it. Or {error.way_out}"
        raise StackError(f"the schema registry: {error.message}", way_out=way_out) from error


def _where(home: Home, state: State) -> str:
    text = f"Kafka on {HOST}:{state.ports['kafka']}"
    if set(AIRFLOW) <= set(state.services):
        text += f", Airflow on {pages_url(state)} (user {USER}, password: SLUICE_PAGES_PASSWORD in {home.env_file})"
    return text
