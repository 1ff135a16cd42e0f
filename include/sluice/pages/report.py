"""Writes a self-contained HTML report per run and table to a folder, and deletes those past their retention.

In: the outcome of settle, the results of the run, counts of quarantined records. A report never holds a record.
Beside the reports is the table's active contract as an ODCS document, which readers' catalogs can take up.
"""

from __future__ import annotations

import html
import json
import logging
import os
import re
import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pyarrow.fs import FileSelector
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO

from sluice.contract.contract import Contract
from sluice.contract.values import parse_duration
from sluice.draft import text as yaml_text
from sluice.errors import ConfigError, NameCollisionError, SchemaChangeError
from sluice.iceberg import active_contract, availability, snapshots, table_names, tables
from sluice.iceberg import catalog as catalogs
from sluice.ledger import quality_table
from sluice.pages import quarantine_summary, render
from sluice.pages.quality import trends

log = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 60
_TITLE = re.compile(r"<title>([^<]*)</title>")
_ODCS_ID = re.compile(r"^id: .*$", re.MULTILINE)
CONTRACT_FILE = "contract.odcs.yaml"
"""Name of the active contract beside a table's reports."""
MAX_BYTES = 16 << 20
"""Read limit: others can replace the file of a report."""
FOLDER_VARIABLE = "SLUICE_REPORTS"
"""Environment variable with the folder: a URL or path, as PyIceberg's FileIO takes it."""
RETENTION_VARIABLE = "SLUICE_REPORTS_RETENTION"
"""Environment variable with the retention as a duration, such as 90d; unset: reports stay for ever."""


def is_enabled() -> bool:
    """Whether reports are written."""
    return bool(os.environ.get(FOLDER_VARIABLE))


def read_retention() -> timedelta | None:
    """Read the retention of reports; None is for ever.

    Raises:
        ConfigError: The value is not a duration.
    """
    text = os.environ.get(RETENTION_VARIABLE)
    try:
        return parse_duration(text) if text else None
    except ValueError as error:
        raise ConfigError(
            f"{RETENTION_VARIABLE} {error}", next_step="Set it to a duration like 90d, or not at all."
        ) from error


def write_reports(
    catalog: Catalog, contracts: Iterable[Contract], outcomes: Mapping[str, Mapping[str, Any]], *, run_id: str
) -> dict[str, str]:
    """Write a report and the contract per table with batches or an error, and delete old reports. Errors are logged.

    Runs in a thread with a time limit: a folder that does not answer must not keep a run from ending.

    Args:
        outcomes: per table, from `sluice.ingest.settle.settle`.

    Returns:
        The locations by table.
    """
    due = [c for c in contracts if outcomes[c.table]["batches"] or outcomes[c.table]["red"]]
    if not due or not is_enabled():
        return {}
    written: dict[str, str] = {}

    def write() -> None:
        table = ""
        try:
            for contract in due:
                table = contract.table
                written[table] = write_report(catalog, contract, outcomes[table], run_id=run_id)
                write_contract(catalog, contract)
        except Exception as error:  # noqa: BLE001 - a report must not fail a run
            log.warning("The report of %s and those after it are not written: %s", table, error)
            return
        try:
            for contract in due:
                delete_expired(catalog, contract)
        except Exception as error:  # noqa: BLE001 - the next run deletes them
            log.warning("Reports past their retention are not deleted: %s", error)

    worker = threading.Thread(target=write, name="reports", daemon=True)
    worker.start()
    worker.join(WRITE_TIMEOUT_S)
    if worker.is_alive():
        log.warning(
            "%s s are over; %s of %s reports are written, and the run goes on without the others",
            WRITE_TIMEOUT_S,
            len(written),
            len(due),
        )
    return dict(written)


