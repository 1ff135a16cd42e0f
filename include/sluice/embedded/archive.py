"""Class archives, of Spark's driver and of the embedded broker: with one, a start takes little more than half the time.

The JVM writes the archive itself at the end of the first run, and takes it where the class path is the same, entry by
entry. Spark's launcher names one jar twice (slf4j-api first, then all of jars/), which the JVM's comparison can't take;
hence a Spark home of links to the same jars, among which the launcher does not find the one it would name first.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

NAMED_FIRST = "slf4j-api-"
ARCHIVE = "driver.jsa"


def spark_home(cache: Path, jars: Sequence[str | Path]) -> Path | None:
    """The Spark home whose class path can be archived, made where it is missing; its archive is kept in it.

    Args:
        cache: a folder to make it in.
        jars: what stands on the driver's class path besides.

    Returns:
        None where `SPARK_HOME` is set, Spark is not pip's, or the folder can't be written: then there is no archive.
    """
    found = find_spec("pyspark")
    if os.environ.get("SPARK_HOME") or not found or not found.submodule_search_locations:
        return None
    spark = Path(found.submodule_search_locations[0])
    own = sorted((spark / "jars").glob("*.jar"))
    home = cache / f"spark-home-{_stamp((*own, *jars))}"
    if home.is_dir():
        return home
    if not own or not os.access(cache, os.W_OK):
        return None
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=cache))
    draft.chmod(0o755)
    (draft / "bin").symlink_to(spark / "bin")
    (draft / "jars").mkdir()
    for jar in own:
        (draft / "jars" / (f"0-{jar.name}" if jar.name.startswith(NAMED_FIRST) else jar.name)).symlink_to(jar)
    try:
        draft.rename(home)
    except OSError:  # another task was quicker
        shutil.rmtree(draft)
    _tidy(cache, home)
    return home


def _tidy(cache: Path, home: Path) -> None:
    """Archives take 200 MB each: remove those that no JVM takes any more. One that runs keeps what it has opened."""
    for other in cache.glob("spark-home-*"):
        if not (other / "bin").exists():  # its Spark is gone
            shutil.rmtree(other, ignore_errors=True)
        elif other != home and (other / "bin").resolve() == (home / "bin").resolve():
            (other / ARCHIVE).unlink(missing_ok=True)


def beside(folder: Path) -> Path:
    """The archive of a program whose class path is all of a folder; those of the same jars with other dates go."""
    # In the order in which the JVM lists them too, which is not that of their names.
    stamp = _stamp(folder.glob("*.jar"))
    archive = folder.with_name(f"{folder.name}-{stamp}.jsa")
    for other in folder.parent.glob(f"{folder.name}-*.jsa"):
        if other != archive:
            other.unlink(missing_ok=True)
    return archive


def _stamp(jars: Iterable[str | Path]) -> str:
    """What tells a class path from another.

    A JVM refuses an archive once a jar has another date, in silence, and makes no new one in its place.
    """
    stats = {str(jar): Path(jar).stat() for jar in jars}
    stamps = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()]
    return hashlib.sha256(repr(stamps).encode()).hexdigest()[:12]


def options(home: Path) -> list[str]:
    """The JVM's options for a driver that starts from this Spark home."""
    return using(home / ARCHIVE)


def using(archive: Path, *, make: bool = True) -> list[str]:
    """The JVM's options. A Java older than 19 ignores the unknown one.

    Args:
        archive: its file.
        make: whether the JVM makes it where it is missing or made by another Java; else it has to be there.
    """
    return [
        "-XX:+IgnoreUnrecognizedVMOptions",
        *(["-XX:+AutoCreateSharedArchive"] if make else []),
        f"-XX:SharedArchiveFile={archive}",
        "-Xlog:cds=off",
        "-Xlog:cds+dynamic=off",
    ]
