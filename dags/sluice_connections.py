"""Airflow's connections to Kafka and to the schema registry, as the settings of confluent-kafka's clients."""

from __future__ import annotations

import json
import os
from typing import Any

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

KAFKA_CONNECTION = "sluice_kafka"
REGISTRY_CONNECTION = "sluice_registry"


def kafka_config(connection: str = KAFKA_CONNECTION) -> dict[str, Any]:
    """The librdkafka settings of an Airflow connection: its extra, with host and port as `bootstrap.servers`.

    Returns:
        Nothing where there is no such connection: then the environment decides.
    """
    if (found := _found(connection)) is None:
        return {}
    settings = dict(found.extra_dejson)
    if found.host and "bootstrap.servers" not in settings:
        settings["bootstrap.servers"] = f"{found.host}:{found.port or 9092}"
    if found.login and "sasl.username" not in settings:
        settings |= {"sasl.username": found.login, "sasl.password": found.password or ""}
    return settings


def use_registry() -> None:
    """Let this task's process ask the registry of the connection, for contracts with `columns: auto`."""
    if settings := registry_config():
        os.environ["SLUICE_REGISTRY_CONFIG"] = json.dumps(settings)


def registry_config(connection: str = REGISTRY_CONNECTION) -> dict[str, Any]:
    """The schema registry's settings of an Airflow connection of type http: confluent-kafka's, the address as `url`.

    Returns:
        Nothing where there is no such connection: then the environment decides.
    """
    if (found := _found(connection)) is None:
        return {}
    settings = dict(found.extra_dejson)
    if found.host and "url" not in settings:
        # As Airflow's HTTP connections have it: the host may be a whole address, the schema is http or https.
        place = found.host if "://" in found.host else f"{found.schema or 'http'}://{found.host}"
        scheme, _, rest = place.partition("://")
        host, slash, path = rest.partition("/")
        settings["url"] = f"{scheme}://{host}{f':{found.port}' if found.port else ''}{slash}{path}"
    if found.login and "basic.auth.user.info" not in settings:
        settings["basic.auth.user.info"] = f"{found.login}:{found.password or ''}"
    return settings


def _found(connection: str) -> Connection | None:
    try:
        return Connection.get(connection)
    except AirflowNotFoundException:
        return None
