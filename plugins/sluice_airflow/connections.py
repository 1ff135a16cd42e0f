"""Connects a task to Kafka, the registry and the catalog, and turns errors into the right task state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import Connection

from sluice.contract import folder as contract_folder
from sluice.contract.folder import Contracts
from sluice.embedded.spark_master import DriverPlace
from sluice.errors import TerminalError
from sluice.iceberg import availability
from sluice.kafka import airflow_connections, connections
from sluice_airflow.sdk import AirflowFailException, AirflowNotFoundException

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyiceberg.catalog import Catalog

# Below the shortest timeout of the tasks.
CATALOG_TIMEOUT_S = 60.0

KAFKA_CONNECTION = connections.KAFKA_CONN_ID
REGISTRY_CONNECTION = connections.REGISTRY_CONN_ID


@contextmanager
def fail_with_message() -> Iterator[None]:
    """Turn errors into a task failure with the error and its next step.

    Raises:
        AirflowFailException: A terminal error; the task is not retried.
        RetryableError: A passing error; the task is retried if it has retries left.
    """
    try:
        with availability.translate_catalog_errors():
            yield
    except TerminalError as error:
        raise AirflowFailException(str(error)) from error


def open_catalog(client: AdminClient | None = None) -> tuple[Catalog, Contracts]:
    """Open the catalog, and resolve the contracts' topic patterns with staging, and with Kafka if a client is given.

    Raises:
        BrokerUnavailableError: Kafka did not answer.
        CatalogUnavailableError: The catalog did not answer in time.
        ConfigError: The catalog is not configured.
    """
    from sluice.plan import resolve_topics

    lake = availability.open_catalog(CATALOG_TIMEOUT_S)
    return lake, resolve_topics.resolve(contract_folder.load_contracts(strict=False), lake, client)


def kafka_client() -> AdminClient:
    """Make a client of the connection's cluster.

    Raises:
        ConfigError: No cluster is configured, or librdkafka rejects the settings.
    """
    from sluice.kafka import broker

    return broker.make_admin_client(kafka_config())


def kafka_config(connection: str = KAFKA_CONNECTION) -> dict[str, Any]:
    """Read the librdkafka settings of an Airflow connection; empty without one: the environment decides."""
    found = _get_connection(connection)
    return connections.kafka_settings(found) if found else {}


def export_kafka_config() -> None:
    """Set the connection's cluster for this process."""
    airflow_connections.take(airflow_connections.KAFKA, kafka_config())


def export_registry_config() -> None:
    """Set the registry of the connection for this process; contracts with `columns: auto` need it."""
    airflow_connections.take(airflow_connections.REGISTRY, registry_config())


def driver_places(names: Iterable[str]) -> dict[str, DriverPlace]:
    """Where those of these connections that exist have drivers run."""
    found = {name: _get_connection(name) for name in sorted(names)}
    return {name: DriverPlace(deploy_mode(c), c.conn_type, c.host, c.port) for name, c in found.items() if c}


def deploy_mode(connection: Connection) -> str:
    """The deploy mode of a connection to Spark."""
    return connection.extra_dejson.get("deploy-mode") or "client"


def registry_config(connection: str = REGISTRY_CONNECTION) -> dict[str, Any]:
    """Read the registry settings of an Airflow connection; empty without one: the environment decides."""
    found = _get_connection(connection)
    return connections.registry_settings(found) if found else {}


def _get_connection(connection: str) -> Connection | None:
    try:
        return Connection.get(connection)
    except AirflowNotFoundException:
        return None
