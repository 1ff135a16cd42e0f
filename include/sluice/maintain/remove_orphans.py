"""TODO docstring of sluice.maintain.remove_orphans."""

from __future__ import annotations

import logging
import re
from datetime import datetime, timedelta
from posixpath import commonprefix
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.table import Table

from sluice.errors import AddressMismatchError
from sluice.ingest.landing import Context
from sluice.ledger.maintenance_table import Effect
from sluice.maintain import orphan_guard, procedures
from sluice.maintain.subjects import Subject

log = logging.getLogger(__name__)

LISTED = 1_000
DAY = timedelta(days=1)
_STRICT = {"prefix_mismatch_mode": "ERROR"}
_VIEW, _FILES = "sluice_orphan_files", "file_path string, last_modified timestamp"
_CONFLICT = re.compile(r"Conflicting authorities/schemes: (.*?)\.(?:\s|$)")


def _remove_orphans(
    context: Context, subject: Subject, table: Table, older_than: datetime, dry_run: bool, effect: Effect
) -> dict[str, Any]:
    """First only list; then remove what was listed. Files of an open batch are younger than the least age."""
    found = {folder: _orphans(context, subject, folder, older_than) for folder in orphan_guard.listed(table)}
    ours = {folder: [path for path in each if orphan_guard.may_be_ours(path, table)] for folder, each in found.items()}
    strange = sorted({path for each in found.values() for path in each}.difference(*ours.values()))
    for path in strange[:LISTED]:
        log.warning("left, as it may be somebody else's, beside the files of %s: %s", subject.name, path)
    listed = sum(map(len, ours.values()))
    effect.listing = sorted(path for each in ours.values() for path in each)[:LISTED]
    for path in effect.listing:
        log.info("orphan file of %s: %s", subject.name, path)
    removed = 0 if dry_run else sum(_remove(context, subject, each, older_than) for each in ours.values() if each)
    return {"listed": listed, "removed": removed, "strange": len(strange)}


def _orphans(context: Context, subject: Subject, folder: str, older_than: datetime) -> list[str]:
    """The files of a folder that the table does not name."""
    # Listed by what reads and writes the table: Hadoop, the default, knows neither s3:// nor the catalog's credentials.
    # Of a local disk that would start a process per file, which asks for its permissions.
    where = urlsplit(folder)
    named = {"location": folder, "prefix_listing": where.scheme not in ("", "file"), "dry_run": True}
    try:
        rows = procedures._rows(context, subject, "remove_orphan_files", older_than=older_than, **named, **_STRICT)
    except Exception as error:
        if conflict := _CONFLICT.search(str(error)):
            raise AddressMismatchError(
                f"Files are named and listed under different addresses: {conflict[1]}.", table=subject.name
            ) from error
        if re.search(rf"FileNotFoundException: .*{re.escape(where.path.rstrip('/'))}/?\W? does not exist", str(error)):
            return []  # a property names it, and nothing was written there yet
        raise
    return [row[0] for row in rows]


def _remove(context: Context, subject: Subject, paths: list[str], older_than: datetime) -> int:
    """Remove files of one folder, and no others, which the table still does not name."""
    view = context.spark.createDataFrame([(path, older_than - DAY) for path in paths], _FILES)
    view.createOrReplaceTempView(_VIEW)
    try:
        # Of the view Iceberg takes what begins with the location.
        named = {"file_list_view": _VIEW, "location": commonprefix(paths)}
        return len(procedures._rows(context, subject, "remove_orphan_files", older_than=older_than, **named, **_STRICT))
    finally:
        context.spark.catalog.dropTempView(_VIEW)
