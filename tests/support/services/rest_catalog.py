"""An Iceberg REST catalog on SQLite: the server of Iceberg's own tests, with its files in a folder or on S3.

It listens on every interface, because it has no setting for an address, and has no authentication.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pyspark

from sluice.embedded import jars
from sluice.embedded.ports import HOST, answers_ok
from tests.support import pinned_jars
from tests.support.services.java_server import JavaServer

# Hadoop and the logging library come from Spark's jars.
SPARK_JAR_PATTERNS = ("hadoop-client-*.jar", "log4j-api-*.jar", "log4j-core-*.jar", "log4j-slf4j2-*.jar")


def class_path(*, on_s3: bool) -> str:
    """Return the server's class path, fetched and verified."""
    sets = (pinned_jars.REST, pinned_jars.REST_SERVER, *([pinned_jars.REST_S3] if on_s3 else []))
    found = [str(jar) for name in sets for jar in pinned_jars.jars_in_set(name)]
    found += map(str, jars.ensure_jars(jars.SPARK).glob("sqlite-jdbc-*.jar"))
    for pattern in SPARK_JAR_PATTERNS:
        found += map(str, (Path(pyspark.__file__).parent / "jars").glob(pattern))
    return os.pathsep.join(found)


class RestCatalog(JavaServer):
    """A REST catalog for a `with` block.

    Args:
        folder: For its database, and its tables' files where they are not on S3.
        store: Settings of S3 with the keys of the server, which it vends to clients that ask for a table's keys.
    """

    NAME = "REST catalog"

    def __init__(self, folder: Path, store: Mapping[str, str] | None = None) -> None:
        super().__init__(folder)
        self._store = store

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def command(self) -> tuple[list[str], dict[str, str]]:
        return ["-cp", class_path(on_s3=bool(self._store)), "org.apache.iceberg.rest.RESTCatalogServer"], {
            "CATALOG_REST_PORT": str(self.port),
            "CATALOG_URI": f"jdbc:sqlite:{self.folder}/rest.db",
            "CATALOG_JDBC_SCHEMA__VERSION": "V1",
            **(self._on_s3() if self._store else self._in_a_folder()),
        }

    def _in_a_folder(self) -> dict[str, str]:
        return {
            "CATALOG_WAREHOUSE": f"file://{self.folder}/warehouse",
            "CATALOG_IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
        }

    def _on_s3(self) -> dict[str, str]:
        given = dict(self._store or {})
        region = given.pop("S3__REGION")
        # One _ is a dot, two are a hyphen.
        found = {
            f"CATALOG_{name.replace('__', '.').replace('_', '__').replace('.', '_')}": given[name] for name in given
        }
        return found | {
            "CATALOG_CLIENT_REGION": region,
            "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
            "CATALOG_S3_PATH__STYLE__ACCESS": "true",
            "CATALOG_INCLUDE__CREDENTIALS": "true",
        }

    def answers(self) -> bool:
        return answers_ok(f"{self.url}/v1/config")
