"""Where an embedded stack keeps its state: one folder, `SLUICE_HOME`, and one cache shared by all stacks."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from sluice.embedded.failure import StackError

REPOSITORY = Path(__file__).resolve().parents[3]
# In an address these mean something, to Kafka a comma ends a folder's name, to the registry's database a semicolon:
# files would lie elsewhere, outside the folder.
_UNFIT = re.compile(r"[#%?,;\\\x00-\x1f]")
_ANOTHER = "name another folder by SLUICE_HOME"


@dataclass(frozen=True)
class Home:
    """The folder of one stack; every path of the stack derives from it."""

    root: Path

    @classmethod
    def default(cls) -> Home:
        """The stack that `SLUICE_HOME` names, else `.sluice` in the repository."""
        named = os.environ.get("SLUICE_HOME")
        return cls.at(Path(named) if named else REPOSITORY / ".sluice")

    @classmethod
    def at(cls, folder: Path) -> Home:
        """The stack in a folder, which is created with access for its owner only (it will hold a password).

        Raises:
            StackError: There can be none of that name.
        """
        try:
            root = folder.expanduser().resolve()
            if unfit := _UNFIT.search(str(root)):
                raise StackError(f"{root} can't hold a stack: there is {unfit[0]!r} in its name", way_out=_ANOTHER)
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
        except (OSError, RuntimeError) as error:  # the latter where there is no such user
            raise StackError(f"{folder} can't hold a stack: {error}", way_out=_ANOTHER) from error
        return cls(root)

    @property
    def logs(self) -> Path:
        """Everything the services say."""
        return self.root / "logs"

    @property
    def env_file(self) -> Path:
        """What a shell or a program needs to talk to the running stack."""
        return self.root / "env"

    @property
    def state_file(self) -> Path:
        """Ports, secrets and process ids: what `up` remembers for `status` and `down`."""
        return self.root / "state.json"

    @property
    def lock_file(self) -> Path:
        """Held by whichever `up` or `down` is at work."""
        return self.root / "lock"

    @property
    def kafka(self) -> Path:
        """The broker's configuration and log segments."""
        return self.root / "kafka"

    @property
    def registry(self) -> Path:
        """The schema registry's data."""
        return self.root / "registry"

    @property
    def airflow(self) -> Path:
        """AIRFLOW_HOME."""
        return self.root / "airflow"

    @property
    def catalog(self) -> Path:
        """The SQLite file that Spark's JDBC catalog and PyIceberg's SQL catalog share."""
        return self.root / "catalog" / "iceberg.db"

    @property
    def warehouse(self) -> Path:
        """Where the tables' files lie."""
        return self.root / "warehouse"


def cache_folder() -> Path:
    """What several stacks share and what can be fetched again: `SLUICE_CACHE`, else `~/.cache/sluice`.

    Raises:
        StackError: It can't be made.
    """
    named = os.environ.get("SLUICE_CACHE")
    if named:
        folder = Path(named)
    else:
        base = os.environ.get("XDG_CACHE_HOME")
        folder = Path(base or "~/.cache") / "sluice"
    try:
        folder = folder.expanduser().resolve()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # the latter where the user has no home
        raise StackError(f"{folder} can't be the cache: {error}", way_out="name a folder by SLUICE_CACHE") from error
    return folder


def contracts_folder() -> Path:
    """The contracts that the stack's DAGs read: `SLUICE_CONTRACTS`, else the repository's own."""
    named = os.environ.get("SLUICE_CONTRACTS")
    return (Path(named) if named else REPOSITORY / "include" / "contracts").expanduser().resolve()
