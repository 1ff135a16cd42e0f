"""Runs one maintenance action on each table that needs it, by Iceberg's procedures, in one Spark application.

In: an action and table names. Out: a result per table, recorded in `sluice.maintenance`. No record is lost: rewrites
change no row, and expiry and orphan clean-up leave what rollbacks and open batches need. A failed table stops no other.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, assert_never

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from sluice.batch import STEP
from sluice.contract.folder import Contracts
from sluice.errors import SluiceError
from sluice.iceberg import refs, snapshots, tables
from sluice.ingest.context import Context
from sluice.ledger import maintenance_table
from sluice.ledger.maintenance_table import Action, ActionResult, LastCleanup
from sluice.maintain import assess, expire, file_stats, orphan_guard, remove_orphans, rewrite, table_locations, targets
from sluice.maintain.assess import Assessment
from sluice.maintain.expiry_plan import AssessmentInputs
from sluice.maintain.table_locations import TableFolders
from sluice.maintain.targets import TableKind, Target

log = logging.getLogger(__name__)

TRIES = 3
NEVER = datetime.min.replace(tzinfo=UTC)
# How the catalog or Iceberg report that another writer committed first. Other ValidationExceptions may be permanent:
# say, that the table's gc.enabled is false.
_CONFLICT = re.compile(
    r"CommitFailedException|CommitStateUnknownException|ValidationException.*([Ff]ound (new|concurrently|conflicting) "
    r"|[Mm]issing (data|required) files|could not be found in the latest snapshot|Cannot determine history)",
    re.DOTALL,
)


@dataclass(frozen=True)
class MaintenanceRun:
    """One action in one Spark application.

    Attributes:
        dry_run: list orphan files, and remove none.
    """

    context: Context
    contracts: Contracts
    action: Action
    dry_run: bool = False

    @cached_property
    def folders(self) -> TableFolders:
        """The folders of all tables, read once: a table that is created meanwhile has only young files."""
        return table_locations.find_folders(self.contracts, self.context.catalog, self.context.run_id)

    def record(self, results: Sequence[ActionResult]) -> None:
        """Write results into `sluice.maintenance`."""
        maintenance_table.write_results(self.context.catalog, results, run_id=self.context.run_id)


def maintain_tables(run: MaintenanceRun, names: Sequence[str], *, deadline: float) -> list[ActionResult]:
    """Carry out an action on the named tables, as far as it is still due.

    Args:
        names: tables, as `assess_tables` names them.
        deadline: `time.monotonic()` after which no table but the first is begun. Tables whose last attempt is oldest
            come first: each gets its turn, even if one of them kills the application.

    Returns:
        The results, which are recorded in `sluice.maintenance` as well. A table that the contracts, read again by each
        application, no longer define is skipped.
    """
    catalog, action = run.context.catalog, run.action
    cleanups = maintenance_table.read_last_cleanups(catalog) if action == Action.ORPHANS else {}
    attempts, wanted = maintenance_table.last_attempts(catalog, action), set(names)
    queue = [target for target in targets.list_targets(run.contracts) if target.name in wanted]
    queue.sort(key=lambda target: attempts.get(target.name, NEVER))
    results = [_skip_undefined(run, name) for name in sorted(wanted - {target.name for target in queue})]
    unrecorded = list(results)
    for number, target in enumerate(queue):
        if number and time.monotonic() > deadline:
            log.info("%s: %s tables wait: out of time", action, f"{len(queue) - number:,}")
            break
        unrecorded.append(ActionResult(target.name, action, maintenance_table.BEGUN))
        try:
            # One commit per table: if the application is killed, the ledger shows what it did and where it was.
            run.record(unrecorded)
            unrecorded = []
        except CommitFailedException as error:  # the action itself is committed, and the next tables wait
            log.warning("%s %s: recorded with the next table: %s", action, target.name, error)
        with run.context.meter.step(str(action), target.name):
            result = _run_with_retries(target, action, partial(_maintain_table, run, target, cleanups))
        log.log(logging.ERROR if result.failed else logging.INFO, "%s %s: %s", action, target.name, result.summary)
        results.append(result)
        unrecorded.append(result)
    run.record(unrecorded)
    return results


def _skip_undefined(run: MaintenanceRun, name: str) -> ActionResult:
    """The result for a table that the contracts defined when it was assessed, and no longer do."""
    problems = run.contracts.problems
    reason = f"a contract is broken: {problems[0]}" if problems else "no contract defines it any more"
    log.warning("%s %s: %s", run.action, name, reason)
    return ActionResult(name, run.action, "left", reason)


def _run_with_retries(target: Target, action: Action, attempt: Callable[[ActionResult], None]) -> ActionResult:
    """Run an attempt, again if another writer commits first; the attempt fills in the result."""
    began = time.monotonic()
    result = ActionResult(target.name, action, "failed")
    for number in range(1, TRIES + 1):
        try:
            attempt(result)
            result.error = None
            break
        except Exception as error:
            conflict = isinstance(error, CommitFailedException) or bool(_CONFLICT.search(str(error)))
            result.state = "left" if conflict else "failed"
            result.error = f"{type(error).__name__}: {str(error)[:500]}"
            if not conflict:
                log.error("%s %s", action, target.name, exc_info=not isinstance(error, SluiceError))
                break
            log.info("%s %s: another writer committed first (%s of %s)", action, target.name, number, TRIES)
            time.sleep(number)
    result.seconds = time.monotonic() - began
    result.at = datetime.now(UTC)
    return result


def _maintain_table(
    run: MaintenanceRun, target: Target, cleanups: Mapping[str, LastCleanup], result: ActionResult
) -> None:
    """Assess the table again, carry out what is due, and fill in the result."""
    catalog = run.context.catalog
    inputs = AssessmentInputs(catalog, run.contracts, datetime.now(UTC))
    if target.kind in (TableKind.TYPED, TableKind.STAGING) and (existing := tables.load(catalog, target.identifier)):
        # After a manual rollback the tag is ahead of main: it must not outlive the snapshots that prove it wrong.
        refs.repair_cursor_tag(catalog, existing)
    found = assess.assess_table(target, run.action, inputs, cleanups=cleanups)
    result.reason = found.reason
    if not found.steps:
        result.state = "idle"
        return
    table = catalog.load_table(target.identifier)
    result.before = result.before or file_stats.measure_head(table)
    result.state = "done"
    done: dict[str, Any] = {}
    if run.action == Action.REWRITE:
        done = _rewrite(run, target, table, found, result)
        if "snapshots" in found.steps:
            done["expired"] = expire.expire_snapshots(run.context, target, found, inputs)
    elif run.action == Action.EXPIRE:
        done = expire.expire_snapshots(run.context, target, found, inputs)
    elif run.action == Action.ORPHANS:
        done = _remove_orphans(run, target, table, inputs.now, result)
    else:
        assert_never(run.action)
    result.result = json.dumps(done | {"id": str(table.metadata.table_uuid)}, separators=(",", ":"))
    after = catalog.load_table(target.identifier)
    result.after = file_stats.measure_head(after)
    before = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    for snapshot in snapshots.ancestors(after.metadata):
        if snapshot.snapshot_id in before:
            break
        if snapshots.summary(snapshot).get(STEP) is None:  # not of a run that publishes meanwhile
            run.context.meter.add_commit(snapshots.summary(snapshot))


def _rewrite(
    run: MaintenanceRun, target: Target, table: Table, found: Assessment, result: ActionResult
) -> dict[str, Any]:
    settings, missing = rewrite.sortable_settings(target.settings, table)
    if missing:
        result.reason = f"{found.reason}; not sorted: the table has no column {', '.join(missing)} yet"
    done = rewrite.rewrite_files(run.context, target, settings, found)
    if undone := rewrite.undo_rewrite_after_rollback(run.context, table):
        result.state, result.reason = "left", f"{found.reason}; {undone}"
    return done


def _remove_orphans(
    run: MaintenanceRun, target: Target, table: Table, now: datetime, result: ActionResult
) -> dict[str, Any]:
    oldest = now - assess.min_orphan_age(target, run.contracts)
    ids = maintenance_table.read_table_ids(run.context.catalog, target.name)
    safe_before = orphan_guard.check_folders(target.name, table, run.folders, ids)
    older_than = min(oldest, safe_before or oldest)
    found = remove_orphans.find_orphan_files(run.context, target, table, older_than)
    result.listing = found.paths[: remove_orphans.MAX_LISTED]
    removed = 0 if run.dry_run else remove_orphans.remove_orphan_files(run.context, target, found, older_than)
    if found.unidentified:
        result.reason = f"{result.reason}; {found.unidentified:,} files of unknown origin are left: see the log"
    if run.dry_run:
        result.state, result.reason = "left", f"{result.reason}; dry run: nothing was removed"
    elif safe_before and safe_before < oldest:
        result.state = "left"
        result.reason = (
            f"{result.reason}; files written after {safe_before:%Y-%m-%d %H:%M} UTC are left: they may belong to "
            f"{', '.join(sorted(run.folders.unreadable))}, which can't be read"
        )
    folders = run.folders.readable.get(target.name) or table_locations.write_folders(table)
    return {"listed": len(found.paths), "removed": removed, "strange": found.unidentified, "folders": folders}
