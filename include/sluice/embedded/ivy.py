"""Fetches jars with Ivy, which is part of PySpark, from Maven Central or the mirror in `SLUICE_IVY_SETTINGS`."""

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
    """A Maven coordinate: organisation, name and revision; with classifier and extension if it is not the plain jar."""

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
        """The file's name in the folder of a jar set."""
        return "-".join(filter(None, (self.name, self.rev, self.classifier))) + f".{self.ext}"

    @property
    def retrieved(self) -> str:
        """The file's name as Ivy writes it; see `PATTERN`."""
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
    """Resolve coordinates and download their jars into Ivy's part of the cache; keeps downloads when it fails.

    Args:
        coordinates: The artifacts to resolve.
        java: The Java to run Ivy on.
        cache: The cache folder; Ivy works in `ivy/` below it.
        transitive: Whether to fetch dependencies too.
        fetched: Called with the name of each artifact that is downloaded.

    Returns:
        The jars' paths by coordinate.

    Raises:
        StackError: An artifact could not be fetched; the message has Ivy's errors.
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
                success = re.match(r"\s*\[SUCCESSFUL ] \S+#(\S+?)!", line)
                if success:
                    fetched(success.group(1).replace(";", " "))
    found = dict(_retrieved_jars(retrieved, wanted))
    missing = [each for each in wanted if each not in found]
    if process.returncode or missing:
        raise _fetch_error(missing, log, process.returncode)
    return found


def forget(coordinate: Coordinate, cache: Path) -> None:
    """Remove a coordinate from Ivy's cache, so that the next fetch downloads it again."""
    shutil.rmtree(cache / "ivy" / "cache" / coordinate.org / coordinate.name, ignore_errors=True)


def proxy_options() -> list[str]:
    """Return the JVM options for the proxy in the environment, which Java does not read by itself."""
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
        raise StackError("PySpark, which contains Ivy, is not installed", next_step="make setup")
    jars = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise StackError(f"no ivy-*.jar beside {spec.origin}", next_step="make clean setup")
    return jars[-1]


def _request(coordinates: Iterable[Coordinate], *, transitive: bool) -> str:
    # `master` is the jar itself, without sources and javadoc; `runtime` adds its dependencies.
    attributes = 'conf="default->master,runtime"' if transitive else 'transitive="false" conf="default->master"'
    rows = "".join(
        f"<dependency org={quoteattr(c.org)} name={quoteattr(c.name)} rev={quoteattr(c.rev)} {attributes}>"
        f"{_artifact(c)}</dependency>\n"
        for c in coordinates
    )
    # Ivy recognises the prefix `m` by its name; XML only needs it declared.
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


def _retrieved_jars(folder: Path, wanted: Iterable[Coordinate]) -> Iterator[tuple[Coordinate, Path]]:
    by_name = {each.retrieved: each for each in wanted}
    for path in folder.iterdir():
        yield by_name.get(path.name) or Coordinate(*path.name.removesuffix(".jar").split("~")), path


def _fetch_error(missing: list[Coordinate], log: Path, code: int) -> StackError:
    errors = []
    for line in log.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if re.search(r"Exception|not found\.|refused|timed out|Server access|PKIX|unreachable|HTTP response", text):
            errors.append(text[:200])
    unique = list(dict.fromkeys(errors))[:4]
    names = ", ".join(str(each) for each in missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    reason = "".join(f"\n    {line}" for line in unique) or f"\n    Ivy ended with code {code}"
    return StackError(
        f"could not fetch {names or 'the jars'}:{reason}\n    full log: {log}",
        next_step="check the network, the proxy (https_proxy) and the certificates (SSL_CERT_FILE), then try again. "
        "A proxy with a password or a mirror needs Ivy settings in SLUICE_IVY_SETTINGS. Downloaded jars are kept",
    )
