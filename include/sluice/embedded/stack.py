"""Starts and stops the embedded stack: `up` and `down`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path

from sluice.embedded import airflow_services, jars, spark_master
from sluice.embedded.caller_env import ignored_variables
from sluice.embedded.env import USER, pages_url, service_env, stack_env, write_env
from sluice.embedded.failure import StackError, say
from sluice.embedded.home import Home, cache_folder
from sluice.embedded.java import Java, JavaServiceConfig, find_java
from sluice.embedded.kafka_broker import BrokerPorts, broker_service
from sluice.embedded.ports import HOST, describe_port_owner, free_port, is_free
from sluice.embedded.private_files import private_folder
from sluice.embedded.process import Service, identify, start_service, stop_services, wait_ready
from sluice.embedded.schema_registry import registry_service, unpack_application
from sluice.embedded.state import ServiceRecord, StackState, load_state, lock_stack, save_state
from sluice.embedded.status import KAFKA, REGISTRY, SERVICES, Condition, service_status

AIRFLOW = tuple(airflow_services.PARTS)
# By use of a port: the service, and the variable with which the user can choose the port.
PORTS = {
    "kafka": (KAFKA, "SLUICE_KAFKA_PORT"),
    "controller": (KAFKA, ""),
    "registry": (REGISTRY, "SLUICE_REGISTRY_PORT"),
    "registry management": (REGISTRY, ""),
    "pages": ("api-server", "SLUICE_PAGES_PORT"),
}

StartedService = tuple[Service, subprocess.Popen[bytes]]


def up(home: Home, *, only: str | None = None, registry: bool = True) -> None:
    """Start the services that do not run yet; does nothing if all run.

    A crashed or half-started service is stopped first, with the rest of Airflow if it is a part of Airflow.

    Args:
        home: The stack's folder.
        only: `kafka` to start only the broker.
        registry: Whether to start the schema registry.

    Raises:
        StackError: A port is taken, a service does not start, or Spark's master can't be used; the services that this
            call started are stopped.
    """
    with lock_stack(home):
        state = load_state(home)
        wanted = (KAFKA,) if only else (KAFKA, *([REGISTRY] if registry else []), *AIRFLOW)
        missing = _missing(state, wanted)
        _choose_spark(state, airflow_starts=bool(set(AIRFLOW) & set(missing)))
        if not missing:
            say(f"already running: {_addresses(home, state)}")
            return
        _stop_leftovers(home, state, missing)
        _choose_ports(state, missing)
        private_folder(home.logs)
        home.warehouse.mkdir(exist_ok=True)
        home.catalog.parent.mkdir(exist_ok=True)
        save_state(home, state)
        started: dict[str, StartedService] = {}
        try:
            _start(home, state, missing, started)
        except BaseException:
            _stop(home, state, list(started))
            raise
        say(f"running: {_addresses(home, state)}")


def running_services(home: Home) -> frozenset[str]:
    """Return the services whose process runs; all of Airflow's if any of them does."""
    if not home.state_file.exists():
        return frozenset()
    found = {name for name, record in load_state(home).services.items() if record.process.alive()}
    return frozenset(found | set(AIRFLOW) if found & set(AIRFLOW) else found)


def down(home: Home, *, keep: Collection[str] = ()) -> None:
    """Stop the services that `up` started, and their child processes; the data stays. Does nothing if none runs.

    Args:
        home: The stack's folder.
        keep: Services that are not stopped.
    """
    if not home.state_file.exists():
        say(f"nothing to stop: no stack was started in {home.root}")
        return
    with lock_stack(home):
        state = load_state(home)
        known = [name for name in state.services if name not in keep]
        if known:
            say(f"stopping: {', '.join(known)} (up to 20 s)")
        killed = _stop(home, state, known)
        forced = f" ({killed} processes had to be killed)" if killed else ""
        say(f"stopped: {', '.join(known)}{forced}" if known else "already stopped")


def _missing(state: StackState, wanted: Iterable[str]) -> list[str]:
    """Return the wanted services that do not run; Airflow's parts start and stop together."""
    missing = {
        name for name in wanted if service_status(state, name, command_runs=False).condition is not Condition.RUNNING
    }
    if missing & set(AIRFLOW):
        missing |= set(AIRFLOW)
    return [name for name in SERVICES if name in missing]


