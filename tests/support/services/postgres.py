"""A PostgreSQL server on loopback, with the installed programs or those in the folder `SLUICE_POSTGRES`."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psycopg2
import pytest

from sluice.embedded.ports import HOST, free_port
from sluice.embedded.process import Service, start_service, wait_ready

# Names and a password with characters that URLs, shells, Java's properties files and SQL must escape.
ROLE = "sluice@lake"
PASSWORD = "p@ss/w:r%d #1 ${x}\\n'\"ü"
DATABASE = "ice berg"


def find_binaries() -> Path | None:
    """Return the folder with PostgreSQL's programs; None if there is none."""
    named = os.environ.get("SLUICE_POSTGRES")
    folders = [Path(named)] if named else sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_major)
    if not named and (found := shutil.which("postgres")):
        folders.append(Path(found).resolve().parent)
    return folders[-1] if folders else None


def _major(folder: Path) -> int:
    return int(folder.parent.name)


class Postgres:
    """A server with one database and the role that owns it, for a `with` block; without programs, the test is skipped.

    PostgreSQL refuses to run as root, so root starts it as the user `postgres`, in a folder that this user can read.
    """

    def __init__(self) -> None:
        self.port = free_port()
        found = find_binaries()
        if found is None:
            pytest.skip("no PostgreSQL here, so its catalog was NOT tried: apt-get install postgresql")
        self.binaries = found
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """The database's URL for SQLAlchemy."""
        return f"postgresql+psycopg2://{quote(ROLE)}:{quote(PASSWORD, safe='')}@{HOST}:{self.port}/{quote(DATABASE)}"

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="sluice-postgres-"))
        self._as: list[str] = []
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(self._folder, owner.pw_uid, owner.pw_gid)
            self._as = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
        try:
            options = ["--username=admin", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
            self._run("initdb", f"--pgdata={self._folder}/data", *options)
            # All roles but the administrator need a password.
            (self._folder / "data" / "pg_hba.conf").write_text(
                f"host all admin {HOST}/32 trust\nhost all all {HOST}/32 scram-sha-256\n"
            )
            self.start()
            admin = psycopg2.connect(host=HOST, port=self.port, user="admin", dbname="postgres")
            admin.autocommit = True
            with admin.cursor() as cursor:
                cursor.execute(f'CREATE ROLE "{ROLE}" LOGIN PASSWORD %s', (PASSWORD,))
                cursor.execute(f'CREATE DATABASE "{DATABASE}" OWNER "{ROLE}"')
            admin.close()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as, str(self.binaries / program), *arguments]
        done = subprocess.run(command, cwd=self._folder, env=self._env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    @property
    def _env(self) -> Mapping[str, str]:
        return {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"}

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = {"listen_addresses": HOST, "port": str(self.port), "unix_socket_directories": "", "fsync": "off"}
        service = Service(
            name="PostgreSQL",
            argv=[
                *(*self._as, str(self.binaries / "postgres"), "-D", str(self._folder / "data")),
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
            ],
            env=self._env,
            cwd=self._folder,
            log=self._folder / "postgres.log",
            ready=self._answers,
        )
        self._process = start_service(service)
        wait_ready({service.name: (service, self._process)})

    def _answers(self) -> bool:
        try:
            psycopg2.connect(host=HOST, port=self.port, user="admin", dbname="postgres").close()
        except psycopg2.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """Stop the server at once and close all connections."""
        if self._process:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)
            self._process = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
