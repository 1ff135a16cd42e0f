"""`up`, `status` and `down` of the embedded stack, with its broker's real processes and crashes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import sys
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from sluice.embedded.env import load_env
from sluice.embedded.failure import StackError
from sluice.embedded.home import Home
from sluice.embedded.kafka_broker import EmbeddedBroker, broker_is_ready
from sluice.embedded.ports import HOST, free_port
from sluice.embedded.state import load_state
from sluice.embedded.status import Condition, stack_status

pytestmark = pytest.mark.system


def pid_of(home: Path, service: str = "kafka") -> int:
    return int(json.loads((home / "state.json").read_text())["services"][service]["process"]["pid"])


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie":
        time.sleep(0.05)


def test_up_status_down_and_each_of_them_twice(embedded, tmp_path):
    assert embedded("status").returncode == 3
    first = embedded("up", "--only", "kafka")
    assert first.returncode == 0, first.stderr
    assert re.search(r"next, in each shell: source \S*home/env$", first.stderr.rstrip()), first.stderr
    pid = pid_of(tmp_path / "home")
    env = load_env(tmp_path / "home")
    assert broker_is_ready(int(env["KAFKA_BOOTSTRAP_SERVERS"].rpartition(":")[2]))
    assert stat.S_IMODE((tmp_path / "home" / "env").stat().st_mode) == 0o600

    again = embedded("up", "--only", "kafka")
    assert again.returncode == 0
    assert "already running" in again.stderr
    assert pid_of(tmp_path / "home") == pid

    status = embedded("status")
    assert status.returncode == 0
    assert env["KAFKA_BOOTSTRAP_SERVERS"] in status.stdout

    down = embedded("down")
    assert "stopped: kafka" in down.stderr
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"
    assert "already stopped" in embedded("down").stderr
    assert embedded("status").returncode == 3
    a_recycled_process_id_is_left_alone(embedded, tmp_path / "home")


def a_recycled_process_id_is_left_alone(embedded, home):
    """Of a stack that was stopped, a service's id is somebody else's."""
    bystander = psutil.Popen(["sleep", "60"], start_new_session=True)
    state_file = home / "state.json"
    state = json.loads(state_file.read_text())
    state["services"]["kafka"] = {
        "process": {"pid": bystander.pid, "created": bystander.create_time() - 3600},
        "log": str(home / "logs" / "kafka.log"),
        "ready": True,
    }
    state_file.write_text(json.dumps(state))
    try:
        assert stack_status(Home(home)).condition is Condition.CRASHED
        assert embedded("down").returncode == 0
        assert bystander.is_running()
        assert bystander.status() != psutil.STATUS_ZOMBIE
    finally:
        bystander.kill()
        bystander.wait()


def test_two_stacks_side_by_side_end_only_their_own_and_what_a_killed_service_left_behind(embedded, tmp_path):
    for home in ("one", "two"):
        assert embedded("up", "--only", "kafka", home=home).returncode == 0
    servers = [load_env(tmp_path / home)["KAFKA_BOOTSTRAP_SERVERS"] for home in ("one", "two")]
    assert len(set(servers)) == 2
    mark = json.loads((tmp_path / "one" / "state.json").read_text())["mark"]
    orphan = psutil.Popen(["sleep", "60"], start_new_session=True, env={**os.environ, "SLUICE_STACK": mark})
    assert embedded("down", home="one").returncode == 0
    assert orphan.wait(5) is not None
    assert stack_status(Home(tmp_path / "one")).condition is Condition.STOPPED
    assert stack_status(Home(tmp_path / "two")).condition is Condition.RUNNING


def test_a_crash_is_named_and_the_next_up_starts_anew_on_the_same_port(embedded, tmp_path):
    assert embedded("up", "--only", "kafka").returncode == 0
    before = load_env(tmp_path / "home")["KAFKA_BOOTSTRAP_SERVERS"]
    pid = pid_of(tmp_path / "home")
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)

    status = embedded("status")
    assert status.returncode == 1
    assert f"process {pid} has ended" in status.stdout
    assert "kafka.log" in status.stdout

    up = embedded("up", "--only", "kafka")
    assert up.returncode == 0, up.stderr
    assert "what is left of an earlier start" in up.stderr
    assert load_env(tmp_path / "home")["KAFKA_BOOTSTRAP_SERVERS"] == before


def test_a_start_cut_off_half_way_is_told_and_cleared(embedded, tmp_path):
    starting = embedded("up", "--only", "kafka", wait=False)
    deadline = time.monotonic() + 60
    home = tmp_path / "home"
    while time.monotonic() < deadline:
        if (home / "state.json").exists() and load_state(Home(home)).services:
            break
        time.sleep(0.01)
    starting.kill()
    starting.wait()

    assert stack_status(Home(home)).condition is Condition.HALF
    half = embedded("status")
    assert half.returncode == 1
    assert "half-started" in half.stdout
    up = embedded("up", "--only", "kafka")
    assert up.returncode == 0, up.stderr
    assert "what is left of an earlier start" in up.stderr


def test_two_ups_at_once_start_one_broker(embedded, tmp_path):
    first = embedded("up", "--only", "kafka", wait=False)
    second = embedded("up", "--only", "kafka")
    assert first.wait(60) == 0
    assert second.returncode == 0, second.stderr
    brokers = [p for p in psutil.process_iter() if str(tmp_path / "home") in " ".join(_cmdline(p))]
    assert len(brokers) == 1


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_busy_port_is_named_with_its_holder(embedded):
    with socket.socket() as other:
        other.bind((HOST, free_port()))
        other.listen()
        port = other.getsockname()[1]
        up = embedded("up", "--only", "kafka", env={"SLUICE_KAFKA_PORT": str(port)})
    assert up.returncode == 1
    assert f"port {port} for kafka is in use by process {os.getpid()}" in up.stderr
    assert "SLUICE_KAFKA_PORT=" in up.stderr


def test_a_broker_that_dies_while_starting_says_why_at_once(tmp_path):
    with socket.socket() as other:
        other.bind((HOST, free_port()))
        other.listen()
        began = time.monotonic()
        with pytest.raises(StackError, match=r"ended with code 1 while starting(.|\n)*Address already in use"):
            EmbeddedBroker(tmp_path / "bad", port=other.getsockname()[1]).start()
        assert time.monotonic() - began < 30


def test_a_setting_that_kafka_refuses_is_named(tmp_path):
    with pytest.raises(StackError, match=r"could not format(.|\n)*compression\.type"):
        EmbeddedBroker(tmp_path / "bad", settings={"compression.type": "nonsense"}).start()


def test_a_brokers_records_survive_its_restart(tmp_path):
    broker = EmbeddedBroker(tmp_path / "broker")
    with broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(10)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
        producer.produce("kept", b"one")
        assert producer.flush(10) == 0
    assert broker.pid is None
    with broker:
        if sys.platform == "linux":
            # The first has left an archive of its classes.
            mapped = {Path(each.path).name for each in psutil.Process(broker.pid).memory_maps()}
            assert [name for name in mapped if name.startswith("kafka-") and name.endswith(".jsa")]
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["kept"])
        message = consumer.poll(20)
        consumer.close()
    assert message is not None
    assert message.value() == b"one"
