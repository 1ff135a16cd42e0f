"""An S3-compatible object store (Adobe's S3Mock), and Iceberg's S3 client, which Sluice's own jars leave out."""

from __future__ import annotations

import uuid
from pathlib import Path

from sluice.embedded import jars
from sluice.embedded.ports import HOST, answers_ok, free_port
from tests.support import pinned_jars
from tests.support.services.java_server import JavaServer

BUCKET = "lake"
KEY, SECRET = "reader", "s3cret-of-the-store"


def link_spark_jars(folder: Path) -> Path:
    """Link Spark's jars and the S3 client into `folder`, for `SLUICE_JARS` with a warehouse on S3."""
    folder.mkdir()
    for jar in jars.ensure_spark_jars(["s3"]).glob("*.jar"):
        (folder / jar.name).symlink_to(jar)
    return folder


class S3Server(JavaServer):
    """A store with one bucket, without authentication, for a `with` block."""

    NAME, HEAP = "S3", "512m"

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a PyIceberg catalog for its warehouse and S3."""
        return self.settings_at(self.port)

    @staticmethod
    def settings_at(port: int) -> dict[str, str]:
        """The same, for a proxy in front of it at another port."""
        return {
            "WAREHOUSE": f"s3://{BUCKET}/{uuid.uuid4().hex}",
            "S3__ENDPOINT": f"http://{HOST}:{port}",
            "S3__REGION": "eu-central-1",
            "S3__ACCESS_KEY_ID": KEY,
            "S3__SECRET_ACCESS_KEY": SECRET,
        }

    def command(self) -> tuple[list[str], dict[str, str]]:
        mine = "--com.adobe.testing.s3mock"
        (server,) = pinned_jars.jars_in_set(pinned_jars.S3_SERVER)
        return [
            *("-jar", str(server), f"--server.address={HOST}", f"--server.port={free_port({self.port})}"),
            *(f"{mine}.http-port={self.port}", f"{mine}.store.root={self.folder}"),
            f"{mine}.store.initial-buckets={BUCKET}",
        ], {}

    def answers(self) -> bool:
        return answers_ok(f"http://{HOST}:{self.port}/{BUCKET}")
