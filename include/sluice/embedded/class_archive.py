"""Class data sharing archives (AppCDS) for Spark drivers and the broker: they cut a JVM's start to about half.

The JVM writes the archive when its first run ends, and uses it while the class path is the same, entry by entry.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

# Spark's launcher puts this jar first and then adds all of jars/, so it is on the class path twice, which the JVM's
# check of the archive rejects. The Spark home made here links it under another name, so the launcher adds it once.
FIRST_JAR_PREFIX = "slf4j-api-"
ARCHIVE = "driver.jsa"


def spark_home(cache: Path, jars: Sequence[str | Path]) -> Path | None:
    """Return a Spark home whose class path can be archived; create it if needed. It also holds the archive.

    Args:
        cache: The folder to create it in.
        jars: The further jars on the driver's class path.

    Returns:
        None if `SPARK_HOME` is set, PySpark is not a Python package or `cache` is not writable: no archive then.
    """
    found = find_spec("pyspark")
    if os.environ.get("SPARK_HOME") or not found or not found.submodule_search_locations:
        return None
    spark = Path(found.submodule_search_locations[0])
    own = sorted((spark / "jars").glob("*.jar"))
    home = cache / f"spark-home-{_stamp((*own, *jars))}"
    if home.is_dir():
        return home
    if not own:
        return None
    try:
        cache.mkdir(exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix="draft-", dir=cache))
    except OSError:
        return None
    draft.chmod(0o755)
    (draft / "bin").symlink_to(spark / "bin")
    (draft / "jars").mkdir()
    for jar in own:
        (draft / "jars" / (f"0-{jar.name}" if jar.name.startswith(FIRST_JAR_PREFIX) else jar.name)).symlink_to(jar)
    try:
        draft.rename(home)
    except OSError:  # another process created it first
        shutil.rmtree(draft)
    _remove_stale(cache, home)
    return home


def _remove_stale(cache: Path, home: Path) -> None:
    """Remove archives (200 MB each) that no new JVM uses; a running JVM keeps the file that it has opened."""
    for other in cache.glob("spark-home-*"):
        if not (other / "bin").exists():  # its PySpark was removed
            shutil.rmtree(other, ignore_errors=True)
        elif other != home and (other / "bin").resolve() == (home / "bin").resolve():
            (other / ARCHIVE).unlink(missing_ok=True)


def archive_for_jars(folder: Path) -> Path:
    """Return the archive's path for a program whose class path is all jars of a folder; remove outdated archives."""
    # In directory order, as the JVM expands the wildcard of the class path; not sorted by name.
    stamp = _stamp(folder.glob("*.jar"))
    archive = folder.with_name(f"{folder.name}-{stamp}.jsa")
    for other in folder.parent.glob(f"{folder.name}-*.jsa"):
        if other != archive:
            other.unlink(missing_ok=True)
    return archive


def _stamp(jars: Iterable[str | Path]) -> str:
    # The dates are part of it: when a jar's date changes, the JVM ignores the archive silently and writes no new one.
    stats = {str(jar): Path(jar).stat() for jar in jars}
    stamps = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()]
    return hashlib.sha256(repr(stamps).encode()).hexdigest()[:12]


def driver_archive_options(home: Path) -> list[str]:
    """Return the JVM options for a driver that starts from this Spark home, which may be read-only, as in an image."""
    return archive_options(home / ARCHIVE, make=_is_writable(home))


def _is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder: a JVM that can't write its archive exits with 1, without a message."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def archive_options(archive: Path, *, make: bool = True) -> list[str]:
    """Return the JVM options that use an archive; Java before 19 cannot create one and ignores that option.

    Args:
        archive: The archive's file.
        make: Whether the JVM creates the file if it is missing or from another Java version.
    """
    return [
        "-XX:+IgnoreUnrecognizedVMOptions",
        *(["-XX:+AutoCreateSharedArchive"] if make else []),
        f"-XX:SharedArchiveFile={archive}",
        "-Xlog:cds=off",
        "-Xlog:cds+dynamic=off",
    ]
