"""Opens the catalog with a time limit, and tells a failure of the catalog from a failure of one table.

DAG files import this module, so PyIceberg is loaded only when the catalog is opened.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sluice import timeouts
from sluice.errors import CatalogUnavailableError, SluiceError, TableUnavailableError, first_line
from sluice.timeouts import PATIENCE_S, Result

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

log = logging.getLogger(__name__)

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
    from sluice.iceberg import catalog as iceberg_catalog

    until = time.monotonic() + seconds

    def ask() -> Catalog:
        opened = iceberg_catalog.load()
        try:
            opened.list_namespaces()
            if time.monotonic() > until:  # nobody waits for it any more, nor would close it
                raise TimeoutError(f"no answer within {seconds:g} s")
        except BaseException:
            opened.close()
            raise
        return opened

    with catalog_errors():
        return timeouts.within(seconds, ask)
