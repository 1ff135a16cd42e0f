"""Builds confluent-kafka with Kerberos (GSSAPI), which PyPI's wheels lack, into a folder of the cache.

`PYTHONPATH=include:. python -m tests.support.gssapi_client` prints the folder, for PYTHONPATH. The source of librdkafka
is that in the npm package of Confluent's client for JavaScript, because librdkafka itself is in no package index.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from sluice.embedded.home import REPOSITORY, cache_folder

SOURCE = "@confluentinc/kafka-javascript@1.10.1"
SOURCE_SHA256 = "ada7d703bb1d3237e2292bfabf438d663b6160c9f1ac2a2406b5dc4257c81b66"
CLIENT = "confluent-kafka==2.15.1 --hash=sha256:99d1223020e27854e75981333983c5120d64762268f8afcc805fbd62e7de49aa\n"
NEEDED = "gcc make npm libsasl2-dev libssl-dev libcurl4-openssl-dev libzstd-dev zlib1g-dev"


def client_folder() -> Path:
    """Build the client once; return its folder."""
    version = hashlib.sha256((SOURCE_SHA256 + CLIENT).encode()).hexdigest()[:12]
    folder = cache_folder() / f"gssapi-client-{version}"
    if not (folder / "complete").exists():
        with tempfile.TemporaryDirectory() as temporary:
            _build(Path(temporary), folder)
        (folder / "complete").touch()
    return folder / "python"


def _build(work: Path, folder: Path) -> None:
    (packed,) = subprocess.run(
        ["npm", "pack", "--silent", SOURCE], cwd=work, check=True, capture_output=True, text=True
    ).stdout.split()
    found = hashlib.sha256((work / packed).read_bytes()).hexdigest()
    assert found == SOURCE_SHA256, f"{SOURCE} has another checksum: {found}"
    with tarfile.open(work / packed) as archive:
        archive.extractall(work, filter="data")
    library = folder / "librdkafka"
    # GSSAPI must fail the build, not be left out, where libsasl2 is missing.
    for command in (["./configure", f"--prefix={library}", "--enable-gssapi"], ["make", "-j2", "-C", "src"]):
        _run(command, work / "package" / "deps" / "librdkafka")
    _run(["make", "-C", "src", "install"], work / "package" / "deps" / "librdkafka")
    (work / "client.txt").write_text(CLIENT)
    _run(
        [
            str(Path(sys.executable).with_name("uv")), "pip", "install", "--python", sys.executable, "--no-deps",
            "--no-cache", "--no-binary", "confluent-kafka", "--require-hashes",
            "--build-constraints", str(REPOSITORY / "requirements.txt"),
            "--target", str(folder / "python"), "-r", "client.txt",
        ],
        work,
        C_INCLUDE_PATH=f"{library}/include",
        LIBRARY_PATH=f"{library}/lib",
        LDFLAGS=f"-Wl,-rpath,{library}/lib",
    )  # fmt: skip


def _run(command: list[str], folder: Path, **variables: str) -> None:
    subprocess.run(command, cwd=folder, env={**os.environ, **variables}, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    try:
        print(client_folder())
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"confluent-kafka with Kerberos can't be built here: {error}\napt-get install {NEEDED}")
