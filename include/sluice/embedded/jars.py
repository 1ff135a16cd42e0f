"""The JVM parts, pinned: what `jars.lock` names is fetched, checked against its SHA-256 and kept in the cache.

Each set (`spark`, `kafka`, `registry`) has a folder of its own, named after the set's content, so that a folder holds
exactly what one version of the lock asks for and another version never mixes in.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
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

Lock = Mapping[str, Mapping[Coordinate, str]]


def read_lock(path: Path = LOCK) -> Lock:
    """The pinned artifacts by set: coordinate to SHA-256 in hex.

    Raises:
        StackError: If the file is not TOML, or a line is no coordinate with a checksum.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise StackError(f"{path}: {error}", way_out="python -m sluice.embedded lock writes it anew") from error
    lock: dict[str, dict[Coordinate, str]] = {}
    for name, rows in tables.items():
        lock[name] = {}
        for text, digest in rows.items():
            if not isinstance(digest, str) or len(digest) != 64:
                raise StackError(f"{path}: {text} has no SHA-256 of 64 hex digits")
            lock[name][Coordinate.parse(text)] = digest.lower()
    return lock


def ensure(name: str, *, lock: Lock | None = None, cache: Path | None = None, java: Java | None = None) -> Path:
    """The folder with all jars of a set, verified; what is missing or damaged is fetched first.

    Args:
        name: The set: `spark`, `kafka` or `registry`.
        lock: The pins; by default those of the repository.
        cache: The cache folder; by default the user's.
        java: The Java to run Ivy on; found when it is needed.

    Raises:
        StackError: If a jar cannot be fetched, or is not the one that the lock names.
    """
    pins = (read_lock() if lock is None else lock)[name]
    cache = cache_folder() if cache is None else cache
    folder = cache / "jars" / f"{name}-{_digest_of(pins)}"
    if not _wrong(folder, pins):
        return folder
    with _alone(cache):
        wrong = _wrong(folder, pins)
        if wrong:
            _fetch(name, folder, wrong, cache=cache, java=java or find_java(cache))
    return folder


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest_of(pins: Mapping[Coordinate, str]) -> str:
    text = "".join(f"{coordinate} {digest}\n" for coordinate, digest in sorted(pins.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _wrong(folder: Path, pins: Mapping[Coordinate, str]) -> dict[Coordinate, str]:
    """The pins whose jar is missing or differs; anything in the folder that no pin names is removed."""
    if not folder.is_dir():
        return dict(pins)
    names = {coordinate.filename for coordinate in pins}
    for path in folder.iterdir():
        if path.name not in names:
            say(f"jars: {path.name} is none of the pinned ones, and was removed from {folder}")
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
            say(f"jars: {coordinate.filename} is damaged: fetching it again")
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
            "checksum mismatch: what was fetched is not what the lock names, and was thrown away:\n  "
            + "\n  ".join(mismatches),
            way_out="run it again; if it stays so, the repository or something on the way to it serves another file: "
            f"do not use it, and compare with {LOCK.name}",
        )
    shutil.rmtree(cache / "ivy", ignore_errors=True)
    say(f"jars: {len(pins)} of the set {name} verified")


def _progress(total: int) -> Callable[[str], None]:
    count, said = 0, time.monotonic()

    def arrived(name: str) -> None:
        nonlocal count, said
        count += 1
        if time.monotonic() - said > 2:
            said = time.monotonic()
            say(f"jars: {count} of {total} ({name})")

    return arrived


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """One process at a time fetches into a cache; the others wait for it."""
    with (cache / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"jars: another process fetches into {cache}: waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
