"""Lists and removes orphan files in Spark, by Iceberg's procedure.

In: a table whose folders `orphan_guard` has checked. Out: the files that no snapshot references, and how many are gone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from posixpath import commonprefix
from urllib.parse import urlsplit

from pyiceberg.table import Table

from sluice.errors import AddressMismatchError
from sluice.ingest.context import Context
from sluice.maintain import orphan_guard, procedures
from sluice.maintain.targets import Target

log = logging.getLogger(__name__)

MAX_LISTED = 1_000
DAY = timedelta(days=1)
_STRICT = {"prefix_mismatch_mode": "ERROR"}
_VIEW, _FILES = "sluice_orphan_files", "file_path string, last_modified timestamp"
_CONFLICT = re.compile(r"Conflicting authorities/schemes: (.*?)\.(?:\s|$)")


@dataclass(frozen=True)
class OrphanFiles:
    """Files in a table's folders that no snapshot of it references.

    Attributes:
        by_folder: those that may be removed.
        unidentified: how many are left because another program may have written them.
    """

    by_folder: Mapping[str, Sequence[str]]
    unidentified: int

    @property
    def paths(self) -> list[str]:
        """All that may be removed, sorted."""
        return sorted(path for paths in self.by_folder.values() for path in paths)


def find_orphan_files(context: Context, target: Target, table: Table, older_than: datetime) -> OrphanFiles:
    """List a table's orphan files. Those of an open batch are younger than `older_than`."""
    listed = {
        folder: _list_unreferenced(context, target, folder, older_than)
        for folder in orphan_guard.folders_to_list(table)
    }
    ours = {
        folder: [path for path in paths if orphan_guard.may_belong_to(path, table)] for folder, paths in listed.items()
    }
    unidentified = sorted({path for paths in listed.values() for path in paths}.difference(*ours.values()))
    for path in unidentified[:MAX_LISTED]:
        log.warning("%s: left, as another program may have written it: %s", target.name, path)
    found = OrphanFiles(ours, len(unidentified))
    for path in found.paths[:MAX_LISTED]:
        log.info("%s: orphan file: %s", target.name, path)
    return found


def remove_orphan_files(context: Context, target: Target, found: OrphanFiles, older_than: datetime) -> int:
    """Remove the files that were listed; returns how many are gone."""
    return sum(remove_files(context, target, paths, older_than) for paths in found.by_folder.values() if paths)


def remove_files(context: Context, target: Target, paths: Sequence[str], older_than: datetime) -> int:
    """Remove those of these files of one folder that the table still does not reference; returns how many."""
    view = context.spark.createDataFrame([(path, older_than - DAY) for path in paths], _FILES)
    view.createOrReplaceTempView(_VIEW)
    try:
        # Of the view Iceberg takes the paths that begin with the location.
        chosen = {"file_list_view": _VIEW, "location": commonprefix(paths)}
        rows = procedures.call_for_rows(
            context, target, "remove_orphan_files", older_than=older_than, **chosen, **_STRICT
        )
        return len(rows)
    finally:
        context.spark.catalog.dropTempView(_VIEW)


def _list_unreferenced(context: Context, target: Target, folder: str, older_than: datetime) -> list[str]:
    address = urlsplit(folder)
    # `prefix_listing` lists with the table's own FileIO: Hadoop, the default, knows neither s3:// nor the catalog's
    # credentials. On a local disk it would start a process per file, to read its permissions.
    chosen = {"location": folder, "prefix_listing": address.scheme not in ("", "file"), "dry_run": True}
    try:
        rows = procedures.call_for_rows(
            context, target, "remove_orphan_files", older_than=older_than, **chosen, **_STRICT
        )
    except Exception as error:
        if conflict := _CONFLICT.search(str(error)):
            raise AddressMismatchError(
                f"Metadata and storage list the table's files under different addresses: {conflict[1]}.",
                table=target.name,
            ) from error
        path = re.escape(address.path.rstrip("/"))
        if re.search(rf"FileNotFoundException: .*{path}/?\W? does not exist", str(error)):
            return []  # a table property names the folder, and nothing was written there yet
        raise
    return [row[0] for row in rows]
