"""Airflow's connections to Kafka and to the schema registry, as the settings of confluent-kafka's clients."""

from __future__ import annotations

import json
import os
from typing import Any

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from sluice import connections

KAFKA_CONNECTION = connections.KAFKA
REGISTRY_CONNECTION = connections.REGISTRY


def kafka_config(connection: str = KAFKA_CONNECTION) -> dict[str, Any]:
    """The librdkafka settings of an Airflow connection; nothing where there is none: then the environment decides."""
    found = _found(connection)
    return connections.kafka_settings(found) if found else {}


def use_registry() -> None:
    """Let this task's process ask the registry of the connection, for contracts with `columns: auto`."""
    if settings := registry_config():
        os.environ["SLUICE_REGISTRY_CONFIG"] = json.dumps(settings)


def registry_config(connection: str = REGISTRY_CONNECTION) -> dict[str, Any]:
    """The registry's settings of an Airflow connection; nothing where there is none: then the environment decides."""
    found = _found(connection)
    return connections.registry_settings(found) if found else {}


def _found(connection: str) -> Connection | None:
    try:
        return Connection.get(connection)
    except AirflowNotFoundException:
        return None
