"""The pinned jars: fetches those of `jars.lock`, checks their SHA-256 and keeps them in the cache.

Each set (`spark`, `kafka`, `registry`, `aws`, `msk`) has a folder named after a hash of its pins: versions never mix.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sluice.embedded import ivy
from sluice.embedded.failure import StackError, say
from sluice.embedded.home import cache_folder
from sluice.embedded.ivy import Coordinate
from sluice.embedded.java import Java, find_java

LOCK = Path(__file__).with_name("jars.lock")
SPARK = "spark"
KAFKA = "kafka"
REGISTRY = "registry"
AWS = "aws"
MSK = "msk"
CLOUDS = {"s3": (AWS,), "glue": (AWS,), "msk": (AWS, MSK)}
"""The sets of jars that Spark needs beside its own for a store, a catalog or Kafka's log-in."""
NOT_PINNED = {"gcs": "iceberg-gcp-bundle", "azure": "iceberg-azure-bundle"}
"""Not every repository has these of Iceberg's version yet."""

Lock = Mapping[str, Mapping[Coordinate, str]]


def read_lock(path: Path = LOCK) -> Lock:
    """Read the pinned artifacts: for each set, SHA-256 in hex by coordinate.

    Raises:
        StackError: The file is not TOML, or a line is not a coordinate with a checksum.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise StackError(f"{path}: {error}", next_step="python -m sluice.embedded lock rewrites the file") from error
    lock: dict[str, dict[Coordinate, str]] = {}
    for name, rows in tables.items():
        lock[name] = {}
        for text, digest in rows.items():
            if not isinstance(digest, str) or len(digest) != 64:
                raise StackError(f"{path}: {text} has no SHA-256 of 64 hex digits")
            lock[name][Coordinate.parse(text)] = digest.lower()
    return lock


def ensure_jars(name: str, *, lock: Lock | None = None, cache: Path | None = None, java: Java | None = None) -> Path:
    """Return the folder with all jars of a set, verified; fetch missing and damaged jars first.

    Args:
        name: The set: `spark`, `kafka`, `registry` or one of a cloud.
        lock: The pins; by default those of the repository.
        cache: The cache folder; by default the user's.
        java: The Java to run Ivy on; by default `find_java`'s.

    Raises:
        StackError: A jar cannot be fetched, or its checksum is not the pinned one.
    """
    pins = (read_lock() if lock is None else lock)[name]
    cache = cache_folder() if cache is None else cache
    folder = cache / "jars" / f"{name}-{_hash_pins(pins)}"
    if not _find_missing(folder, pins):
        return folder
    with _lock_cache(cache):
        missing = _find_missing(folder, pins)
        if missing:
            _fetch(name, folder, missing, cache=cache, java=java or find_java(cache))
    return folder


def ensure_spark_jars(clouds: Iterable[str], *, lock: Lock | None = None, cache: Path | None = None) -> Path:
    """Return a folder with Spark's jars and those of stores and catalogs, verified, for `SLUICE_JARS`.

    Args:
        clouds: Names of `CLOUDS`.
        lock: The pins; by default those of the repository.
        cache: The cache folder; by default the user's.

    Raises:
        StackError: A name is unknown or has no pinned jars, or as for `ensure_jars`.
    """
    lock = read_lock() if lock is None else lock
    pins = dict(lock[SPARK])
    for each in clouds:
        if each in NOT_PINNED:
            raise StackError(
                f"the jar for {each}, {NOT_PINNED[each]}, is not pinned: not every repository has that version",
                next_step=f"copy the folder of make jars, add {NOT_PINNED[each]} of Iceberg's version, set SLUICE_JARS",
            )
        if each not in CLOUDS:
            raise StackError(f"there are no jars for {each!r}", next_step=f"name some of {', '.join(CLOUDS)}")
        for name in CLOUDS[each]:
            pins |= lock[name]
    return ensure_jars(SPARK, lock={SPARK: pins}, cache=cache)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _hash_pins(pins: Mapping[Coordinate, str]) -> str:
    text = "".join(f"{coordinate} {digest}\n" for coordinate, digest in sorted(pins.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _find_missing(folder: Path, pins: Mapping[Coordinate, str]) -> dict[Coordinate, str]:
    """Return the pins whose jar is missing or damaged; remove files from the folder that are not pinned."""
    if not folder.is_dir():
        return dict(pins)
    names = {coordinate.filename for coordinate in pins}
    for path in folder.iterdir():
        if path.name not in names:
            say(f"jars: removed {path.name} from {folder}: it is not pinned")
            path.unlink()
    return {
        coordinate: digest
        for coordinate, digest in pins.items()
        if not (folder / coordinate.filename).is_file() or sha256(folder / coordinate.filename) != digest
    }


def _fetch(name: str, folder: Path, pins: Mapping[Coordinate, str], *, cache: Path, java: Java) -> None:
    for coordinate in pins:
        damaged = folder / coordinate.filename
        if damaged.exists():
            say(f"jars: {coordinate.filename} is damaged; fetching it again")
            damaged.unlink()
            ivy.forget(coordinate, cache)
    say(f"jars: fetching {len(pins)} of the set {name} into {folder}")
    found = ivy.fetch(pins, java=java, cache=cache, fetched=_progress(len(pins)))
    folder.mkdir(parents=True, exist_ok=True)
    mismatches = []
    for coordinate, expected in pins.items():
        got = sha256(found[coordinate])
        if got == expected:
            found[coordinate].replace(folder / coordinate.filename)
        else:
            ivy.forget(coordinate, cache)
            mismatches.append(f"{coordinate}\n    expected {expected}\n    got      {got}")
    if mismatches:
        raise StackError(
            "checksum mismatch: these files differ from the pinned ones and were removed:\n  "
            + "\n  ".join(mismatches),
            next_step="try again. If the error stays, the repository or a proxy serves another file than the one in "
            f"{LOCK.name}; do not use it",
        )
    shutil.rmtree(cache / "ivy", ignore_errors=True)
    say(f"jars: {len(pins)} of the set {name} verified")


def _progress(total: int) -> Callable[[str], None]:
    count, last_line = 0, time.monotonic()

    def report(name: str) -> None:
        nonlocal count, last_line
        count += 1
        if time.monotonic() - last_line > 2:
            last_line = time.monotonic()
            say(f"jars: {count} of {total} ({name})")

    return report


@contextmanager
def _lock_cache(cache: Path) -> Iterator[None]:
    """Let one process at a time fetch into a cache; the others wait."""
    with (cache / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"jars: waiting for another process that fetches into {cache}")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
