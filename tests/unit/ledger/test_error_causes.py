"""Errors are attributed to the catalog or the registry, in whatever form their clients raise them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy import create_engine

from sluice.errors import CatalogUnavailableError, FencedError, RegistryUnavailableError, SchemaMissingError
from sluice.ledger import error_causes
from sluice.ledger.error_causes import Cause

pytestmark = pytest.mark.unit


def raised(step: Callable[[], object]) -> Exception:
    try:
        step()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("nothing was raised")


def by(cause: Exception, error: Exception) -> Exception:
    """An error as `raise … from` makes it."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "cause", "name"),
    [
        (CatalogUnavailableError("It is away."), Cause.CATALOG, "CatalogUnavailableError"),
        (RegistryUnavailableError("It is away."), Cause.REGISTRY, "RegistryUnavailableError"),
        (SchemaMissingError("There is none."), Cause.REGISTRY, "SchemaMissingError"),
        (CommitFailedException("The head moved."), Cause.CATALOG, "CommitFailedException"),
        (raised(create_engine("sqlite:////nowhere/at.db").connect), Cause.CATALOG, "OperationalError"),
        (by(CommitFailedException("The head moved."), ValueError("odd")), Cause.CATALOG, "CommitFailedException"),
        # Another writer came first: our own error says so, whatever the catalog's client made of it.
        (by(CommitFailedException("The head moved."), FencedError("Main moved.")), None, "FencedError"),
        (ValueError("odd"), None, "ValueError"),
    ],
)
def test_the_class_tells_whose_error_it_is(error: Exception, cause: Cause | None, name: str) -> None:
    found = error_causes.exception_name(error)
    assert (error_causes.classify(found), found.rpartition(".")[2]) == (cause, name)


def test_what_a_row_keeps_names_the_table() -> None:
    kept = error_causes.error_columns(RegistryUnavailableError("It is away.", next_step=""), "db.t")
    assert kept == {"error": "It is away. [table db.t]", "exception": "sluice.errors.RegistryUnavailableError"}
    assert error_causes.error_columns(ValueError("x" * 900))["error"] == f"ValueError: {'x' * 500}"
    assert error_causes.classify(None) is None
