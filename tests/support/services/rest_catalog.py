"""An Iceberg REST catalog on SQLite: the server of Iceberg's own tests.

It listens on every interface, because it has no setting for an address, and has no authentication.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyspark

from sluice.embedded import jars
from sluice.embedded.ports import HOST, answers_ok
from tests.support import pinned_jars
from tests.support.services.java_server import JavaServer

# Hadoop and the logging library come from Spark's jars.
SPARK_JAR_PATTERNS = ("hadoop-client-*.jar", "log4j-api-*.jar", "log4j-core-*.jar", "log4j-slf4j2-*.jar")


def class_path() -> str:
    """Return the server's class path, fetched and verified."""
    found = [str(jar) for name in (pinned_jars.REST, pinned_jars.REST_SERVER) for jar in pinned_jars.jars_in_set(name)]
    found += map(str, jars.ensure_jars(jars.SPARK).glob("sqlite-jdbc-*.jar"))
    for pattern in SPARK_JAR_PATTERNS:
        found += map(str, (Path(pyspark.__file__).parent / "jars").glob(pattern))
    return os.pathsep.join(found)


class RestCatalog(JavaServer):
    """A REST catalog for a `with` block; its tables' files are in its folder."""

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
