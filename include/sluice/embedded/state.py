"""The state that a stack stores between commands, and the lock that lets one command at a time change it."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.fernet import Fernet
from pydantic import BaseModel, Field, ValidationError

from sluice.embedded.failure import StackError, say
from sluice.embedded.home import Home
from sluice.embedded.private_files import write_private
from sluice.embedded.process import ProcessIdentity
from sluice.embedded.spark_master import LOCAL


class ServiceRecord(BaseModel, extra="forbid"):
    """One started service.

    Attributes:
        process: Its process.
        log: The file with its output.
        ready: Whether it has answered; False if its start did not finish.
    """

    process: ProcessIdentity
    log: Path
    ready: bool = False


class StackState(BaseModel, extra="forbid"):
    """The stored state of one stack.

    Attributes:
        mark: An id in the environment of its processes; see `process`.
        ports: Ports by use; chosen once, so that a restart keeps every address.
        password: The password of Airflow's user `admin`.
        fernet_key: The key with which Airflow encrypts connections and variables.
        jwt_secret: The secret with which Airflow signs its tokens.
        spark: Spark's master, as `spark.master`.
        airflow_version: The Airflow version of the metadata database's schema.
        services: The started services by name.
    """

    mark: str = Field(default_factory=lambda: uuid.uuid4().hex)
    ports: dict[str, int] = Field(default_factory=dict)
    password: str = Field(default_factory=lambda: secrets.token_urlsafe(12))
    fernet_key: str = Field(default_factory=lambda: Fernet.generate_key().decode())
    jwt_secret: str = Field(default_factory=lambda: secrets.token_urlsafe(64))
    spark: str = LOCAL
    airflow_version: str = ""
    services: dict[str, ServiceRecord] = Field(default_factory=dict)


def load_state(home: Home) -> StackState:
    """Read the stack's state; return a new one if there is none yet.

    Raises:
        StackError: The file is not valid.
    """
    if not home.state_file.exists():
        return StackState()
    try:
        return StackState.model_validate_json(home.state_file.read_bytes())
    except ValidationError as error:
        raise StackError(
            f"{home.state_file} is not readable: {error}",
            next_step="stop the stack's processes by hand, then remove the file; the tables are not affected",
        ) from error


def save_state(home: Home, state: StackState) -> None:
    """Write the state atomically, readable by its owner only."""
    write_private(home.state_file, state.model_dump_json(indent=1) + "\n")


@contextmanager
def lock_stack(home: Home, *, patience: float = 300) -> Iterator[None]:
    """Hold the stack's lock for a `with` block; wait while another command holds it.

    Raises:
        StackError: The other command does not finish within `patience` seconds.
    """
    with home.lock_file.open("a+") as stream:
        began, reported = time.monotonic(), False
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                who = f"another command (process {lock_owner(home) or 'unknown'})"
                if not reported:
                    say(f"waiting: {who} is changing the stack in {home.root}")
                    reported = True
                if time.monotonic() - began > patience:
                    raise StackError(f"{who} has held {home.lock_file} for {patience:.0f} s") from None
                time.sleep(0.2)
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        try:
            yield
        finally:
            stream.truncate(0)


def lock_owner(home: Home) -> int | None:
    """Return the id of the process that holds the stack's lock (-1 if unknown), or None if it is free."""
    if not home.lock_file.exists():
        return None
    with home.lock_file.open("r") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = stream.read().strip()
            return int(text) if text.isdigit() else -1
    return None
