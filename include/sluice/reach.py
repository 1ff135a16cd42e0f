"""Ask Kafka and the catalog with patience that ends, and say in one sentence when they do not answer.

For the command line; the steps of a run have patience of their own. And tell one table's failure from the catalog's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from sluice.errors import (
    BrokerUnavailableError,
    CatalogUnavailableError,
    SluiceError,
    TableUnavailableError,
    first_line,
)

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

log = logging.getLogger(__name__)

Result = TypeVar("Result")

PATIENCE_S = 10.0
AGAIN_S = 30.0
# Questions without an answer yet, maybe for ever, and since when they are not waited for: each holds a connection.
_hanging: list[tuple[threading.Thread, float]] = []
_lock = threading.Lock()

# Whose exceptions mean that the catalog, or the storage below it, did not do what was asked.
_OUTSIDE = ("sqlalchemy", "sqlite3", "requests", "urllib3", "pyiceberg", "pyarrow", "botocore", "thrift")


def alone(catalog: Catalog, step: Callable[[], Result], **about: str) -> Result:
    """Run what concerns one table, or one topic's staging, so that its failure is its own and stops no other.

    What fails though the catalog answers is tried once more: a connection may have been lost.

    Raises:
        SluiceError: as `step`.
        TableUnavailableError: it failed otherwise, twice, and the catalog answers. Where it does not: what it raises.
    """
    for last in (False, True):
        try:
            return step()
        except SluiceError:
            raise
        except Exception as error:
            log.info("%s: %s", about, error, exc_info=True)
            catalog.list_namespaces()
            if last:
                raise TableUnavailableError(f"What is asked of it fails: {first_line(error)}.", **about) from error
    raise AssertionError("unreachable")


def within(seconds: float, step: Callable[[], Result]) -> Result:
    """Run `step` and give up on it after so many seconds; what it then still does is no longer waited for.

    While some still do, the next is not begun before as many times `AGAIN_S` have passed as there are of them: whoever
    asks for days, as the pages do, has some hundred threads and connections at most, and asks again all the same.

    Raises:
        TimeoutError: it took longer, or has not begun.
    """
    with _lock:
        _hanging[:] = [each for each in _hanging if each[0].is_alive()]
        if _hanging and time.monotonic() - _hanging[-1][1] < AGAIN_S * len(_hanging):
            raise TimeoutError(f"{len(_hanging)} earlier questions are without an answer yet")
    done: list[Result] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            done.append(step())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        with _lock:
            _hanging.append((thread, time.monotonic()))
        raise TimeoutError(f"no answer within {seconds:g} s")
    return done[0]


@contextmanager
def catalog_errors() -> Iterator[None]:
    """Turn what the catalog's client and the storage raise into `CatalogUnavailableError`; our own errors pass.

    Raises:
        CatalogUnavailableError: with the first line of the cause.
    """
    try:
        yield
    except SluiceError:
        raise
    except Exception as error:
        if isinstance(error, OSError | TimeoutError) or type(error).__module__.split(".")[0] in _OUTSIDE:
            raise CatalogUnavailableError(f"The Iceberg catalog did not answer: {first_line(error)}") from error
        raise


def open_catalog(seconds: float = PATIENCE_S) -> Catalog:
    """The catalog, after it has answered a first question.

    Raises:
        CatalogUnavailableError: it did not answer in time.
        ConfigError: it is not configured.
    """
    from sluice import catalog

    until = time.monotonic() + seconds

    def ask() -> Catalog:
        opened = catalog.load()
        try:
            opened.list_namespaces()
            if time.monotonic() > until:  # nobody waits for it any more, nor would close it
                raise TimeoutError(f"no answer within {seconds:g} s")
        except BaseException:
            opened.close()
            raise
        return opened

    with catalog_errors():
        return within(seconds, ask)


def existing_ledger_table(catalog: Catalog) -> Table | None:
    """The ledger's table where there is one: looking must not create it."""
    from sluice import tables

    with catalog_errors():
        return tables.load(catalog, tables.LEDGER)


def open_broker(seconds: float = PATIENCE_S, settings: Mapping[str, Any] | None = None) -> AdminClient:
    """A client of the Kafka cluster, after it has answered a first question.

    Args:
        seconds: how long to wait.
        settings: librdkafka's; those of the environment when left out.

    Raises:
        BrokerUnavailableError: no broker answered in time, or let us in.
        ConfigError: no cluster is configured.
    """
    from confluent_kafka import KafkaException

    from sluice import broker, login

    config = broker.client_config(settings)
    client = broker.admin(config)
    try:
        login.answer(client, client.describe_cluster(request_timeout=seconds))
    except KafkaException as error:
        raise login.refusal(client) or BrokerUnavailableError(
            f"Kafka at {config.get('bootstrap.servers', 'an unnamed address')} did not answer within {seconds:g} s: "
            f"{error.args[0].str()}."
        ) from error
    return client
