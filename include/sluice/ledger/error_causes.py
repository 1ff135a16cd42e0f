"""Whose failure it was that a step failed by: told by the error's class, which the ledger keeps beside its text."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, TypedDict

from sluice.errors import SluiceError, naming


class Cause(StrEnum):
    """Who did not do what was asked."""

    CATALOG = "catalog"
    REGISTRY = "registry"


class Facts(TypedDict):
    """What a row of the ledger keeps of an error."""

    error: str
    exception: str


_BEGIN = {
    "sluice.errors.Catalog": Cause.CATALOG,
    "sluice.errors.Registry": Cause.REGISTRY,
    "sluice.errors.SchemaMissing": Cause.REGISTRY,
    # Iceberg's own, and those of the clients that its catalogs are reached by, in the JVM and in Python.
    "org.apache.iceberg.": Cause.CATALOG,
    "org.apache.hadoop.hive.": Cause.CATALOG,
    "org.apache.thrift.": Cause.CATALOG,
    "org.sqlite.": Cause.CATALOG,
    "java.sql.": Cause.CATALOG,
    "software.amazon.awssdk.": Cause.CATALOG,
    "pyiceberg.": Cause.CATALOG,
    "sqlalchemy.": Cause.CATALOG,
    "sqlite3.": Cause.CATALOG,
    "requests.": Cause.CATALOG,
    "urllib3.": Cause.CATALOG,
    "botocore.": Cause.CATALOG,
    "thrift.": Cause.CATALOG,
}


def cause(exception: str | None) -> Cause | None:
    """Whose error a class is, named with its package; None where it is nobody's outside, or not known."""
    return next((each for begin, each in _BEGIN.items() if (exception or "").startswith(begin)), None)


def exception_of(error: BaseException) -> str:
    """The outermost class in an error's chain, the JVM's included, that tells of a cause; without one, the outermost.

    An error of our own says itself what it is about, whatever it came from.
    """
    names = list(_classes(error))
    return next(filter(cause, names), names[0])


def facts(error: Exception, table: str | None = None) -> Facts:
    """Its text, which names the table where the error is ours, and its class."""
    if isinstance(error, SluiceError):
        text = str(naming(error, table) if table else error)
    else:
        text = f"{type(error).__name__}: {str(error)[:500]}"
    return {"error": text, "exception": exception_of(error)}


def _classes(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        within = list(_java_classes(getattr(error, "java_exception", None) or getattr(error, "_origin", None)))
        if not (within and type(error).__module__.startswith("py4j")):  # which says no more than that there was one
            yield f"{type(error).__module__}.{type(error).__qualname__}"
        yield from within
        error = None if isinstance(error, SluiceError) else error.__cause__


def _java_classes(thrown: Any) -> Iterator[str]:
    try:
        while thrown is not None:
            yield str(thrown.getClass().getName())
            thrown = thrown.getCause()
    except Exception:  # noqa: BLE001 - the JVM is gone, and tells nothing more
        return
