"""Rewrites data files, delete files and manifests in Spark, by Iceberg's procedures.

In: a table and the steps that its assessment found due. Out: what the procedures report, for the ledger.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertRefSnapshotId

from sluice.contract.settings import Maintenance
from sluice.errors import FencedError
from sluice.iceberg import refs, snapshots, tables
from sluice.iceberg.sql_literals import quote_identifier
from sluice.ingest.context import Context
from sluice.maintain import file_stats, procedures, targets
from sluice.maintain.assess import Assessment
from sluice.maintain.targets import TableKind, Target

MAX_FILES = 2_000
# Each run adds three files of a few kilobytes per topic to the ledger alone.
MAX_OWN_FILES = 50_000
MIN_SPLIT_SIZE, MIN_GROUP_SIZE = 32 << 20, 128 << 20


def sortable_settings(settings: Maintenance, table: Table) -> tuple[Maintenance, list[str]]:
    """The settings, without sorting if the table lacks a sort column; and the columns it lacks.

    A column that is still under review is in the contract, but not in the table yet.
    """
    missing = sorted(set(settings.sort_by) - {f.name for f in table.schema().fields})
    return (targets.without_sorting(settings) if missing else settings), missing


def rewrite_files(context: Context, target: Target, settings: Maintenance, found: Assessment) -> dict[str, Any]:
    """Carry out the steps `files`, `deletes` and `manifests`; returns what the procedures report."""
    done: dict[str, Any] = {}
    chosen = {"where": found.where} if found.where else {}
    if "files" in found.steps:
        done |= _rewrite_data_files(context, target, settings, found)
    if "deletes" in found.steps:
        options = {"min-input-files": settings.min_input_files}
        done["deletes"] = procedures.call_procedure(
            context, target, "rewrite_position_delete_files", **chosen, options=options
        )
    if "manifests" in found.steps:
        done["manifests"] = procedures.call_procedure(context, target, "rewrite_manifests", use_caching=False)
    return done


def _rewrite_data_files(context: Context, target: Target, settings: Maintenance, found: Assessment) -> dict[str, Any]:
    size = settings.target_file_size
    options = {
        "target-file-size-bytes": size,
        # The same share as in the assessment. Iceberg's default, 75 %, would split 1.3 times the target size into two
        # small files.
        "min-file-size-bytes": int(size * file_stats.SMALL_RATIO),
        # Writers count open pages uncompressed, up to a megabyte per column. With Iceberg's default, 180 % of the
        # target size, small files would be closed at a fraction of it, and rewritten again and again.
        "max-file-size-bytes": max(size * 9 // 5, MIN_SPLIT_SIZE),
        "min-input-files": settings.min_input_files,
        "delete-ratio-threshold": settings.delete_ratio,
        "remove-dangling-deletes": "true",
        # A file group that conflicts with a writer must not undo the groups before it.
        "partial-progress.enabled": "true",
        "max-file-group-size-bytes": max(8 * size, MIN_GROUP_SIZE),
        "max-files-to-rewrite": _max_files(target, found),
    }
    arguments = _strategy(settings) | ({"where": found.where} if found.where else {})
    done = procedures.call_procedure(context, target, "rewrite_data_files", **arguments, options=options)
    if done.get("failed_data_files_count"):
        # With partial progress Iceberg does not report why a group failed. A second call without it does.
        options["partial-progress.enabled"] = "false"
        done["again"] = procedures.call_procedure(context, target, "rewrite_data_files", **arguments, options=options)
    return done


def undo_rewrite_after_rollback(context: Context, before: Table) -> str:
    """Undo a rewrite of delete files that was committed after a rollback took place; returns the reason, or "".

    Iceberg rejects rewritten data files there, but accepts rewritten delete files. These lack the deletes of data files
    that were rewritten earlier, and the rollback brought those data files back.

    Raises:
        FencedError: another writer has committed since.
    """
    now = context.catalog.load_table(before.name())
    if now.properties.get(tables.SLICES_SINCE) == before.properties.get(tables.SLICES_SINCE):
        return ""  # no rollback since
    known = {s.snapshot_id for s in before.metadata.snapshots}
    chain = list(snapshots.ancestors(now.metadata))
    since = takewhile(lambda s: s.snapshot_id not in known, chain)
    rewrites = [s for s in since if s.summary and s.summary.operation == Operation.REPLACE]
    if rewrites:
        unmoved = AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=rewrites[0].snapshot_id)
        below = next(s for s in chain if s not in rewrites)
        try:
            refs.commit(context.catalog, now, (unmoved,), (refs.set_ref(refs.MAIN, below.snapshot_id),))
        except CommitFailedException as error:
            raise FencedError(
                "The table was rolled back during a rewrite of its delete files, and written to since.",
                table=".".join(before.name()),
                next_step="Deletes may be missing: roll the table back to the same snapshot once more.",
            ) from error
    return "the table was rolled back meanwhile, and the rewrite is undone"


def _max_files(target: Target, found: Assessment) -> int:
    """How many files one run rewrites at most: ingestion waits for it in the same pool."""
    if target.kind == TableKind.OWN:
        return MAX_OWN_FILES
    settings = target.settings
    return max(min(MAX_FILES, settings.rewrite_bytes // max(found.mean_bytes, 1)), settings.min_input_files)


def _strategy(settings: Maintenance) -> dict[str, str]:
    columns = ", ".join(quote_identifier(name) for name in settings.sort_by)
    match settings.strategy:
        case "binpack":
            return {"strategy": "binpack"}
        case "sort":
            return {"strategy": "sort", "sort_order": columns}
    return {"strategy": "sort", "sort_order": f"zorder({columns})"}
