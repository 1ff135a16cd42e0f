"""Starting, recognising and ending the processes of a stack, and never anyone else's.

A process is known by its id and its start time, since ids are used again; and each process that a stack starts, with
all that descend from it, carries the stack's mark in its environment. So `down` finds also what a killed parent left.
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

MARK = "SLUICE_STACK"


class Identity(BaseModel, frozen=True, extra="forbid"):
    """One process, told from a later one with the same id.

    Attributes:
        pid: Its process id, which is also its group's: every service leads a group.
        created: When it was started, in seconds since the epoch.
    """

    pid: int
    created: float

    def alive(self) -> bool:
        """Whether this very process runs."""
        try:
            process = psutil.Process(self.pid)
            # The system derives the start time from the boot time, which a clock correction moves a little.
            return abs(process.create_time() - self.created) < 2 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:  # there is none, or it is somebody else's
            return False


@dataclass(frozen=True)
class Service:
    """What to start and how to tell that it works.

    Attributes:
        name: Its name in messages and logs.
        argv: The command.
        env: Its whole environment.
        cwd: Where it runs.
        log: Where its output goes, appended.
        ready: Whether it answers as it should, asked again and again.
        patience: Seconds until an unready service counts as failed.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    ready: Callable[[], bool]
    patience: float = 120


def start(service: Service) -> subprocess.Popen[bytes]:
    """Start a service in a session of its own, so that a Ctrl-C in the terminal is not its end."""
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


def identity(process: subprocess.Popen[bytes]) -> Identity:
    """What to remember of a process that was just started."""
    try:
        created = psutil.Process(process.pid).create_time()
    except psutil.NoSuchProcess:
        created = 0.0  # already gone: matches no process
    return Identity(pid=process.pid, created=created)


def wait_ready(services: Mapping[str, tuple[Service, subprocess.Popen[bytes]]]) -> None:
    """Wait until all services answer; a service that dies is reported at once.

    Raises:
        StackError: If a service ended, or does not answer in time; with the end of its log.
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


def start_alone(service: Service) -> subprocess.Popen[bytes]:
    """Start a service, marked by its environment, and wait until it answers; where it does not, it is ended.

    Raises:
        StackError: as `wait_ready`.
    """
    process = start(service)
    try:
        wait_ready({service.name: (service, process)})
    except BaseException:
        end_alone(process, service.env[MARK], grace=0)
        raise
    return process


def end_alone(process: subprocess.Popen[bytes], mark: str, *, grace: float) -> None:
    """End one that was started here, with all that descends from it, and wait until it is gone."""
    end([identity(process)], mark, grace=grace)
    process.wait()


def end(leaders: Sequence[Identity], mark: str, *, keep: Collection[int] = (), grace: float = 20) -> int:
    """End services and all that descends from them: TERM, and KILL for what does not go within the grace.

    Args:
        leaders: The recorded services; one whose id belongs to another process by now is left alone.
        mark: The stack's mark, by which stray descendants are found.
        keep: The ids of the stack's other services, which stay with all that belongs to their sessions.
        grace: Seconds between TERM and KILL.

    Returns:
        How many processes had to be killed.
    """
    for leader in leaders:
        if leader.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and any(leader.alive() for leader in leaders):
        _reap(leaders)
        time.sleep(0.05)
    # What is left has lost its leader, or outlived the grace.
    strays = descendants(leaders, mark, keep)
    for process in strays:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    psutil.wait_procs(strays, timeout=3)
    stubborn = descendants(leaders, mark, keep)
    for process in stubborn:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stubborn, timeout=5)
    _reap(leaders)
    return len(stubborn)


def descendants(leaders: Sequence[Identity], mark: str, keep: Collection[int] = ()) -> list[psutil.Process]:
    """All processes of the services, found by two signs.

    The first is the mark in the environment; some programs overwrite theirs to change their title. The second is the
    session of a service, which keeps its id for as long as any process is in it.

    Args:
        leaders: The services.
        mark: The stack's mark.
        keep: The ids of services whose sessions are not to be touched.
    """
    # A leader that lives answers for itself; of a dead one, the id is free for others after a reboot.
    sessions = {each.pid: each for each in leaders if each.alive() or _gone(each)}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            session = os.getsid(process.pid)
            leader = sessions.get(session)
            ours = leader is not None and process.create_time() > leader.created - 2
            if session not in keep and (ours or process.environ().get(MARK) == mark):
                found.append(process)
    return found


def _gone(leader: Identity) -> bool:
    """Whether a leader of this boot is dead and nobody else has its id."""
    if leader.created < psutil.boot_time():
        return False
    try:
        return psutil.Process(leader.pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def _reap(leaders: Sequence[Identity]) -> None:
    """Collect the exit of services that are this process's own children, or they stay as zombies."""
    for leader in leaders:
        with contextlib.suppress(ChildProcessError, OSError):
            os.waitpid(leader.pid, os.WNOHANG)