def write_report(
    catalog: Catalog, contract: Contract, outcome: Mapping[str, Any], *, run_id: str, now: datetime | None = None
) -> str:
    """Write the report of a run and a table. A repeated call overwrites the file.

    Args:
        outcome: from `sluice.ingest.settle.settle`.

    Returns:
        Its location.

    Raises:
        NameCollisionError: The file is the report of another table or run.
    """
    address = f"{_table_folder(contract.table)}/{table_names.safe_identifier(run_id)}.html"
    with availability.translate_catalog_errors():
        table = tables.load(catalog, table_names.typed(contract))
        results = quality_table.read_run_results(catalog, contract.table, run_id) if contract.expectations else []
        count = outcome["rejected"] != 0 or outcome["red"]
        groups = quarantine_summary.read_quarantine(catalog, contract).groups if count else ()
    text = render.render_page(
        "report.html", contract=contract, outcome=outcome, run_id=run_id, error_groups=groups,
        trends=trends.group_results(results),
        totals=snapshots.read_totals(table.current_snapshot()) if table else {}, at=now or datetime.now(UTC),
        style=render.inline_static("sluice.css"),
    )  # fmt: skip
    io = load_file_io(catalog.properties, address)
    found = _read_text(io, address)
    if found and _TITLE.search(found) and not _is_report_of(found, contract.table, run_id):
        raise NameCollisionError(
            f"{address} is the report of another table or run, and was not replaced.", table=contract.table, run=run_id
        )
    with io.new_output(address).create(overwrite=True) as file:
        file.write(text.encode())
    return address


def write_contract(catalog: Catalog, contract: Contract) -> str:
    """Write a table's active contract as an ODCS document, unless the file has it already; retention leaves it.

    Returns:
        Its location; empty without a table, or if another engine has altered it: the next plan reports that.
    """
    from sluice.odcs.export_contract import as_standard
    from sluice.odcs.servers import configured_servers

    with availability.translate_catalog_errors():
        table = tables.load(catalog, table_names.typed(contract))
    try:
        version = active_contract.ContractVersion.from_table(table) if table else None
        active = active_contract.resolve_publish_contract(table, contract) if table else contract
    except SchemaChangeError:
        return ""
    if version is None:
        return ""
    document = as_standard(active, f"{version.version}.0.0", configured_servers(active))
    text = yaml_text.as_block(document.model_dump(by_alias=True, exclude_none=True))
    address = f"{_table_folder(contract.table)}/{CONTRACT_FILE}"
    io = load_file_io(catalog.properties, address)
    found = _read_text(io, address)
    ids = {each[0] for each in map(_ODCS_ID.search, (found, text)) if each}
    if len(ids) > 1:
        raise NameCollisionError(f"{address} is the contract of another table.", table=contract.table)
    if found != text:
        with io.new_output(address).create(overwrite=True) as file:
            file.write(text.encode())
    return address


def read_report(name: str) -> str:
    """Read the report of a run and a table; empty if there is none.

    Args:
        name: the table's name and the run's id, as a JSON list.

    Raises:
        CatalogUnavailableError: The catalog or the storage did not answer.
    """
    table, run_id = json.loads(name)
    if not is_enabled():
        return ""
    with availability.translate_catalog_errors(), catalogs.load() as catalog:
        address = f"{_table_folder(table)}/{table_names.safe_identifier(run_id)}.html"
        text = _read_text(load_file_io(catalog.properties, address), address)
    return text if _is_report_of(text, table, run_id) else ""


def delete_expired(catalog: Catalog, contract: Contract, *, now: datetime | None = None) -> int:
    """Delete a table's reports that are past their retention, and return how many.

    Raises:
        ConfigError: The retention is not a duration.
    """
    if (age := read_retention()) is None:
        return 0
    scheme, host, folder = PyArrowFileIO.parse_location(_table_folder(contract.table), catalog.properties)
    files = PyArrowFileIO(catalog.properties).fs_by_scheme(scheme, host)
    before = (now or datetime.now(UTC)) - age
    found = files.get_file_info(FileSelector(folder, allow_not_found=True))
    old = [file for file in found if file.is_file and file.extension == "html" and file.mtime < before]
    for file in old:
        files.delete_file(file.path)
    return len(old)


def _read_text(io: FileIO, address: str) -> str:
    """Read a file; empty if there is none."""
    file = io.new_input(address)
    if not file.exists():
        return ""
    with file.open() as stream:
        return stream.read(MAX_BYTES).decode(errors="replace")


def _is_report_of(text: str, table: str, run_id: str) -> bool:
    """Whether a file is the report of this table and run: two of them may have the same file name."""
    title = _TITLE.search(text)
    return title is not None and html.unescape(title[1]) == f"{table} in run {run_id} · Sluice"


def _table_folder(table: str) -> str:
    return f"{os.environ[FOLDER_VARIABLE].rstrip('/')}/{table_names.safe_identifier(table)}"
