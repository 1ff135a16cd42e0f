"""Writes `jars.lock`: resolves the stack's jars with Ivy and pins each file's checksum."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.embedded import ivy
from sluice.embedded.failure import say
from sluice.embedded.home import cache_folder
from sluice.embedded.ivy import Coordinate
from sluice.embedded.jars import AWS, KAFKA, LOCK, MSK, REGISTRY, SPARK, sha256
from sluice.embedded.java import find_java

HEADER = """\
# The pinned jars: "organisation:name:revision" = SHA-256 of the jar.
# Written by `python -m sluice.embedded lock` from the sets in relock.py; read by jars.py.
"""


@dataclass(frozen=True)
class JarSet:
    """A set of jars to resolve.

    Attributes:
        coordinates: The artifacts.
        transitive: Whether their dependencies belong to the set too.
    """

    coordinates: tuple[str, ...]
    transitive: bool


# Not transitive: PySpark already contains most of their dependencies; the others are listed.
SPARK_JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",
    "org.apache.spark:spark-avro_2.13:4.1.1",
    # The token provider of 4.1.x is not in every repository; 4.0.0 has the same interface.
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    # The catalogs of `make up` and of docker-compose.yaml.
    "org.xerial:sqlite-jdbc:3.50.3.0",
    "org.postgresql:postgresql:42.7.13",
)
SETS = {
    SPARK: JarSet(SPARK_JARS, transitive=False),
    # Kafka logs through SLF4J without a backend; without log4j-slf4j-impl there are no logs.
    KAFKA: JarSet(
        ("org.apache.kafka:kafka_2.13:4.3.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"),
        transitive=True,
    ),
    # One archive with the application and its dependencies.
    REGISTRY: JarSet(("io.apicurio:apicurio-registry-app:3.3.3:all@tar.gz",), transitive=False),
    # Of the version of Spark's Iceberg, with AWS's SDK within.
    AWS: JarSet(("org.apache.iceberg:iceberg-aws-bundle:1.12.0",), transitive=False),
    # AWS's SDK is in the set above; the jar `all` has another version of it, under the same names.
    MSK: JarSet(("software.amazon.msk:aws-msk-iam-auth:2.3.5",), transitive=False),
}


def write_lock(path: Path = LOCK, sets: Mapping[str, JarSet] = SETS, header: str = HEADER) -> None:
    """Resolve every set and write its pins below a header.

    Raises:
        StackError: An artifact cannot be resolved; the old lock stays unchanged.
    """
    cache = cache_folder() / "relock"
    cache.mkdir(exist_ok=True)
    java = find_java(cache_folder())
    text = header
    for name, jar_set in sets.items():
        wanted = [Coordinate.parse(each) for each in jar_set.coordinates]
        found = ivy.fetch(wanted, java=java, cache=cache, transitive=jar_set.transitive)
        text += f"\n[{name}]\n"
        text += "".join(f'"{coordinate}" = "{sha256(jar)}"\n' for coordinate, jar in sorted(found.items()))
        say(f"lock: {len(found)} jars in the set {name}")
    path.write_text(text, encoding="utf-8")
    shutil.rmtree(cache)
    say(f"lock: {path} written")
