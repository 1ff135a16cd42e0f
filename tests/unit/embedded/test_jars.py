"""Pinned jars are fetched with Ivy from a local repository; damaged, missing and wrong files are detected."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from pathlib import Path

import pytest

from sluice.embedded import jars, relock
from sluice.embedded.failure import StackError
from sluice.embedded.home import cache_folder
from sluice.embedded.ivy import Coordinate, proxy_options
from sluice.embedded.java import Java, find_java

pytestmark = pytest.mark.unit

ONE, TWO = Coordinate("org.one", "first", "1.0"), Coordinate("org.two", "second", "2.0")


@pytest.fixture
def java() -> Java:
    return find_java(cache_folder())


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven repository in a folder, and the Ivy settings that name it."""
    root = tmp_path / "repository"
    for each in (ONE, TWO):
        place = root / each.org.replace(".", "/") / each.name / each.rev
        place.mkdir(parents=True)
        with zipfile.ZipFile(place / each.filename, "w") as jar:
            jar.writestr("content", str(each))
        (place / f"{each.name}-{each.rev}.pom").write_text(
            f"<project><modelVersion>4.0.0</modelVersion><groupId>{each.org}</groupId>"
            f"<artifactId>{each.name}</artifactId><version>{each.rev}</version></project>"
        )
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="folder"/><resolvers>'
        f'<ibiblio name="folder" m2compatible="true" root="{root.as_uri()}/"/></resolvers></ivysettings>'
    )
    monkeypatch.setenv("SLUICE_IVY_SETTINGS", str(settings))
    return root


def jar_in(repository: Path, each: Coordinate) -> Path:
    return repository / each.org.replace(".", "/") / each.name / each.rev / each.filename


def pins(repository: Path) -> dict[str, dict[Coordinate, str]]:
    return {"set": {each: hashlib.sha256(jar_in(repository, each).read_bytes()).hexdigest() for each in (ONE, TWO)}}


def test_fetches_once_and_then_needs_no_repository(tmp_path, repository, java, capsys):
    lock = pins(repository)
    folder = jars.ensure_jars("set", lock=lock, cache=tmp_path, java=java)
    assert sorted(path.name for path in folder.iterdir()) == ["first-1.0.jar", "second-2.0.jar"]
    assert "2 of the set set verified" in capsys.readouterr().err
    shutil.rmtree(repository)
    assert jars.ensure_jars("set", lock=lock, cache=tmp_path, java=java) == folder
    assert capsys.readouterr().err == ""


def test_only_a_damaged_jar_is_fetched_again_and_strangers_are_removed(tmp_path, repository, java, capsys):
    lock = pins(repository)
    folder = jars.ensure_jars("set", lock=lock, cache=tmp_path, java=java)
    (folder / TWO.filename).write_bytes(b"half of a jar")
    (folder / "stranger-9.jar").write_bytes(b"")
    shutil.rmtree(jar_in(repository, ONE).parent)
    capsys.readouterr()
    jars.ensure_jars("set", lock=lock, cache=tmp_path, java=java)
    said = capsys.readouterr().err
    assert "second-2.0.jar is damaged" in said
    assert "fetching 1 of the set" in said
    assert sorted(path.name for path in folder.iterdir()) == ["first-1.0.jar", "second-2.0.jar"]


def test_another_file_than_the_lock_names_is_refused_and_not_kept(tmp_path, repository, java):
    lock = pins(repository)
    original = jar_in(repository, TWO).read_bytes()
    jar_in(repository, TWO).write_bytes(b"something else")
    got = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(StackError) as caught:
        jars.ensure_jars("set", lock=lock, cache=tmp_path, java=java)
    assert all(part in str(caught.value) for part in ("org.two:second:2.0", lock["set"][TWO], got, "Next step"))
    assert not list(tmp_path.rglob("jars/*/second-2.0.jar"))
    jar_in(repository, TWO).write_bytes(original)
    assert (jars.ensure_jars("set", lock=lock, cache=tmp_path, java=java) / TWO.filename).read_bytes() == original


def test_what_arrived_before_a_failure_is_not_fetched_again(tmp_path, repository, java):
    lock = pins(repository)
    hidden = repository.with_name("hidden")
    shutil.move(jar_in(repository, TWO).parent, hidden)
    with pytest.raises(StackError, match=r"could not fetch .*org\.two:second:2\.0") as caught:
        jars.ensure_jars("set", lock=lock, cache=tmp_path, java=java)
    assert "try again" in caught.value.next_step
    shutil.move(hidden, jar_in(repository, TWO).parent)
    shutil.rmtree(jar_in(repository, ONE).parent)
    assert len(list(jars.ensure_jars("set", lock=lock, cache=tmp_path, java=java).iterdir())) == 2


def test_the_lock_holds_what_the_sets_ask_for():
    lock = jars.read_lock()
    assert set(lock) == set(relock.SETS)
    for name, asked in relock.SETS.items():
        wanted = {Coordinate.parse(each) for each in asked.coordinates}
        assert wanted <= set(lock[name])
        assert asked.transitive or wanted == set(lock[name])


@pytest.mark.parametrize("text", ["[spark]\nx", '[spark]\n"a:b:c" = "12"', f'[spark]\n"a:b" = "{"0" * 64}"'])
def test_a_broken_lock_is_named(tmp_path, text):
    path = tmp_path / "jars.lock"
    path.write_text(text)
    with pytest.raises(StackError):
        jars.read_lock(path)


def test_the_environments_proxy_reaches_java(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://gateway:3128")
    monkeypatch.setenv("no_proxy", "localhost,.inside")
    assert proxy_options() == [
        "-Dhttps.proxyHost=gateway",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|*.inside",
    ]


def test_sparks_jars_and_those_of_a_cloud_are_in_one_folder(tmp_path, repository, java):
    (one, first), (two, second) = pins(repository)["set"].items()
    lock = {"spark": {one: first}, "aws": {two: second}}
    folder = jars.ensure_spark_jars(["s3", "glue"], lock=lock, cache=tmp_path)
    assert {path.name for path in folder.iterdir()} == {one.filename, two.filename}
    lock = {"spark": {one: first}, "aws": {}, "msk": {two: second}}
    assert jars.ensure_spark_jars(["msk"], lock=lock, cache=tmp_path) == folder
    lock = {"spark": {one: first}, "aws": {two: second}}
    lock["aws"][two] = "0" * 64
    with pytest.raises(StackError, match="checksum mismatch"):
        jars.ensure_spark_jars(["s3"], lock=lock, cache=tmp_path)
    with pytest.raises(StackError, match="no jars for 'gce'"):
        jars.ensure_spark_jars(["gce"], lock=lock, cache=tmp_path)
    with pytest.raises(StackError, match="iceberg-gcp-bundle, is not pinned"):
        jars.ensure_spark_jars(["gcs"], lock=lock, cache=tmp_path)


def test_each_cloud_has_its_set_of_icebergs_version():
    lock = jars.read_lock()
    (iceberg,) = [each for each in lock[jars.SPARK] if each.name.startswith("iceberg-spark-runtime")]
    for sets in jars.CLOUDS.values():
        bundles = [each.rev for name in sets for each in lock[name] if each.name.startswith("iceberg-")]
        assert bundles == [iceberg.rev], sets
