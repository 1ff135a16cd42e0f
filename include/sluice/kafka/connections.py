"""What an Airflow connection says, as the settings of confluent-kafka's clients. Knows its fields, not Airflow.

And the catalog's name, which is no connection: PyIceberg's own configuration has the rest.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

KAFKA = "sluice_kafka"
REGISTRY = "sluice_registry"
OAUTH_CLIENT = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret")


class Connection(Protocol):
    """The fields of an Airflow connection that count."""

    host: str | None
    port: int | None
    schema: str | None
    login: str | None
    password: str | None

    @property
    def extra_dejson(self) -> dict[str, Any]:
        """Its extra, as JSON."""


def kafka_settings(connection: Connection) -> dict[str, Any]:
    """The librdkafka settings of a connection: its extra, with hosts and port as `bootstrap.servers`.

    The host may be several, with commas, each with a port of its own. Login and password are SASL's, or with
    OAUTHBEARER the client's id and secret.
    """
    settings = dict(connection.extra_dejson)
    if connection.host and "bootstrap.servers" not in settings:
        hosts = [host.strip() for host in connection.host.split(",") if host.strip()]
        port = connection.port or 9092
        named = (host if re.search(r":[0-9]+$", host) else f"{host}:{port}" for host in hosts)
        settings["bootstrap.servers"] = ",".join(named)
    oauth = (settings.get("sasl.mechanism") or settings.get("sasl.mechanisms")) == "OAUTHBEARER"
    user, secret = OAUTH_CLIENT if oauth else ("sasl.username", "sasl.password")
    if connection.login and user not in settings:
        settings |= {user: connection.login, secret: connection.password or ""}
    return settings


def registry_settings(connection: Connection) -> dict[str, Any]:
    """The schema registry's settings of a connection of type http: confluent-kafka's, the address as `url`."""
    settings = dict(connection.extra_dejson)
    if connection.host and "url" not in settings:
        # As Airflow's HTTP connections have it: the host may be a whole address, the schema is http or https.
        place = connection.host if "://" in connection.host else f"{connection.schema or 'http'}://{connection.host}"
        scheme, _, rest = place.partition("://")
        host, slash, path = rest.partition("/")
        port = f":{connection.port}" if connection.port else ""
        settings["url"] = f"{scheme}://{host}{port}{slash}{path}"
    if connection.login and "basic.auth.user.info" not in settings:
        settings["basic.auth.user.info"] = f"{connection.login}:{connection.password or ''}"
    return settings
