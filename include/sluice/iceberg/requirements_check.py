"""Checks that a catalog enforces the requirements of commits, on which all that is exactly once depends.

In: the catalog and one of Sluice's own tables. Out: nothing, or the error that stops planning. The answer is kept as a
property of that table, so that a catalog is asked once.
"""

from __future__ import annotations

import logging
from itertools import count

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate

from sluice.errors import RequirementsNotEnforcedError
from sluice.iceberg import refs

log = logging.getLogger(__name__)

ENFORCED = "sluice.requirements-enforced"
"""Property of the ledger's table: the kind of catalog that refused a commit whose requirement did not hold."""

NOT_ENFORCED = "no"
"""The property's value if a catalog accepted such a commit."""

ATTEMPTS = 5


def identify(catalog: Catalog) -> str:
    """Return the kind of a catalog: its class. It names no address."""
    kind = type(catalog)
    return f"{kind.__module__}.{kind.__qualname__}"


def is_answered(catalog: Catalog, table: Table) -> bool:
    """Return whether the table says that this kind of catalog enforces requirements."""
    return table.properties.get(ENFORCED) == identify(catalog)


def check(catalog: Catalog, table: Table) -> None:
    """Ask the catalog for a commit that it must refuse, unless the table has the answer.

    Args:
        catalog: the catalog.
        table: one of Sluice's own tables; not changed if the answer is known.

    Raises:
        RequirementsNotEnforcedError: the catalog accepted the commit.
    """
    if is_answered(catalog, table):
        return
    for _ in range(ATTEMPTS):
        before = catalog.load_table(table.name())
        if _is_refused(catalog, before):
            # A refusal may also mean that another writer came first. It did not if the table is unchanged.
            if catalog.load_table(table.name()).metadata_location != before.metadata_location:
                continue
            answer = SetPropertiesUpdate(updates={ENFORCED: identify(catalog)})
            try:
                refs.commit(catalog, before, (), (answer,))
            except CommitFailedException as error:
                log.info("the next plan checks again that the catalog enforces requirements: %s", error)
            return
    log.warning("The check of the catalog's requirements found other writers each time; the next plan checks again.")


def _is_refused(catalog: Catalog, table: Table) -> bool:
    """Ask for a commit that requires main to be at a snapshot that does not exist."""
    impossible = next(n for n in count(1) if table.metadata.snapshot_by_id(n) is None)
    required = AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=impossible)
    try:
        refs.commit(catalog, table, (required,), (SetPropertiesUpdate(updates={ENFORCED: NOT_ENFORCED}),))
    except CommitFailedException:
        return True
    raise RequirementsNotEnforcedError(
        f"The catalog ({identify(catalog)}) accepted a commit that requires main at snapshot {impossible}, which does "
        "not exist: two writers could overwrite each other unnoticed.",
        table=".".join(table.name()),
    )
