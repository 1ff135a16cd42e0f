"""A real PostgreSQL on loopback, in a folder of its own: found by name, or where `SLUICE_POSTGRES` says."""

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

# What URLs, shells, Java's properties files and SQL each take for something of their own.
ROLE = "sluice@lake"
PASSWORD = "p@ss/w:r%d #1 ${x}\\n'\"ü"
DATABASE = "ice berg"


def find_binaries() -> Path:
    """The folder with the server; without one the test is skipped, and says how to get it."""
    named = os.environ.get("SLUICE_POSTGRES")
    folders = [Path(named)] if named else sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_major)
    if not named and (found := shutil.which("postgres")):
        folders.append(Path(found).resolve().parent)
    if not folders:
        pytest.skip("no PostgreSQL here, so its catalog was NOT tried: apt-get install postgresql")
    return folders[-1]


def _major(folder: Path) -> int:
    return int(folder.parent.name)


class Postgres:
    """A server with one database and the role that owns it, for as long as a `with` block.

    It refuses to run as root, for whom it runs as the user `postgres`; that user may not look into a test's own folder.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self._binaries = find_binaries()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """The database as SQLAlchemy names it."""
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
            # Roles with a password are asked for it.
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
        command = [*self._as, str(self._binaries / program), *arguments]
        done = subprocess.run(command, cwd=self._folder, env=self._env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    @property
    def _env(self) -> Mapping[str, str]:
        return {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"}

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {"listen_addresses": HOST, "port": str(self.port), "unix_socket_directories": "", "fsync": "off"}
        service = Service(
            name="PostgreSQL",
            argv=[
                *(*self._as, str(self._binaries / "postgres"), "-D", str(self._folder / "data")),
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
        """Stop it at once: who is connected is cut off."""
        if self._process:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)
            self._process = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
