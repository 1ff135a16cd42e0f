"""A changed class path gets a new Spark home and class archive, and the old archive is removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from sluice.embedded import class_archive
from sluice.embedded.home import cache_folder
from sluice.embedded.java import find_java

pytestmark = pytest.mark.unit


def test_a_jar_of_another_date_gets_an_archive_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SPARK_HOME", raising=False)
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"PK")
    first = class_archive.spark_home(tmp_path, [jar])
    assert first and class_archive.spark_home(tmp_path, [str(jar)]) == first
    (first / class_archive.ARCHIVE).write_bytes(b"classes")
    gone = tmp_path / "spark-home-gone"
    gone.mkdir()
    (gone / "bin").symlink_to(tmp_path / "removed")
    os.utime(jar, (0, 0))
    second = class_archive.spark_home(tmp_path, [jar])
    assert second and second != first
    assert f"-XX:SharedArchiveFile={second / class_archive.ARCHIVE}" in class_archive.driver_archive_options(second)
    # A driver may still run from the first; its archive, which no JVM takes any more, is removed.
    assert (first / "jars").is_dir() and not (first / class_archive.ARCHIVE).exists()
    assert not gone.is_symlink() and not gone.exists()
    assert not list(tmp_path.glob("draft-*"))


def test_the_archive_of_a_folder_of_jars_goes_with_their_dates(tmp_path: Path):
    jars = tmp_path / "kafka-1"
    jars.mkdir()
    (jars / "a.jar").write_bytes(b"PK")
    (tmp_path / "kafka-2-other.jsa").write_bytes(b"of other jars")
    first = class_archive.archive_for_jars(jars)
    first.write_bytes(b"classes")
    assert class_archive.archive_for_jars(jars) == first and first.exists()
    assert f"-XX:SharedArchiveFile={first}" in class_archive.archive_options(first)
    os.utime(jars / "a.jar", (0, 0))
    assert class_archive.archive_for_jars(jars) != first and not first.exists()
    assert (tmp_path / "kafka-2-other.jsa").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="nobody, not even root, can make a folder in /proc")
def test_a_read_only_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert class_archive.spark_home(Path("/proc"), [tmp_path]) is None
    # A JVM that can't write the archive which it is asked for exits with 1, without a message.
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    java = find_java(cache_folder()).executable
    command = [
        java,
        *class_archive.driver_archive_options(Path("/proc")),
        "-cp",
        ivy,
        "org.apache.ivy.Main",
        "-version",
    ]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
