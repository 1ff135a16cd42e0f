"""AWS's Glue and S3, for which moto stands in, and AWS's client for Python, which PyIceberg's catalog imports."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import urllib.request
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

from sluice.embedded.home import cache_folder
from sluice.embedded.ports import HOST, answers_ok, free_port
from sluice.embedded.process import MARK_VARIABLE, Service, start_and_wait, stop_service

LOCK = Path(__file__).parents[1] / "moto.txt"
PROGRAM = Path(__file__).with_name("moto_program.py")
BUCKET, REGION, KEY, SECRET = "glue-lake", "eu-central-1", "glue-reader", "s3cret-of-glue"


def package_folder() -> Path:
    """Install moto and boto3 into a folder of the cache, verified by their hashes; return it."""
    folder = cache_folder() / f"moto-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    if not (folder / "complete").exists():
        uv = Path(sys.executable).with_name("uv")
        command = [str(uv), "pip", "install", "--quiet", "--require-hashes", "--python", sys.executable]
        subprocess.run([*command, "--target", str(folder), "-r", str(LOCK)], check=True)
        (folder / "complete").touch()
    return folder


class Glue:
    """Glue and S3 in one server with one bucket, for a `with` block; takes every key."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self._mark = folder, free_port(), uuid.uuid4().hex

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a PyIceberg catalog; keys come from AWS's own variables."""
        return {
            "TYPE": "glue",
            "WAREHOUSE": f"s3://{BUCKET}/{uuid.uuid4().hex}",
            "GLUE__ENDPOINT": self.url,
            "S3__ENDPOINT": self.url,
            "CLIENT__REGION": REGION,
        }

    @property
    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}

    def __enter__(self) -> Self:
        self._process = start_and_wait(
            Service(
                name="moto",
                argv=[sys.executable, str(PROGRAM), str(self.port)],
                env={**os.environ, "PYTHONPATH": str(package_folder()), MARK_VARIABLE: self._mark},
                cwd=self.folder,
                log=self.folder / "moto.log",
                ready=lambda: answers_ok(f"{self.url}/moto-api/data.json"),
            )
        )
        bucket = urllib.request.Request(f"{self.url}/{BUCKET}", method="PUT")
        urllib.request.urlopen(bucket, timeout=20).close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop_service(self._process, self._mark, grace=5)
