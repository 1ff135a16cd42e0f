"""A report that leaves Airflow: per run and table one file of HTML that holds all it shows, in a folder of one's own.

Told by the tables, the ledger's rows for the run and `sluice.quality`, as the pages are; never a record, nor a value of
one that the contract does not show.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pyarrow.fs import FileSelector
from pyiceberg.catalog import Catalog
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO

from sluice.contract.contract import Contract
from sluice.contract.values import parse_duration
from sluice.errors import ConfigError
from sluice.iceberg import availability, snapshots, table_names, tables
from sluice.iceberg import catalog as catalogs
from sluice.ledger import quality_table
from sluice.pages import rejected, render, trends

log = logging.getLogger(__name__)

PATIENCE_S = 60
MOST_BYTES = 16 << 20
"""What is read of a file that stands in a report's place."""
FOLDER = "SLUICE_REPORTS"
"""The environment's variable that names the folder, as PyIceberg's FileIO takes it: a URL, or a path."""
RETENTION = "SLUICE_REPORTS_RETENTION"
"""The environment's variable that says how long reports stay, as a contract writes a duration; without it, for ever."""


def wanted() -> bool:
    """Whether reports are kept at all."""
    return bool(os.environ.get(FOLDER))


def retention() -> timedelta | None:
    """How long reports stay; None is for ever.

    Raises:
        ConfigError: what is set is no duration.
    """
    text = os.environ.get(RETENTION)
    try:
        return parse_duration(text) if text else None
    except ValueError as error:
        raise ConfigError(f"{RETENTION} {error}", way_out="Set it to a duration like 90d, or not at all.") from error


def keep_all(
    catalog: Catalog, contracts: Iterable[Contract], outcomes: Mapping[str, Mapping[str, Any]], *, run_id: str
) -> dict[str, str]:
    """Write a report per table that something became of, where they are wanted, and delete what is past its retention.

    What can't be done is only told.

    In a thread that is not waited for long: a folder that does not answer must not keep a run from telling its outcome.

    Args:
        outcomes: per table, as `sluice.ingest.settle.settle` tells them.

    Returns:
        Their addresses by table.
    """
    due = [c for c in contracts if outcomes[c.table]["batches"] or outcomes[c.table]["red"]]
    if not due or not wanted():
        return {}
    written: dict[str, str] = {}

    def write() -> None:
        table = ""
        try:
            for contract in due:
                table = contract.table
                written[table] = keep(catalog, contract, outcomes[table], run_id=run_id)
        except Exception as error:  # noqa: BLE001 - the tables are as they are, whether they are reported or not
            log.warning("report of %s, and those after it, are not written: %s", table, error)
            return
        try:
            for contract in due:
                drop_old(catalog, contract)
        except Exception as error:  # noqa: BLE001 - likewise; those of the next run go with the next
            log.warning("reports past their retention are not deleted: %s", error)

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
        outcome: as `sluice.ingest.settle.settle` tells it.

    Returns:
        Its address.
    """
    address = f"{_folder(contract.table)}/{table_names.safe(run_id)}.html"
    with availability.catalog_errors():
        table = tables.load(catalog, table_names.typed(contract))
        results = quality_table.of_run(catalog, contract.table, run_id) if contract.expectations else []
        wrong = rejected.read(catalog, contract).wrong if outcome["rejected"] != 0 or outcome["red"] else ()
    text = render.page(
        "report.html", contract=contract, outcome=outcome, run_id=run_id, trends=trends.of(results), wrong=wrong,
        totals=snapshots.totals(table.current_snapshot()) if table else {}, at=now or datetime.now(UTC),
        style=render.inline("sluice.css"),
    )  # fmt: skip
    with load_file_io(catalog.properties, address).new_output(address).create(overwrite=True) as file:
        file.write(text.encode())
    return address


def read(name: str) -> str:
    """The report of a run and a table, as it stands in the folder; empty where there is none.

    Args:
        name: the table's name and the run's, as a list in JSON.

    Raises:
        CatalogUnavailableError: the catalog or the storage did not answer.
    """
    table, run_id = json.loads(name)
    if not wanted():
        return ""
    with availability.catalog_errors(), catalogs.load() as catalog:
        address = f"{_folder(table)}/{table_names.safe(run_id)}.html"
        file = load_file_io(catalog.properties, address).new_input(address)
        if not file.exists():
            return ""
        with file.open() as stream:
            return stream.read(MOST_BYTES).decode(errors="replace")


def drop_old(catalog: Catalog, contract: Contract, *, now: datetime | None = None) -> int:
    """Delete the table's reports that are past their retention.

    Returns:
        How many.

    Raises:
        ConfigError: the retention that is set is no duration.
    """
    if (kept := retention()) is None:
        return 0
    scheme, host, folder = PyArrowFileIO.parse_location(_folder(contract.table), catalog.properties)
    files = PyArrowFileIO(catalog.properties).fs_by_scheme(scheme, host)
    before = (now or datetime.now(UTC)) - kept
    found = files.get_file_info(FileSelector(folder, allow_not_found=True))
    old = [file for file in found if file.is_file and file.extension == "html" and file.mtime < before]
    for file in old:
        files.delete_file(file.path)
    return len(old)


def _folder(table: str) -> str:
    return f"{os.environ[FOLDER].rstrip('/')}/{table_names.safe(table)}"
