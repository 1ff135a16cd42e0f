"""Open the catalog with a time limit, and separate a failure of the catalog from a failure of one table.

DAG files import this module, so PyIceberg is imported only when the catalog is opened.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sluice import timeouts
from sluice.errors import CatalogUnavailableError, SluiceError, TableUnavailableError, first_line
from sluice.timeouts import DEFAULT_TIMEOUT_S, Result

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

log = logging.getLogger(__name__)

# Libraries whose exceptions mean that the catalog or its storage failed.
_CLIENT_LIBRARIES = ("sqlalchemy", "sqlite3", "requests", "urllib3", "pyiceberg", "pyarrow", "botocore", "thrift")


def isolate_table_failure(catalog: Catalog, step: Callable[[], Result], **about: str) -> Result:
    """Run a step that concerns one table (or one topic's staging), so that its failure stops no other table.

    If the step fails while the catalog answers, it runs once more: a connection may have been lost.

    Args:
        catalog: asked after a failure; what it raises is passed on.
        step: what to run.
        about: fields of the error, such as `table`.

    Raises:
        SluiceError: as raised by `step`.
        TableUnavailableError: the step failed twice with another error, and the catalog answers.
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
                raise TableUnavailableError(
                    f"A catalog or storage operation on it fails: {first_line(error)}.", **about
                ) from error
    raise AssertionError("unreachable")


@contextmanager
def translate_catalog_errors() -> Iterator[None]:
    """Turn exceptions of the catalog's client and the storage into errors with a next step.

    Raises:
        CatalogUnavailableError: with the first line of the cause, or why the catalog's SQLite file cannot be opened.
        SluiceError: unchanged.
    """
    try:
        yield
    except SluiceError:
        raise
    except Exception as error:
        library = type(error).__module__.split(".")[0]
        if not isinstance(error, OSError | TimeoutError) and library not in _CLIENT_LIBRARIES:
            raise
        from sluice.iceberg import catalog

        why, next_step = catalog.find_file_problem(error) or (first_line(error), None)
        raise CatalogUnavailableError(f"The Iceberg catalog did not answer: {why}", next_step=next_step) from error


def open_catalog(seconds: float = DEFAULT_TIMEOUT_S) -> Catalog:
    """Open the catalog and check that it answers.

    Raises:
        CatalogUnavailableError: no answer within `seconds`.
        ConfigError: the catalog is not configured.
    """
    from sluice.iceberg import catalog as iceberg_catalog

    deadline = time.monotonic() + seconds

    def open_and_ask() -> Catalog:
        opened = iceberg_catalog.load()
        try:
            opened.list_namespaces()
            if time.monotonic() > deadline:  # the caller has given up and would never close it
                raise TimeoutError(f"no answer within {seconds:g} s")
        except BaseException:
            opened.close()
            raise
        return opened

    with translate_catalog_errors():
        return timeouts.call_with_timeout(seconds, open_and_ask)


def missing_file_message(error: FileNotFoundError) -> str:
    """Return the message for a file that a table's metadata references and the storage does not have."""
    return f"A file is missing: {first_line(error)}"
