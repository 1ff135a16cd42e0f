"""Airflow connections as settings of confluent-kafka's clients, without importing Airflow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

KAFKA_CONN_ID = "sluice_kafka"
REGISTRY_CONN_ID = "sluice_registry"
OAUTH_CLIENT = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret")


class Connection(Protocol):
    """The fields of an Airflow connection that are read."""

    host: str | None
    port: int | None
    schema: str | None
    login: str | None
    password: str | None

    @property
    def extra_dejson(self) -> dict[str, Any]:
        """Its extra, parsed from JSON."""


def kafka_settings(connection: Connection) -> dict[str, Any]:
    """Return the librdkafka settings of a connection: its extra, with host and port as `bootstrap.servers`.

    The host may list several, separated by commas, each with a port. Login and password become SASL user and password,
    or with OAUTHBEARER the client's id and secret.
    """
    settings = dict(connection.extra_dejson)
    if connection.host and "bootstrap.servers" not in settings:
        hosts = [host.strip() for host in connection.host.split(",") if host.strip()]
        port = connection.port or 9092
        servers = (host if re.search(r":[0-9]+$", host) else f"{host}:{port}" for host in hosts)
        settings["bootstrap.servers"] = ",".join(servers)
    user, secret = OAUTH_CLIENT if sasl_mechanism(settings) == "OAUTHBEARER" else ("sasl.username", "sasl.password")
    if connection.login and user not in settings:
        settings |= {user: connection.login, secret: connection.password or ""}
    return settings


def sasl_mechanism(settings: Mapping[str, Any]) -> str:
    """Return the mechanism that librdkafka uses, by default Kerberos; empty if it does not log in."""
    given = settings.get("sasl.mechanism") or settings.get("sasl.mechanisms")
    secured = str(settings.get("security.protocol", "")).upper().startswith("SASL")
    return str(given) if given else "GSSAPI" if secured else ""


def registry_settings(connection: Connection) -> dict[str, Any]:
    """Return the registry client's settings of a connection of type http: its extra, with the address as `url`."""
    settings = dict(connection.extra_dejson)
    if connection.host and "url" not in settings:
        # As in Airflow's HTTP connections the host may be a whole URL, and the schema is http or https.
        url = connection.host if "://" in connection.host else f"{connection.schema or 'http'}://{connection.host}"
        scheme, _, rest = url.partition("://")
        host, slash, path = rest.partition("/")
        port = f":{connection.port}" if connection.port else ""
        settings["url"] = f"{scheme}://{host}{port}{slash}{path}"
    if connection.login and "basic.auth.user.info" not in settings:
        settings["basic.auth.user.info"] = f"{connection.login}:{connection.password or ''}"
    return settings
