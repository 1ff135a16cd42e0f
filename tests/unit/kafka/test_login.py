"""Authentication failures of Kafka's clients are raised at once; spark/kafka/test_secured.py has a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.embedded.ports import HOST
from sluice.errors import BrokerUnavailableError, ConfigError
from sluice.kafka import broker, login
from tests.support.services.oidc import TokenProvider
from tests.support.services.tls_proxy import make_ca

pytestmark = pytest.mark.unit

NOBODY = f"{HOST}:1"


def by_token(**more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": NOBODY,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "sluice",
        "sasl.oauthbearer.client.secret": "s3cr3t",
        "sasl.oauthbearer.token.endpoint.url": f"https://{NOBODY}/token",
        **more,
    }


@pytest.mark.parametrize("named", [{}, {"https.ca.location": "probe"}, {"https.ca.location": ""}])
def test_the_token_endpoint_is_known_by_the_machines_own_cas_where_none_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: dict[str, str]
) -> None:
    ca, own = make_ca(tmp_path, "provider")
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))
    with TokenProvider(own, "sluice", "s3cr3t", "reader") as provider:
        config = by_token(**named, **{"sasl.oauthbearer.token.endpoint.url": provider.tokens})
        client = broker.make_admin_client(config)
        until = time.monotonic() + 10
        while not provider.granted and time.monotonic() < until:
            client.poll(0.05)
        assert provider.granted, login.login_error(client)


def test_authorities_that_are_named_stay_and_others_than_oidc_need_none() -> None:
    for config in (by_token(**{"https.ca.pem": "CA"}), by_token(**{"https.ca.location": "/my/ca.pem"}), {"a": 1}):
        assert login.with_system_cas(config) == config


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ("wr0ng", "Login to Kafka failed: .*invalid_client.* sasl.oauthbearer.client.id, .client.secret"),
        ("s3cr3t", "^Kafka.* did not answer"),
        (None, "Login to Kafka failed: .*Could not connect.* check that .token.endpoint.url answers"),
    ],
)
def test_what_the_identity_provider_says_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str | None, said: str
) -> None:
    monkeypatch.setattr(login, "GRACE_S", 0.1)
    monkeypatch.setattr(broker, "TIMEOUT_S", 0.5)
    ca, own = make_ca(tmp_path, "provider")
    with TokenProvider(own, "sluice", "s3cr3t", "reader") as provider:
        there = {"sasl.oauthbearer.client.secret": secret, "sasl.oauthbearer.token.endpoint.url": provider.tokens}
        config = by_token(**{"https.ca.location": str(ca)}, **(there if secret else {}))
        client = broker.make_admin_client(config)
        asks: tuple[Callable[[], object], ...] = (
            lambda: broker.describe_topics(client, ["t"]),
            lambda: broker.list_topic_names(client),
            lambda: broker.connect(0.5, config),
        )
        for ask in asks:
            with pytest.raises(BrokerUnavailableError, match=said) as told:
                ask()
            assert "s3cr3t" not in str(told.value) and "wr0ng" not in str(told.value)


def test_settings_that_the_client_does_not_take() -> None:
    with pytest.raises(ConfigError, match=r"`sasl.oauthbearer.client.id` is mandatory .*sluice_kafka"):
        broker.make_admin_client({k: v for k, v in by_token().items() if k != "sasl.oauthbearer.client.id"})


KAFKA = "org.apache.kafka.common."
LOGIN = "javax.security.auth.login.LoginException: "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"Caused by: {KAFKA}errors.SaslAuthenticationException: Wrong password\n\tat a.b", ": Wrong password."),
        (
            f"{KAFKA}KafkaException: {LOGIN}java.io.IOException: The response code 401\n\tat",
            ": The response code 401.",
        ),
        (f"{KAFKA}KafkaException: {LOGIN}An internal error\n\tat", ": An internal error."),
        (f"org.apache.hadoop.security.KerberosAuthException: {LOGIN}no ticket", None),
        ("java.lang.ArithmeticException: long overflow", None),
    ],
)
def test_what_java_says_of_it_is_found_in_sparks_error(text: str, said: str | None) -> None:
    found = login.login_error_from_spark(Exception(f"An error occurred while calling o1.append.\n: {text}"))
    assert (found and found.message) == (said and f"Login to Kafka failed{said}")


@pytest.mark.parametrize(
    "text",
    [
        "Invalid value software.amazon.msk.auth.iam.IAMClientCallbackHandler for configuration sasl.client.callback."
        "handler.class: Class software.amazon.msk.auth.iam.IAMClientCallbackHandler could not be found.",
        "java.lang.NoClassDefFoundError: software/amazon/awssdk/auth/credentials/AwsCredentialsProvider",
    ],
)
def test_a_missing_jar_of_aws_msk_iam_is_named_with_its_set(text: str) -> None:
    found = login.login_error_from_spark(Exception(f"An error occurred while calling o1.append.\n: {text}"))
    assert isinstance(found, ConfigError)
    assert "make jars SET=msk" in str(found)
