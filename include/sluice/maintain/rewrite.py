"""TODO docstring of sluice.maintain.rewrite."""

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
from sluice.iceberg.sql_literals import quoted
from sluice.ingest.landing import Context
from sluice.maintain import file_stats, procedures, subjects
from sluice.maintain.assess import Need
from sluice.maintain.subjects import Kind, Subject

MOST_FILES = 2_000
# Each run leaves three of a few kilobytes per topic in the ledger alone.
MOST_OWN_FILES = 50_000
LEAST_CUT, LEAST_GROUP = 32 << 20, 128 << 20


def _sortable(settings: Maintenance, table: Table) -> tuple[Maintenance, list[str]]:
    """The settings, to sort by what the contract in force has; and what it lacks, such as a column under review."""
    without = sorted(set(settings.sort_by) - {f.name for f in table.schema().fields})
    return (subjects.unsorted(settings) if without else settings), without


def _rewrite(context: Context, subject: Subject, settings: Maintenance, need: Need) -> dict[str, Any]:
    done: dict[str, Any] = {}
    chosen = {"where": need.where} if need.where else {}
    if "files" in need.steps:
        target = settings.target_file_size
        options = {
            "target-file-size-bytes": target,
            # As `facts` counts them; by Iceberg's own three quarters, 1.3 times the target is cut into two small files.
            "min-file-size-bytes": int(target * file_stats.SMALL),
            # A writer counts its open pages as they are before compression, up to a megabyte per column: by Iceberg's
            # own 1.8 times the target, small files would be closed at a fraction of it, and rewritten for ever.
            "max-file-size-bytes": max(target * 9 // 5, LEAST_CUT),
            "min-input-files": settings.min_input_files,
            "delete-ratio-threshold": settings.delete_ratio,
            "remove-dangling-deletes": "true",
            # What was rewritten stays, though a later group lose against a writer.
            "partial-progress.enabled": "true",
            "max-file-group-size-bytes": max(8 * target, LEAST_GROUP),
            "max-files-to-rewrite": _most_files(subject, need),
        }
        how = _strategy(settings) | chosen
        done |= procedures._call(context, subject, "rewrite_data_files", **how, options=options)
        if done.get("failed_data_files_count"):
            # With partial progress Iceberg keeps to itself why a group failed. Once more without: now it says so.
            options["partial-progress.enabled"] = "false"
            done["again"] = procedures._call(context, subject, "rewrite_data_files", **how, options=options)
    if "deletes" in need.steps:
        options = {"min-input-files": settings.min_input_files}
        done["deletes"] = procedures._call(context, subject, "rewrite_position_delete_files", **chosen, options=options)
    if "manifests" in need.steps:
        done["manifests"] = procedures._call(context, subject, "rewrite_manifests", use_caching=False)
    return done


def _took_back_deletes(context: Context, before: Table) -> str:
    """Take a rewrite of deletes back that landed on what the table was rolled back to meanwhile; why, where it did.

    Iceberg refuses to put rewritten data files there, and lets rewritten deletes pass: they lack those whose data files
    had been rewritten already, of which the old ones are back.

    Raises:
        FencedError: others have written on it since.
    """
    now = context.catalog.load_table(before.name())
    if now.properties.get(tables.SLICES_SINCE) == before.properties.get(tables.SLICES_SINCE):
        return ""  # no rollback of ours
    known = {s.snapshot_id for s in before.metadata.snapshots}
    line = list(snapshots.ancestors(now.metadata))
    since = takewhile(lambda s: s.snapshot_id not in known, line)
    new = [s for s in since if s.summary and s.summary.operation == Operation.REPLACE]
    if new:
        here = AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=new[0].snapshot_id)
        below = next(s for s in line if s not in new)
        try:
            refs.commit(context.catalog, now, (here,), (refs.point(refs.MAIN, below.snapshot_id),))
        except CommitFailedException as error:
            raise FencedError(
                "The table was rolled back while its deletes were rewritten, and written to since.",
                table=".".join(before.name()),
                way_out="Deletes may be missing: roll it back once more, to the same snapshot.",
            ) from error
    return "the table was rolled back meanwhile, and stays as it was taken back"


def _most_files(subject: Subject, need: Need) -> int:
    """How many files one run rewrites, so that ingestion, which waits for it, does not wait long."""
    if subject.kind == Kind.OWN:
        return MOST_OWN_FILES
    settings = subject.settings
    return max(min(MOST_FILES, settings.rewrite_bytes // max(need.mean_bytes, 1)), settings.min_input_files)


def _strategy(settings: Maintenance) -> dict[str, str]:
    """How Iceberg's procedure is told to put files together."""
    columns = ", ".join(quoted(name) for name in settings.sort_by)
    match settings.strategy:
        case "binpack":
            return {"strategy": "binpack"}
        case "sort":
            return {"strategy": "sort", "sort_order": columns}
    return {"strategy": "sort", "sort_order": f"zorder({columns})"}
