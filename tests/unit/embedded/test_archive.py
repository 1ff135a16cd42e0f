"""A changed class path gets a new Spark home and class archive, and the old archive is removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice.embedded import class_archive

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
