"""What a task asks: Kafka and the registry by Airflow's connections, and the catalog; and how it ends without them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

from sluice.contract import folder as contract_folder
from sluice.contract.folder import Contracts
from sluice.errors import TerminalError
from sluice.iceberg import availability
from sluice.kafka import connections

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyiceberg.catalog import Catalog

# For a task that nobody sits before; below the least timeout that one has.
PATIENCE_S = 60.0

KAFKA_CONNECTION = connections.KAFKA
REGISTRY_CONNECTION = connections.REGISTRY


@contextmanager
def errors_in_words() -> Iterator[None]:
    """End a task in one sentence: what did not answer or can't be, and the way out.

    Raises:
        AirflowFailException: somebody must act, and no further try helps.
        RetryableError: it may pass: the task is tried again, where it has tries left.
    """
    try:
        with availability.catalog_errors():
            yield
    except TerminalError as error:
        raise AirflowFailException(str(error)) from error


def open_lake(client: AdminClient | None = None) -> tuple[Catalog, Contracts]:
    """The catalog, and the contracts with the topics that were staged, and with those of Kafka where it is asked.

    Raises:
        BrokerUnavailableError: Kafka did not answer.
        CatalogUnavailableError: the catalog did not answer in time.
        ConfigError: it is not configured.
    """
    from sluice.plan import resolve_topics

    lake = availability.open_catalog(PATIENCE_S)
    return lake, resolve_topics.resolve(contract_folder.load(strict=False), lake, client)


def kafka_client() -> AdminClient:
    """A client of the cluster that the connection names.

    Raises:
        ConfigError: no cluster is configured, or librdkafka does not take the settings.
    """
    from sluice.kafka import broker

    return broker.admin(kafka_config())


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
