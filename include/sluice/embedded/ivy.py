"""Fetch JVM artifacts with Ivy, the resolver inside PySpark; it knows the public Maven repository by itself.

`SLUICE_IVY_SETTINGS` names an Ivy settings file for those who must use a mirror.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from sluice.embedded.failure import StackError
from sluice.embedded.java import Java
from sluice.embedded.truststore import java_options

PATTERN = "[organisation]~[artifact]~[revision](~[classifier]).[ext]"


@dataclass(frozen=True, order=True)
class Coordinate:
    """One artifact, named as Maven names it: organisation, name and revision; a classifier where it is not the jar."""

    org: str
    name: str
    rev: str
    classifier: str = ""
    ext: str = "jar"

    @classmethod
    def parse(cls, text: str) -> Coordinate:
        """Read `org:name:rev`, or `org:name:rev:classifier@ext`."""
        plain, _, ext = text.partition("@")
        parts = plain.split(":")
        if len(parts) not in (3, 4) or not all(parts) or (len(parts) == 4) != bool(ext):
            raise StackError(f"{text!r} is not a coordinate of the form org:name:revision[:classifier@ext]")
        org, name, rev, *classifier = parts
        return cls(org, name, rev, "".join(classifier), ext or "jar")

    @property
    def filename(self) -> str:
        """The file's name in a folder of a set."""
        return "-".join(filter(None, (self.name, self.rev, self.classifier))) + f".{self.ext}"

    @property
    def retrieved(self) -> str:
        """The file's name as Ivy leaves it."""
        return "~".join(filter(None, (self.org, self.name, self.rev, self.classifier))) + f".{self.ext}"

    def __str__(self) -> str:
        return f"{self.org}:{self.name}:{self.rev}" + (f":{self.classifier}@{self.ext}" if self.classifier else "")


def fetch(
    coordinates: Iterable[Coordinate],
    *,
    java: Java,
    cache: Path,
    transitive: bool = False,
    fetched: Callable[[str], None] = lambda _: None,
) -> dict[Coordinate, Path]:
    """Resolve coordinates and retrieve their jars into Ivy's part of the cache.

    What one call has downloaded when it fails is not downloaded again by the next.

    Args:
        coordinates: What to resolve.
        java: The Java to run Ivy on.
        cache: The cache folder; Ivy works in `ivy/` below it.
        transitive: Whether what they need comes too.
        fetched: Called with a name for each artifact as it arrives.

    Returns:
        Where each jar lies, by coordinate.

    Raises:
        StackError: If anything could not be fetched; says what, and what Ivy said.
    """
    ivy = cache / "ivy"
    retrieved = ivy / "retrieved"
    shutil.rmtree(retrieved, ignore_errors=True)
    retrieved.mkdir(parents=True)
    wanted = sorted(coordinates)
    request = ivy / "request.xml"
    request.write_text(_request(wanted, transitive=transitive), encoding="utf-8")
    command: list[str] = [str(java.executable), *java_options(cache), *proxy_options(), "-jar", str(_ivy_jar())]
    settings = os.environ.get("SLUICE_IVY_SETTINGS")
    if settings:
        command += ["-settings", settings]
    command += ["-ivy", str(request), "-cache", str(ivy / "cache"), "-confs", "default"]
    command += ["-retrieve", f"{retrieved}/{PATTERN}"]
    log = ivy / "last.log"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None  # noqa: S101 - tells mypy what PIPE means
        with log.open("w", encoding="utf-8") as stream:
            for line in process.stdout:
                stream.write(line)
                arrived = re.match(r"\s*\[SUCCESSFUL ] \S+#(\S+?)!", line)
                if arrived:
                    fetched(arrived.group(1).replace(";", " "))
    found = dict(_found(retrieved, wanted))
    missing = [each for each in wanted if each not in found]
    if process.returncode or missing:
        raise _failure(missing, log, process.returncode)
    return found


def forget(coordinate: Coordinate, cache: Path) -> None:
    """Drop what Ivy keeps of a coordinate, so that the next fetch downloads it."""
    shutil.rmtree(cache / "ivy" / "cache" / coordinate.org / coordinate.name, ignore_errors=True)


def proxy_options() -> list[str]:
    """The JVM options for the proxy that the environment names, which Java does not read by itself."""
    options = []
    for scheme in ("http", "https"):
        named = os.environ.get(f"{scheme}_proxy") or os.environ.get(f"{scheme.upper()}_PROXY")
        parts = urlsplit(named if "//" in named else f"//{named}") if named else None
        if parts and parts.hostname and parts.scheme.startswith("socks"):
            options += [f"-DsocksProxyHost={parts.hostname}", f"-DsocksProxyPort={parts.port or 1080}"]
        elif parts and parts.hostname:
            options += [f"-D{scheme}.proxyHost={parts.hostname}", f"-D{scheme}.proxyPort={parts.port or 80}"]
    skipped = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    if options and skipped:
        hosts = [f"*{each.strip()}" if each.startswith(".") else each.strip() for each in skipped.split(",")]
        options.append(f"-Dhttp.nonProxyHosts={'|'.join(hosts)}")
    return options


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise StackError("PySpark is not installed, and Ivy is a part of it", way_out="make setup")
    jars = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise StackError(f"no ivy-*.jar beside {spec.origin}", way_out="make clean setup")
    return jars[-1]


def _request(coordinates: Iterable[Coordinate], *, transitive: bool) -> str:
    # The confs leave sources and javadoc out; `runtime` adds what an artifact needs to run.
    how = 'conf="default->master,runtime"' if transitive else 'transitive="false" conf="default->master"'
    rows = "".join(
        f"<dependency org={quoteattr(c.org)} name={quoteattr(c.name)} rev={quoteattr(c.rev)} {how}>{_artifact(c)}"
        "</dependency>\n"
        for c in coordinates
    )
    # Ivy goes by the prefix `m`; XML wants it declared, as whatever.
    return (
        '<ivy-module version="2.0" xmlns:m="urn:sluice:maven">'
        '<info organisation="sluice" module="jars"/>\n'
        f'<configurations><conf name="default"/></configurations>\n<dependencies>\n{rows}</dependencies></ivy-module>\n'
    )


def _artifact(c: Coordinate) -> str:
    if not c.classifier:
        return ""
    ext = quoteattr(c.ext)
    return f"<artifact name={quoteattr(c.name)} type={ext} ext={ext} m:classifier={quoteattr(c.classifier)}/>"


def _found(folder: Path, wanted: Iterable[Coordinate]) -> Iterator[tuple[Coordinate, Path]]:
    asked = {each.retrieved: each for each in wanted}
    for path in folder.iterdir():
        yield asked.get(path.name) or Coordinate(*path.name.removesuffix(".jar").split("~")), path


def _failure(missing: list[Coordinate], log: Path, code: int) -> StackError:
    said = []
    for line in log.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if re.search(r"Exception|not found\.|refused|timed out|Server access|PKIX|unreachable|HTTP response", text):
            said.append(text[:200])
    unique = list(dict.fromkeys(said))[:4]
    names = ", ".join(str(each) for each in missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    reason = "".join(f"\n    {line}" for line in unique) or f"\n    Ivy ended with code {code}"
    return StackError(
        f"could not fetch {names or 'the JVM parts'}:{reason}\n    full log: {log}",
        way_out="check network, proxy (https_proxy; one that asks for a user and a password needs SLUICE_IVY_SETTINGS, "
        "as these do not reach Java) and certificates (SSL_CERT_FILE), or name a mirror's settings in "
        "SLUICE_IVY_SETTINGS; then run it again: what has arrived is kept",
    )
