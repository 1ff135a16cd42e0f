"""The fields of Airflow connections become settings of confluent-kafka's clients."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sluice.kafka.connections import kafka_settings

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("host", "port", "servers"),
    [
        ("kafka", None, "kafka:9092"),
        ("kafka", 29092, "kafka:29092"),
        ("kafka:29092", None, "kafka:29092"),
        ("a:9093, b", 29092, "a:9093,b:29092"),
        ("[::1]:9093", None, "[::1]:9093"),
    ],
)
def test_hosts_may_have_ports_of_their_own(host: str, port: int | None, servers: str) -> None:
    given = SimpleNamespace(host=host, port=port, schema=None, login=None, password=None, extra_dejson={})
    assert kafka_settings(given) == {"bootstrap.servers": servers}


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        ({"sasl.mechanism": "PLAIN"}, ("sasl.username", "sasl.password")),
        (
            {"sasl.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc"},
            ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret"),
        ),
    ],
)
def test_login_and_password_are_those_of_the_mechanism(extra: dict[str, str], names: tuple[str, str]) -> None:
    given = SimpleNamespace(host="", port=None, schema=None, login="me", password="secret", extra_dejson=extra)
    assert kafka_settings(given) == {**extra, names[0]: "me", names[1]: "secret"}
    given.extra_dejson = {**extra, names[0]: "other", names[1]: "theirs"}
    assert kafka_settings(given) == given.extra_dejson
