"""Writes the report of a comparison as HTML or JSON: into the folder of reports, or a file. In: a `Comparison`."""

from __future__ import annotations

import os
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.io import load_file_io

from sluice.compare.result import Comparison
from sluice.errors import RefusedError
from sluice.iceberg import table_names
from sluice.pages import render
from sluice.pages.report import FOLDER_VARIABLE

ENDINGS = (".html", ".json")


def check_address(address: str) -> str:
    """Return the absolute path, or the URL, of a report.

    Raises:
        RefusedError: its ending names neither HTML nor JSON.
    """
    if not address.endswith(ENDINGS):
        raise RefusedError(f"{address} is not the name of a report.", next_step="Let it end with .html or .json.")
    return address if "://" in address else str(Path(address).absolute())


def default_address(table: str, run_id: str) -> str | None:
    """Where reports of a run go; None if no folder of reports is set."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    name = f"{table_names.safe_identifier(table)}/compare_{table_names.safe_identifier(run_id)}"
    return f"{folder.rstrip('/')}/{name}.html"


def write_report(catalog: Catalog, found: Comparison, address: str) -> None:
    """Write the report; a file that exists is replaced."""
    text = found.model_dump_json(indent=2) if address.endswith(".json") else render_report(found)
    with load_file_io(catalog.properties, address).new_output(address).create(overwrite=True) as file:
        file.write(text.encode())


def render_report(found: Comparison) -> str:
    """The report as a page that needs no other file."""
    return render.render_page("comparison.html", found=found, style=render.inline_static("sluice.css"))
