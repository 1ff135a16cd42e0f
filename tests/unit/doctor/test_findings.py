"""Checks run side by side with a time limit each, and no text shows a secret."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import pytest

from sluice.doctor import findings
from sluice.doctor.findings import Check, SkippedError, State
from sluice.doctor.secret_values import SecretValues
from sluice.errors import BrokerUnavailableError, ConfigError

pytestmark = pytest.mark.unit


def raising(error: Exception) -> Callable[[], str]:
    def run() -> str:
        raise error

    return run


def test_each_outcome_has_its_state_and_its_next_step_and_none_waits_for_another() -> None:
    never = threading.Event()
    checks = [
        Check("hangs", lambda: str(never.wait(60)), 0.4),
        Check("hangs too", lambda: str(never.wait(60)), 0.4),
        Check("well", lambda: "there", 5),
        Check("not here", raising(SkippedError("not installed")), 5),
        Check("wrong", raising(ConfigError("Wrong.", next_step="Correct it.", topic="t")), 5),
        Check("away", raising(BrokerUnavailableError("Away.")), 5),
        Check("late", raising(TimeoutError("not in time")), 5),
        Check("unforeseen", raising(KeyError("x\ny")), 5),
    ]
    began = time.monotonic()
    found = {each.check: each for each in findings.run_checks(checks, {})}
    assert time.monotonic() - began < 0.8  # not one after the other
    assert list(found) == [check.name for check in checks]
    assert {name: each.state for name, each in found.items()} == {
        "hangs": State.NO_ANSWER,
        "hangs too": State.NO_ANSWER,
        "well": State.OK,
        "not here": State.SKIPPED,
        "wrong": State.FAILED,
        "away": State.NO_ANSWER,
        "late": State.NO_ANSWER,
        "unforeseen": State.FAILED,
    }
    assert found["hangs"].text == "no answer within 0.4 s"
    assert (found["wrong"].text, found["wrong"].next_step) == ("Wrong. [topic t]", "Correct it.")
    assert all(each.next_step for each in found.values() if each.state in (State.FAILED, State.NO_ANSWER))


@pytest.mark.parametrize(
    ("states", "code"),
    [("ok skipped", 0), ("ok no_answer", 2), ("no_answer failed ok", 3), ("failed", 3), ("", 0)],
)
def test_the_exit_code_is_that_of_the_worst(states: str, code: int) -> None:
    found = [findings.Finding("c", State[name.upper()], "") for name in states.split()]
    assert findings.exit_code(found) == code
    assert findings.as_facts(found)["healthy"] is (code == 0)


def test_no_text_shows_a_secret() -> None:
    environment = {
        "PYICEBERG_CATALOG__LAKE__URI": "postgresql+psycopg2://user:pa%40ss-word@host/db",
        "PYICEBERG_CATALOG__LAKE__S3__SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
        "SLUICE_KAFKA_CONFIG": json.dumps({"bootstrap.servers": "h:9092", "sasl.password": "kafka-pass"}),
        "AIRFLOW_CONN_SLUICE_KAFKA": "kafka://me:airflow-pass@host",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "password": "spark-pass"}),
        "SLUICE_MASK_KEY": "mask-pass",
        "LAKE_TOKEN": "abc",  # too short to look for
        "PATH": "/usr/bin",
    }
    secrets = SecretValues.from_environment(environment)
    quoted = "pa%40ss-word pa@ss-word wJalrXUtnFEMI kafka-pass kafka://me:airflow-pass@host h:9092 /usr/bin"
    hidden = secrets.hide(quoted)
    assert hidden == "… … … … … h:9092 /usr/bin"
    assert secrets.hide("spark_default spark-pass mask-pass") == "spark_default … …"
    assert secrets.hide("no host https://bob:hunter22@example.org/x") == "no host https://…@example.org/x"
    check = Check("c", raising(ConfigError("login as kafka-pass", next_step="not airflow-pass")), 5)
    (found,) = findings.run_checks([check], environment)
    assert (found.text, found.next_step) == ("login as …", "not …")

    def late() -> str:
        environment["SLUICE_REGISTRY_CONFIG"] = json.dumps({"basic.auth.user.info": "me:late-pass"})
        return "login as me:late-pass"

    (found,) = findings.run_checks([Check("c", late, 5)], environment)
    assert found.text == "login as …"
