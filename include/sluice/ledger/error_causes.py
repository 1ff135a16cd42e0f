"""Which system (catalog or schema registry) caused an error, by the class name that the ledger stores with its text."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, TypedDict

from sluice import errors
from sluice.errors import ExpectationsFailedError, SluiceError, printable, with_table


class Cause(StrEnum):
    """The system that failed."""

    CATALOG = "catalog"
    REGISTRY = "registry"


class ErrorColumns(TypedDict):
    """The ledger's columns about an error."""

    error: str
    exception: str


_CAUSES = {
    "sluice.errors.Catalog": Cause.CATALOG,
    "sluice.errors.Registry": Cause.REGISTRY,
    "sluice.errors.SchemaMissing": Cause.REGISTRY,
    # Iceberg, and the clients of its catalogs, in Java and in Python.
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


def classify(exception: str | None) -> Cause | None:
    """Return the system that an exception class (with its package) belongs to; None for any other class."""
    return next((cause for prefix, cause in _CAUSES.items() if (exception or "").startswith(prefix)), None)


def is_terminal(exception: str | None) -> bool:
    """Whether an exception class (with its package) is one of Sluice's that stays until an operator acts."""
    module, _, name = (exception or "").rpartition(".")
    found = getattr(errors, name, None) if module == errors.__name__ else None
    return isinstance(found, type) and issubclass(found, errors.TerminalError)


def exception_name(error: BaseException) -> str:
    """Return the outermost class in an error's chain that has a cause, Java's included; else the outermost class.

    The chain ends at an error of Sluice's own: its class says what it is about.
    """
    names = list(_class_names(error))
    return next(filter(classify, names), names[0])


def error_columns(error: Exception, table: str | None = None) -> ErrorColumns:
    """Return an error's text and class for a row of the ledger; an error of Sluice's own then names the table."""
    if isinstance(error, SluiceError):
        text = str(with_table(error, table) if table else error)
    else:
        text = f"{type(error).__name__}: {printable(str(error)[:500])}"
    return {"error": text, "exception": exception_name(error)}


def _class_names(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        java = list(_java_class_names(getattr(error, "java_exception", None) or getattr(error, "_origin", None)))
        if not (java and type(error).__module__.startswith("py4j")):  # py4j's class only says that Java raised
            yield f"{type(error).__module__}.{type(error).__qualname__}"
        yield from java
        error = None if isinstance(error, SluiceError) else error.__cause__


def _java_class_names(throwable: Any) -> Iterator[str]:
    try:
        while throwable is not None:
            yield str(throwable.getClass().getName())
            throwable = throwable.getCause()
    except Exception:  # noqa: BLE001 - the JVM has ended
        return


EXPECTATIONS_FAILED = exception_name(ExpectationsFailedError(""))
"""The class of the error of a batch that an expectation refused."""
