"""An object store that speaks S3, as most warehouses lie in one: Adobe's S3Mock; its jars are pinned.

Iceberg's client for S3 is among them, which Sluice leaves to whoever needs it: see "jars" in the README.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from sluice.embedded import jars
from sluice.embedded.ports import HOST, answers_ok, free_port
from tests.support import pinned_jars
from tests.support.services.java_server import JavaServer

BUCKET = "lake"
SECRET = "s3cret-of-the-store"


def link_spark_jars(folder: Path) -> Path:
    """`folder`, filled with Spark's jars and the client: what `SLUICE_JARS` names where the warehouse is on S3."""
    folder.mkdir()
    for jar in (*jars.ensure_jars(jars.SPARK).glob("*.jar"), *pinned_jars.jars_in_set(pinned_jars.S3_CLIENT)):
        (folder / jar.name).symlink_to(jar)
    return folder


class S3Server(JavaServer):
    """A bucket of one's own; it lets in whoever asks."""

    NAME, HEAP = "S3", "512m"

    @property
    def settings(self) -> dict[str, str]:
        """The part of PyIceberg's configuration of a catalog that is about its files."""
        return {
            "WAREHOUSE": f"s3://{BUCKET}/{uuid.uuid4().hex}",
            "S3__ENDPOINT": f"http://{HOST}:{self.port}",
            "S3__REGION": "eu-central-1",
            "S3__ACCESS_KEY_ID": "reader",
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
