"""A report that leaves Airflow: per run and table one file of HTML that holds all it shows, in a folder of one's own.

Told by the tables, the ledger's rows for the run and `sluice.quality`, as the pages are; never a record, nor a value of
one that the contract does not show.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.io import load_file_io

from sluice import cursor, quality, reach, tables
from sluice.contract import Contract
from sluice.pages import detail, rejected, render

log = logging.getLogger(__name__)

PATIENCE_S = 60
FOLDER = "SLUICE_REPORTS"
"""The environment's variable that names the folder, as PyIceberg's FileIO takes it: a URL, or a path."""


def wanted() -> bool:
    """Whether reports are kept at all."""
    return bool(os.environ.get(FOLDER))


def keep_all(
    catalog: Catalog, contracts: Iterable[Contract], outcomes: Mapping[str, Mapping[str, Any]], *, run_id: str
) -> dict[str, str]:
    """Write a report per table that something became of, where they are wanted; one that can't be is only told.

    In a thread that is not waited for long: a folder that does not answer must not keep a run from telling its outcome.

    Args:
        outcomes: per table, as `sluice.settle.settle` tells them.

    Returns:
        Their addresses by table.
    """
    due = [c for c in contracts if outcomes[c.table]["batches"] or outcomes[c.table]["red"]]
    if not due or not wanted():
        return {}
    written: dict[str, str] = {}

    def write() -> None:
        for contract in due:
            try:
                written[contract.table] = keep(catalog, contract, outcomes[contract.table], run_id=run_id)
            except Exception as error:  # noqa: BLE001 - the tables are as they are, whether they are reported or not
                log.warning("report of %s, and those after it, are not written: %s", contract.table, error)
                return

    worker = threading.Thread(target=write, name="reports", daemon=True)
    worker.start()
    worker.join(PATIENCE_S)
    if worker.is_alive():
        log.warning(
            "after %s s %s of %s reports are written; nobody waits for more", PATIENCE_S, len(written), len(due)
        )
    return dict(written)


def keep(
    catalog: Catalog, contract: Contract, outcome: Mapping[str, Any], *, run_id: str, now: datetime | None = None
) -> str:
    """Write the report of what a run came to for a table; written again, it is the same file.

    Args:
        outcome: as `sluice.settle.settle` tells it.

    Returns:
        Its address.
    """
    address = f"{os.environ[FOLDER].rstrip('/')}/{tables.safe(contract.table)}/{tables.safe(run_id)}.html"
    with reach.catalog_errors():
        table = tables.load(catalog, tables.typed(contract))
        results = quality.of_run(catalog, contract.table, run_id) if contract.expectations else []
        wrong = rejected.read(catalog, contract).wrong if outcome["rejected"] or outcome["red"] else ()
    text = render.page(
        "report.html", contract=contract, outcome=outcome, run_id=run_id, trends=detail.trends(results), wrong=wrong,
        totals=cursor.totals(table.current_snapshot()) if table else {}, at=now or datetime.now(UTC),
        style=render.inline("sluice.css"),
    )  # fmt: skip
    with load_file_io(catalog.properties, address).new_output(address).create(overwrite=True) as file:
        file.write(text.encode())
    return address
