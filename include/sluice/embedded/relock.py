"""Write `jars.lock` anew: resolve what the stack asks for and pin each file's checksum."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.embedded import ivy
from sluice.embedded.failure import say
from sluice.embedded.home import cache_folder
from sluice.embedded.ivy import Coordinate
from sluice.embedded.jars import KAFKA, LOCK, REGISTRY, SPARK, sha256
from sluice.embedded.java import find_java

HEADER = """\
# The JVM parts, pinned: "organisation:name:revision" = SHA-256 of the jar.
# Written by `python -m sluice.embedded lock` from the sets in relock.py; read by jars.py.
"""


@dataclass(frozen=True)
class Asked:
    """What a set is made of.

    Attributes:
        coordinates: The artifacts asked for.
        transitive: Whether what they need belongs to the set too.
    """

    coordinates: tuple[str, ...]
    transitive: bool


SETS = {
    # Spark brings most of what these need with it, so each is named and nothing else comes along.
    SPARK: Asked(
        (
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",
            "org.apache.spark:spark-avro_2.13:4.1.1",
            # The token provider of 4.1.x is not published everywhere; 4.0.0's serves the same interface.
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
            "org.apache.kafka:kafka-clients:3.9.1",
            "org.apache.commons:commons-pool2:2.12.1",
            "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
            # The catalogs of `make up` and of docker-compose.yaml.
            "org.xerial:sqlite-jdbc:3.50.3.0",
            "org.postgresql:postgresql:42.7.13",
        ),
        transitive=False,
    ),
    # The broker logs through SLF4J and comes without a backend for it: without the last one it would be silent.
    KAFKA: Asked(
        ("org.apache.kafka:kafka_2.13:4.3.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"),
        transitive=True,
    ),
    # A whole application with all that it needs, as one archive.
    REGISTRY: Asked(("io.apicurio:apicurio-registry-app:3.3.3:all@tar.gz",), transitive=False),
}


def write_lock(path: Path = LOCK, sets: Mapping[str, Asked] = SETS, header: str = HEADER) -> None:
    """Resolve every set and write its pins, below a header.

    Raises:
        StackError: If something cannot be resolved; the old lock is then unchanged.
    """
    cache = cache_folder() / "relock"
    cache.mkdir(exist_ok=True)
    java = find_java(cache_folder())
    text = header
    for name, asked in sets.items():
        wanted = [Coordinate.parse(each) for each in asked.coordinates]
        found = ivy.fetch(wanted, java=java, cache=cache, transitive=asked.transitive)
        text += f"\n[{name}]\n"
        text += "".join(f'"{coordinate}" = "{sha256(jar)}"\n' for coordinate, jar in sorted(found.items()))
        say(f"lock: {len(found)} jars in the set {name}")
    path.write_text(text, encoding="utf-8")
    shutil.rmtree(cache)
    say(f"lock: {path} written")
