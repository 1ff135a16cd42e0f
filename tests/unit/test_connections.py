"""What a connection's fields become, as confluent-kafka's clients take it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sluice.connections import kafka_settings

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
