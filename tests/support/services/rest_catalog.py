"""A real REST catalog: the server that Iceberg tests its own clients with, on SQLite; its jars are pinned.

It listens on every interface, as it takes no address, and asks nobody who they are: what it serves is a test's folder.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from sluice.embedded import jars
from sluice.embedded.ports import HOST, answers_ok
from tests.support import pinned_jars
from tests.support.services.java_server import JavaServer

# Hadoop, whose files the catalog writes, and a log are among Spark's own.
SPARK_JAR_PATTERNS = ("hadoop-client-*.jar", "log4j-api-*.jar", "log4j-core-*.jar", "log4j-slf4j2-*.jar")


def class_path() -> str:
    """All that the server needs, fetched and verified."""
    found = [str(jar) for name in (pinned_jars.REST, pinned_jars.REST_SERVER) for jar in pinned_jars.jars_in_set(name)]
    found += map(str, jars.ensure_jars(jars.SPARK).glob("sqlite-jdbc-*.jar"))
    pyspark = importlib.util.find_spec("pyspark")
    assert pyspark and pyspark.origin
    for pattern in SPARK_JAR_PATTERNS:
        found += map(str, (Path(pyspark.origin).parent / "jars").glob(pattern))
    return os.pathsep.join(found)


class RestCatalog(JavaServer):
    """A REST catalog of one's own; its tables' files lie in its folder."""

    NAME = "REST catalog"

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def command(self) -> tuple[list[str], dict[str, str]]:
        return ["-cp", class_path(), "org.apache.iceberg.rest.RESTCatalogServer"], {
            "CATALOG_REST_PORT": str(self.port),
            "CATALOG_URI": f"jdbc:sqlite:{self.folder}/rest.db",
            "CATALOG_JDBC_SCHEMA__VERSION": "V1",
            "CATALOG_WAREHOUSE": f"file://{self.folder}/warehouse",
            "CATALOG_IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
        }

    def answers(self) -> bool:
        return answers_ok(f"{self.url}/v1/config")
