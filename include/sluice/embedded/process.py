"""Starts, identifies and stops the processes of a stack, and no others.

A process is identified by its id and start time, because ids are reused. All processes of a stack have its mark in
their environment, so `down` also finds the children of a killed parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import BaseModel

from sluice.embedded.failure import StackError, last_lines

MARK_VARIABLE = "SLUICE_STACK"


class ProcessIdentity(BaseModel, frozen=True, extra="forbid"):
    """A process, distinguished from a later one with the same id.

    Attributes:
        pid: The id of the process, and of the process group that it leads.
        created: Its start time in seconds since the epoch.
    """

    pid: int
    created: float

    def alive(self) -> bool:
        """Whether this process still runs."""
        try:
            process = psutil.Process(self.pid)
            # The start time is derived from the boot time, which changes a little when the clock is corrected.
            return abs(process.create_time() - self.created) < 2 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:  # it does not exist, or belongs to another user
            return False


@dataclass(frozen=True)
class Service:
    """A service to start.

    Attributes:
        name: Its name in messages and logs.
        argv: The command.
        env: Its whole environment.
        cwd: Its working directory.
        log: The file that its output is appended to.
        ready: A check whether it answers; called repeatedly.
        patience: Seconds after which a service that is not ready counts as failed.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    ready: Callable[[], bool]
    patience: float = 120


def start_service(service: Service) -> subprocess.Popen[bytes]:
    """Start a service in its own session, so that Ctrl-C in the terminal does not stop it."""
    service.log.parent.mkdir(parents=True, exist_ok=True)
    with service.log.open("ab") as log:
        return subprocess.Popen(
            list(service.argv),
            env=dict(service.env),
            cwd=service.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def identify(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    """Return the identity of a process that was just started."""
    try:
        created = psutil.Process(process.pid).create_time()
    except psutil.NoSuchProcess:
        created = 0.0  # it has already ended; matches no process
    return ProcessIdentity(pid=process.pid, created=created)


def wait_ready(services: Mapping[str, tuple[Service, subprocess.Popen[bytes]]]) -> None:
    """Wait until all services answer.

    Raises:
        StackError: A service ended or does not answer in time; the message has the end of its log.
    """
    began = time.monotonic()
    waiting = dict(services)
    while waiting:
        for name, (service, process) in services.items():
            if process.poll() is not None:
                raise StackError(
                    f"{name} ended with code {process.returncode} while starting; the end of {service.log}:\n"
                    f"{last_lines(service.log)}"
                )
            if name in waiting and service.ready():
                del waiting[name]
            elif name in waiting and time.monotonic() - began > service.patience:
                raise StackError(
                    f"{name} runs but does not answer after {service.patience:.0f} s; the end of {service.log}:\n"
                    f"{last_lines(service.log)}"
                )
        if waiting:
            time.sleep(0.1)


def start_and_wait(service: Service) -> subprocess.Popen[bytes]:
    """Start a service, whose environment has a mark, and wait until it answers; stop it if it does not.

    Raises:
        StackError: As `wait_ready`.
    """
    process = start_service(service)
    try:
        wait_ready({service.name: (service, process)})
    except BaseException:
        stop_service(process, service.env[MARK_VARIABLE], grace=0)
        raise
    return process


def stop_service(process: subprocess.Popen[bytes], mark: str, *, grace: float) -> None:
    """Stop a child process and its descendants, and wait until it has ended."""
    stop_services([identify(process)], mark, grace=grace)
    process.wait()


def stop_services(
    leaders: Sequence[ProcessIdentity], mark: str, *, keep: Collection[int] = (), grace: float = 20
) -> int:
    """Stop services and their descendants with SIGTERM, and SIGKILL for those that outlive the grace period.

    Args:
        leaders: The recorded services; one whose id now belongs to another process is not touched.
        mark: The stack's mark, by which orphaned descendants are found.
        keep: The ids of services that go on, with all processes in their sessions.
        grace: Seconds between SIGTERM and SIGKILL.

    Returns:
        The number of processes that had to be killed.
    """
    for leader in leaders:
        if leader.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and any(leader.alive() for leader in leaders):
        _reap(leaders)
        time.sleep(0.05)
    # The rest is orphaned or has outlived the grace period.
    remaining = find_descendants(leaders, mark, keep)
    for process in remaining:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    psutil.wait_procs(remaining, timeout=3)
    survivors = find_descendants(leaders, mark, keep)
    for process in survivors:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(survivors, timeout=5)
    _reap(leaders)
    return len(survivors)


def find_descendants(leaders: Sequence[ProcessIdentity], mark: str, keep: Collection[int] = ()) -> list[psutil.Process]:
    """Return all processes of the services, by the mark in their environment or by their session.

    Both are needed: some programs overwrite their environment to change their title, and others start new sessions.

    Args:
        leaders: The services.
        mark: The stack's mark.
        keep: The ids of services whose sessions are left out.
    """
    # A session keeps its id while any process is in it, even if its leader has ended.
    sessions = {each.pid: each for each in leaders if each.alive() or _has_ended(each)}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            session = os.getsid(process.pid)
            leader = sessions.get(session)
            ours = leader is not None and process.create_time() > leader.created - 2
            if session not in keep and (ours or process.environ().get(MARK_VARIABLE) == mark):
                found.append(process)
    return found


def _has_ended(leader: ProcessIdentity) -> bool:
    """Whether a leader that was started since the last boot has ended, and no other process has its id."""
    if leader.created < psutil.boot_time():
        return False
    try:
        return psutil.Process(leader.pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def _reap(leaders: Sequence[ProcessIdentity]) -> None:
    """Collect the exit codes of services that are children of this process, so that they do not stay as zombies."""
    for leader in leaders:
        with contextlib.suppress(ChildProcessError, OSError):
            os.waitpid(leader.pid, os.WNOHANG)
