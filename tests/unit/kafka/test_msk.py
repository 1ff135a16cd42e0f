"""Kafka's log-in AWS_MSK_IAM: settings of both clients, and tokens that AWS's own signer makes without a network."""

from __future__ import annotations

import base64
import json
import pickle
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from sluice.embedded.ports import HOST
from sluice.errors import BrokerRefusedError, ConfigError
from sluice.kafka import broker, connections, java_settings, login, msk

pytestmark = pytest.mark.unit

SERVERS = "b-1.demo.abc123.c2.kafka.eu-central-1.amazonaws.com:9098"
GIVEN = {"bootstrap.servers": SERVERS, "security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM"}
NOBODY = {**GIVEN, "bootstrap.servers": f"{HOST}:1"}
SECRET = "wJalrXUtnFEMI/K7MDENG"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": "session"}


@pytest.fixture(autouse=True)
def _no_aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*KEYS, "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**KEYS, "AWS_REGION": "eu-west-1"}.items():
        monkeypatch.setenv(name, value)


def decode(token: str) -> tuple[str, dict[str, str]]:
    """A token's host and its query."""
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    return url.netloc, {name: values[0] for name, values in parse_qs(url.query).items()}


def test_spark_gets_the_settings_of_awss_documentation() -> None:
    given = SimpleNamespace(host=SERVERS, port=None, schema=None, login=None, password=None, extra_dejson=GIVEN)
    assert java_settings.spark_options(connections.kafka_settings(given)) == {
        "kafka.bootstrap.servers": SERVERS,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "AWS_MSK_IAM",
        "kafka.sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
        "kafka.sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    }


@pytest.mark.usefixtures("_keys")
def test_librdkafka_gets_tokens_of_awss_signer() -> None:
    given = {**GIVEN, "client.id": "me", "ssl.ca.location": "probe"}
    settings = login.client_settings(given)
    token, expires = settings.pop("oauth_cb")(None)
    assert settings == {
        "bootstrap.servers": SERVERS,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "client.id": "me",
        "ssl.ca.location": "probe",
    }
    host, query = decode(token)
    assert host == "kafka.eu-central-1.amazonaws.com"
    assert query["Action"] == "kafka-cluster:Connect"
    assert query["X-Amz-Expires"] == "900"
    assert query["X-Amz-Credential"].startswith("AKIDEXAMPLE/")
    assert query["X-Amz-Credential"].endswith("/eu-central-1/kafka-cluster/aws4_request")
    assert query["X-Amz-Security-Token"] == "session"
    assert 800 < expires - time.time() <= 900
    assert SECRET not in json.dumps([query, settings])


@pytest.mark.usefixtures("_keys")
def test_the_client_gets_its_tokens_without_a_poll() -> None:
    client = broker.make_admin_client(NOBODY)  # waits for a token, and fails without one
    assert login.login_error(client) is None
    login.make_consumer(client, {"group.id": "none"}).close()


@pytest.mark.usefixtures("_keys")
def test_a_later_token_that_cannot_be_made_is_reported_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    made = MSKAuthTokenProvider.generate_auth_token
    # librdkafka asks for the next one when four fifths of the time have passed.
    monkeypatch.setattr(
        MSKAuthTokenProvider, "generate_auth_token", lambda region: (made(region)[0], (time.time() + 2) * 1000)
    )
    client = broker.make_admin_client(NOBODY)
    monkeypatch.setattr(MSKAuthTokenProvider, "generate_auth_token", made)
    for name in KEYS:
        monkeypatch.delenv(name)
    until = time.monotonic() + 20
    while (error := login.login_error(client)) is None and time.monotonic() < until:
        time.sleep(0.1)
    assert error is not None
    assert "no AWS credentials were found" in error.message


def test_without_credentials_it_fails_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(BrokerRefusedError, match="no AWS credentials were found") as refused:
        broker.make_admin_client(GIVEN)
    assert "AWS_PROFILE" in (refused.value.next_step or "")
    assert time.monotonic() - began < 5


def test_a_profile_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(BrokerRefusedError, match=r"ProfileNotFound: .*nobody"):
        login.client_settings(GIVEN)


@pytest.mark.parametrize(
    ("servers", "variables", "region"),
    [
        (SERVERS, {"AWS_REGION": "us-east-1"}, "eu-central-1"),
        ("boot-x1.c2.kafka-serverless.us-east-2.amazonaws.com:9098", {}, "us-east-2"),
        ("b-1.demo.a.c2.kafka.cn-north-1.amazonaws.com.cn:9098", {}, "cn-north-1"),
        ("kafka.inside:9098", {"AWS_REGION": "us-east-1"}, "us-east-1"),
    ],
)
def test_the_region_is_that_of_the_brokers_or_awss_variable(
    servers: str, variables: dict[str, str], region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert msk.find_region({**GIVEN, "bootstrap.servers": servers}) == region


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"security.protocol": "SASL_PLAINTEXT"}, "AWS_MSK_IAM needs security.protocol SASL_SSL, not SASL_PLAINTEXT"),
        ({"sasl.jaas.config": "x"}, "sasl.jaas.config has no effect with sasl.mechanism AWS_MSK_IAM"),
        ({"sasl.username": "AKID", "sasl.password": SECRET}, "sasl.password, sasl.username has no effect"),
        ({"bootstrap.servers": "kafka.inside:9098"}, "Set the variable AWS_REGION"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(more: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        login.client_settings({**GIVEN, **more})
    assert SECRET not in str(refused.value)


def test_a_missing_signer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(ConfigError, match="pip install aws-msk-iam-sasl-signer-python"):
        broker.make_admin_client(GIVEN)


def test_executors_receive_settings_without_keys() -> None:
    sent: dict[str, Any] = java_settings.inline_certificates(GIVEN)
    assert pickle.loads(pickle.dumps(sent)) == GIVEN
