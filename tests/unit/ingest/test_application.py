"""A Spark application's exit code tells Airflow whether a retry can help."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from sluice.errors import BrokerUnavailableError, RefusedError
from sluice.ingest import application, session

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def own_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job has its process's log to itself, a test has not."""
    monkeypatch.setattr(session, "log_to_stdout", lambda: None)


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (BrokerUnavailableError("Kafka did not answer."), 2, "Kafka did not answer. Next step: "),
        # What the catalog's client raises, whatever that is.
        (requests.ConnectionError("refused"), 2, "The Iceberg catalog did not answer: ConnectionError: refused"),
        (TimeoutError("10 s"), 2, "The Iceberg catalog did not answer: TimeoutError"),
        (RefusedError("No reason is given."), 3, "No reason is given."),
    ],
)
def test_what_somebody_must_act_on_is_told_from_what_may_pass(
    error: Exception, code: int, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    def main(argv: list[str] | None = None) -> int:
        raise error

    assert application.as_job(main)([]) == code
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()[: len(says)]) == (logging.ERROR, says)


def test_a_job_says_itself_how_it_ended_and_a_bug_is_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert application.as_job(lambda argv: len(argv or ()))(["a", "b"]) == 2
    assert caplog.messages[-1].startswith("done after ")

    @application.as_job
    def broken(argv: list[str] | None = None) -> int:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        broken()


def test_a_driver_ends_with_the_jvm_that_started_it(tmp_path: Path) -> None:
    """As after a task's timeout: Airflow kills spark-submit's JVM alone."""
    told = tmp_path / "pid"
    driver = (
        "import os, pathlib, time\nfrom sluice.ingest import application\n"
        f"write = pathlib.Path({str(told)!r}).write_text\n"
        "application.as_job(lambda argv: write(str(os.getpid())) and time.sleep(60))([])"
    )
    jvm = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    env = {**os.environ, "PYSPARK_GATEWAY_PORT": "1"}
    with subprocess.Popen([sys.executable, "-c", jvm, driver], env=env, stdout=subprocess.DEVNULL) as stands_in:
        until = time.monotonic() + 60
        while not (told.exists() and told.read_text()):
            assert time.monotonic() < until
            time.sleep(0.1)
        stands_in.send_signal(signal.SIGKILL)
    pid = int(told.read_text())
    until = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < until, "the driver lives on"
        time.sleep(0.1)


def test_a_log_record_is_one_record_whatever_it_quotes() -> None:
    record = logging.LogRecord("x", logging.ERROR, "", 0, "no field %s", ("a\x1b[2J\nERROR sluice done",), None)
    shown = session._OneRecord("%(levelname)s sluice %(message)s").format(record)
    assert shown == "ERROR sluice no field a\\x1b[2J\n  ERROR sluice done"