def _stop_leftovers(home: Home, state: StackState, names: list[str]) -> None:
    leftovers = [name for name in names if name in state.services]
    if leftovers:
        say(f"stopping what is left of an earlier start: {', '.join(leftovers)}")
        _stop(home, state, leftovers)


def _stop(home: Home, state: StackState, names: list[str]) -> int:
    """Stop services and forget them; return how many processes had to be killed."""
    leaders = [state.services[name].process for name in names if name in state.services]
    keep = {record.process.pid for name, record in state.services.items() if name not in names}
    if not keep or set(AIRFLOW) & set(names):
        killed = stop_services(leaders, state.mark, keep=keep)
    else:
        # Kafka or the registry: they have no child processes. The mark of no process, so that none of the tasks'
        # processes is taken for one.
        killed = stop_services(leaders, f"{state.mark}-none")
    for name in names:
        state.services.pop(name, None)
    save_state(home, state)
    return killed


def _choose_ports(state: StackState, missing: list[str]) -> None:
    """Give each service a port, once. A stored port that is taken is an error, because clients use it."""
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
                    f"port {port} for {service} is in use by {describe_port_owner(port)}",
                    next_step=f"stop that process, or choose another port: {variable}={free_port()} make up",
                )
        state.ports[use] = port


def _choose_spark(state: StackState, *, airflow_starts: bool) -> None:
    """Take the master that the user names; it is stored, as ports are. Airflow reads it when it starts."""
    chosen = os.environ.get(spark_master.VARIABLE) or state.spark
    if airflow_starts:
        spark_master.check_for_stack(chosen)
        state.spark = chosen
    elif chosen != state.spark and set(AIRFLOW) <= set(state.services):
        raise StackError(
            f"the stack runs with Spark on {state.spark}", next_step=f"make down, then make up SPARK={chosen}"
        )


def _start(home: Home, state: StackState, missing: list[str], started: dict[str, StartedService]) -> None:
    """Start services, fill `started` with each, and wait until all answer."""
    java = find_java(cache_folder())
    variables = stack_env(home, state, java=java, spark_jars=jars.ensure_jars(jars.SPARK, java=java))
    env = service_env(variables, state)
    write_env(home, variables)

    def launch(service: Service) -> None:
        process = start_service(service)
        state.services[service.name] = ServiceRecord(process=identify(process), log=service.log)
        save_state(home, state)
        started[service.name] = (service, process)

    if KAFKA in missing:
        say(f"kafka: starting on {HOST}:{state.ports['kafka']}")
        config = JavaServiceConfig(home.kafka, home.logs / "kafka.log", java, state.mark)
        ports = BrokerPorts(state.ports["kafka"], state.ports["controller"])
        launch(broker_service(config, jars.ensure_jars(jars.KAFKA, java=java), ports))
    if REGISTRY in missing:
        app = _unpack_registry(java)
        say(f"registry: starting on {HOST}:{state.ports['registry']} (5 to 20 s)")
        config = JavaServiceConfig(home.registry, home.logs / "registry.log", java, state.mark)
        management_port = state.ports["registry management"]
        launch(registry_service(config, app, port=state.ports["registry"], management_port=management_port))
    if set(AIRFLOW) & set(missing):
        if ignored := [name for name in ignored_variables() if name not in variables]:
            say(f"airflow: settings for other installations are ignored: {', '.join(ignored)}")
        airflow_services.prepare_airflow(home, state, env)
        save_state(home, state)
        say(f"airflow: starting on {pages_url(state)} (15 to 40 s)")
        for service in airflow_services.airflow_services(home, state, env):
            launch(service)
    wait_ready(started)
    if set(AIRFLOW) & set(missing):
        airflow_services.create_pools(state)
    for name in started:
        state.services[name].ready = True
    save_state(home, state)


def _unpack_registry(java: Java) -> Path:
    try:
        return unpack_application(java)
    except StackError as error:
        next_step = f"make up REGISTRY=no starts the stack without it. Or {error.next_step}"
        raise StackError(f"the schema registry: {error.message}", next_step=next_step) from error


def _addresses(home: Home, state: StackState) -> str:
    text = f"Kafka on {HOST}:{state.ports['kafka']}"
    if set(AIRFLOW) <= set(state.services):
        text += f", Airflow on {pages_url(state)} (user {USER}, password: SLUICE_PAGES_PASSWORD in {home.env_file})"
        text += f", Spark on {state.spark}" if state.spark != spark_master.LOCAL else ""
    return text
