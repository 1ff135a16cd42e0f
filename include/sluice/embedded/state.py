"""What a stack remembers between commands, and the lock that keeps two commands from working on it at once."""

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
from sluice.embedded.process import Identity


class Record(BaseModel, extra="forbid"):
    """One started service.

    Attributes:
        process: Which process it is.
        log: Where its output goes.
        ready: Whether it has answered; False means that the start never came to its end.
    """

    process: Identity
    log: Path
    ready: bool = False


class State(BaseModel, extra="forbid"):
    """The memory of one stack.

    Attributes:
        mark: What its processes carry in their environment.
        ports: By use; chosen once, so that a restart keeps every address.
        password: Of the user `admin` on Airflow's pages.
        fernet_key: With which Airflow encrypts what it stores.
        jwt_secret: With which Airflow's parts sign their tokens.
        airflow_version: The version whose schema the metadata database has.
        services: The started services by name.
    """

    mark: str = Field(default_factory=lambda: uuid.uuid4().hex)
    ports: dict[str, int] = Field(default_factory=dict)
    password: str = Field(default_factory=lambda: secrets.token_urlsafe(12))
    fernet_key: str = Field(default_factory=lambda: Fernet.generate_key().decode())
    jwt_secret: str = Field(default_factory=lambda: secrets.token_urlsafe(64))
    airflow_version: str = ""
    services: dict[str, Record] = Field(default_factory=dict)


def load(home: Home) -> State:
    """The stack's memory; a new one where there is none yet."""
    if not home.state_file.exists():
        return State()
    try:
        return State.model_validate_json(home.state_file.read_bytes())
    except ValidationError as error:
        raise StackError(
            f"{home.state_file} is not readable: {error}",
            way_out="end the stack's processes by hand, then remove the file; the tables are not affected",
        ) from error


def save(home: Home, state: State) -> None:
    """Write the memory in one act, for its owner's eyes only."""
    write_private(home.state_file, state.model_dump_json(indent=1) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace a file in one act, with mode 0600."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)
    draft.replace(path)


@contextmanager
def exclusive(home: Home, *, patience: float = 300) -> Iterator[None]:
    """Hold the stack's lock; where another command holds it, wait for that to finish.

    Raises:
        StackError: If it does not finish in time.
    """
    with home.lock_file.open("a+") as stream:
        began, told = time.monotonic(), False
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                who = f"another command (process {at_work(home) or 'unknown'})"
                if not told:
                    say(f"{who} is at work on {home.root}: waiting for it")
                    told = True
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


def at_work(home: Home) -> int | None:
    """The id of the process that holds the stack's lock, or None if nobody does."""
    if not home.lock_file.exists():
        return None
    with home.lock_file.open("r") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = stream.read().strip()
            return int(text) if text.isdigit() else -1
    return None
