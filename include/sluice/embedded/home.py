"""The paths of an embedded stack: its folder (`SLUICE_HOME`) and the cache that all stacks share."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from sluice.embedded.failure import StackError
from sluice.embedded.private_files import check_private, private_folder

REPOSITORY = Path(__file__).resolve().parents[3]
# Characters that are syntax in URLs, in Kafka's log.dirs (comma) or in the registry's JDBC URL (semicolon): files
# would be written outside the folder.
_FORBIDDEN = re.compile(r"[#%?,;\\\x00-\x1f]")
_CHOOSE_HOME = "choose another folder with SLUICE_HOME"


@dataclass(frozen=True)
class Home:
    """The folder of one stack, and the paths below it."""

    root: Path

    @classmethod
    def default(cls) -> Home:
        """Return the home that `SLUICE_HOME` names, else `.sluice` in the repository.

        Raises:
            StackError: Sluice is an installed package: the stack runs the DAG files of a checkout.
        """
        if not (REPOSITORY / "dags").is_dir():
            raise StackError(
                "The embedded stack and the demo need a checkout of Sluice",
                next_step="run `make up` or `make demo` there",
            )
        named = os.environ.get("SLUICE_HOME")
        return cls.at(Path(named) if named else REPOSITORY / ".sluice")

    @classmethod
    def at(cls, folder: Path) -> Home:
        """Return the home in a folder; create the folder with access for its owner only, because it holds a password.

        Raises:
            StackError: The folder's name is not allowed, the folder cannot be created, or others may change it.
        """
        try:
            named = folder.expanduser().absolute()
            root = named.resolve()
            if found := _FORBIDDEN.search(str(root)):
                raise StackError(f"{root} can't hold a stack: its name contains {found[0]!r}", next_step=_CHOOSE_HOME)
            private_folder(named)  # by its own name: `root` would hide a link
        except (OSError, RuntimeError) as error:  # RuntimeError: ~user of an unknown user
            raise StackError(f"{folder} can't hold a stack: {error}", next_step=_CHOOSE_HOME) from error
        return cls(root)

    @property
    def logs(self) -> Path:
        """The services' logs."""
        return self.root / "logs"

    @property
    def env_file(self) -> Path:
        """The environment variables with which a shell or a program uses the running stack."""
        return self.root / "env"

    @property
    def state_file(self) -> Path:
        """Ports, secrets and process ids that `up` stores for `status` and `down`."""
        return self.root / "state.json"

    @property
    def lock_file(self) -> Path:
        """The file that a running `up` or `down` locks."""
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
        """The tables' files."""
        return self.root / "warehouse"


def cache_folder() -> Path:
    """Return the cache that all stacks share: `SLUICE_CACHE`, else `~/.cache/sluice`. Programs are run from it.

    Raises:
        StackError: The folder cannot be created, or others could replace its files.
    """
    named = os.environ.get("SLUICE_CACHE")
    if named:
        folder = Path(named)
    else:
        base = os.environ.get("XDG_CACHE_HOME")
        folder = Path(base or "~/.cache") / "sluice"
    try:
        folder = folder.expanduser().resolve()
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        check_private(folder, variable="SLUICE_CACHE", may_be_roots=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home directory
        raise StackError(
            f"{folder} can't be the cache: {error}", next_step="choose another folder with SLUICE_CACHE"
        ) from error
    return folder


def contracts_folder() -> Path:
    """Return the folder of contracts that the stack's DAGs read: `SLUICE_CONTRACTS`, else the repository's own."""
    named = os.environ.get("SLUICE_CONTRACTS")
    return (Path(named) if named else REPOSITORY / "include" / "contracts").expanduser().resolve()
