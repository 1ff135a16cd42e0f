"""Assesses what each maintenance action would do to a table, from metadata alone, without a JVM.

In: tables and an action. Out: an `Assessment` per table: the steps that are due and the figures as the reason. Runs on
the Airflow worker, and again in the Spark application just before the action.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from math import inf
from typing import assert_never

from pyiceberg.table import Table

from sluice.batch import TOPIC
from sluice.contract.folder import Contracts
from sluice.contract.settings import MIN_ORPHAN_AGE, Maintenance
from sluice.errors import CatalogUnavailableError, SluiceError, first_line
from sluice.iceberg import availability, tables
from sluice.ledger import consumers, maintenance_table
from sluice.ledger.maintenance_table import Action, LastCleanup
from sluice.maintain import active_partitions, expiry_plan, file_stats, retention, targets
from sluice.maintain.expiry_plan import AssessmentInputs
from sluice.maintain.file_stats import PartitionFiles, TableFiles
from sluice.maintain.targets import TableKind, Target
from sluice.timestamps import utc_from_micros

log = logging.getLogger(__name__)

MANY_MANIFESTS = 20

MANY_SNAPSHOTS = 500
"""From here on, the rewrite DAG also expires snapshots of Sluice's own tables. It runs more often than the expiry DAG,
and the number of snapshots is most of what a commit to these tables costs."""

SECOND_PASS_S = 120.0
"""For this long, large tables get a second, longer look. After it, the remaining tables get a first look only."""

EMPTY = "the table is empty"
NOT_ASSESSED = "not assessed: out of time; the next run begins with the tables that are left"


@dataclass(frozen=True)
class Assessment:
    """What an action would do to a table.

    Attributes:
        steps: of `files`, `deletes`, `manifests`, `trim`, `history`, `retention`, `snapshots`, `orphans`; empty:
            nothing is due.
        reason: the figures, whether anything is due or not.
        error: why the table could not be assessed.
        where: SQL that selects the files to rewrite; None: all.
        mean_bytes: average size of the files to rewrite.
    """

    table: str
    action: Action
    steps: tuple[str, ...]
    reason: str
    error: str | None = None
    where: str | None = None
    mean_bytes: int = 0


def assess_tables(
    inputs: AssessmentInputs,
    action: Action,
    *,
    names: Collection[str] = (),
    deadline: float = inf,
    run_id: str = "",
) -> list[Assessment]:
    """Assess all tables, or those in `names`. A table that can't be read gets an `error` and stops no other.

    Args:
        deadline: `time.monotonic()` after which no table but the first is assessed. The others get `NOT_ASSESSED`; the
            next run begins with them, so that each table gets its turn.
        run_id: the Airflow run that records where the next one begins.

    Raises:
        ConfigError: `names` holds a table that Sluice does not maintain.
        CatalogUnavailableError: the catalog stopped answering, so that no table can be read.
    """
    catalog = inputs.catalog
    with availability.translate_catalog_errors():
        cleanups = maintenance_table.read_last_cleanups(catalog) if action == Action.ORPHANS else {}
        queue = targets.order_by_turn(targets.list_targets(inputs.contracts, names), catalog, action)
    until = min(time.monotonic() + SECOND_PASS_S, deadline)
    found: list[Assessment] = []
    for target in queue:
        if found and time.monotonic() > deadline:
            break
        try:
            with availability.translate_catalog_errors():
                found.append(assess_table(target, action, inputs, cleanups=cleanups, until=until))
        except Exception as error:
            if isinstance(error, CatalogUnavailableError):
                with availability.translate_catalog_errors():
                    catalog.list_namespaces()  # the catalog answers: only this table's storage is away
            known = isinstance(error, SluiceError)
            log.error("%s: %s", target.name, error, exc_info=not known)
            cause = f"{type(error).__name__}: {error}" if known else first_line(error)
            found.append(Assessment(target.name, action, (), "could not be assessed", cause))
    if left := queue[len(found) :]:
        log.warning("%s: %s tables are not assessed: out of time", action, f"{len(left):,}")
        targets.save_turn(catalog, left[0], action, run_id=run_id)
    return found + [Assessment(target.name, action, (), NOT_ASSESSED) for target in left]


def assess_table(
    target: Target,
    action: Action,
    inputs: AssessmentInputs,
    *,
    cleanups: Mapping[str, LastCleanup],
    until: float = inf,
) -> Assessment:
    """Assess one table.

    Args:
        cleanups: per table, when its orphan files were last removed.
        until: `time.monotonic()` after which a table gets no second, longer look.
    """
    table = tables.load(inputs.catalog, target.identifier)
    if table is not None and target.topic is not None:
        tables.check_owner(table, TOPIC, target.topic)
    if table is None or table.current_snapshot() is None:
        return Assessment(target.name, action, (), EMPTY)
    if action == Action.REWRITE:
        found = _assess_rewrite(target, table, inputs.now, until)
        return _add_snapshots(found, target, table, inputs.now) if target.kind == TableKind.OWN else found
    if action == Action.EXPIRE:
        steps, reason = _assess_expiry(target, table, inputs)
    elif action == Action.ORPHANS:
        steps, reason = _assess_orphans(target, table, cleanups.get(target.name), inputs)
    else:
        assert_never(action)
    return Assessment(target.name, action, steps, reason)


def _assess_rewrite(target: Target, table: Table, now: datetime, until: float) -> Assessment:
    settings = target.settings
    read = partial(file_stats.read_files, table, target=settings.target_file_size, delete_ratio=settings.delete_ratio)
    # Each batch is a partition of staging: its few files can't be merged with others', and are deleted soon anyway.
    files = file_stats.read_manifest_list(table) if target.kind == TableKind.STAGING else read()
    found = _assess_files(target, table, files, now)
    left = min(file_stats.SECOND_BUDGET_S, until - time.monotonic())
    if files.complete or found.steps or left <= 0:
        return found
    return _assess_files(target, table, read(budget=left), now)


def _add_snapshots(found: Assessment, target: Target, table: Table, now: datetime) -> Assessment:
    """Add the step `snapshots` to the rewrite of one of Sluice's own tables that has too many of them."""
    expired = len(expiry_plan.plan_expiry(table, target.settings, now, lambda _: True).expired)
    if expired < MANY_SNAPSHOTS:
        return found
    reason = f"{found.reason}; {expired:,} snapshots can expire"
    return replace(found, steps=(*found.steps, "snapshots"), reason=reason)


def _assess_files(target: Target, table: Table, files: TableFiles, now: datetime) -> Assessment:
    settings, every = target.settings, files.partitions
    due = (
        key
        for key, p in every.items()
        if _has_many_small(p, settings) or p.delete_heavy or p.surplus_deletes >= settings.min_input_files
    )
    choice = active_partitions.choose_partitions(table, every, due, settings, now)
    chosen = [every[key] for key in choice.keys]
    steps, reasons = [], []
    fragmented = [p for p in chosen if _has_many_small(p, settings)]
    count, size = sum(p.small for p in fragmented), sum(p.small_bytes for p in fragmented)
    if fragmented:
        steps.append("files")
        mean = size // count
        reasons.append(f"{count:,} small files of {mean:,} bytes on average in {_partitions(len(fragmented))}")
    if heavy := sum(p.delete_heavy for p in chosen):
        count, size = count + heavy, size + sum(p.delete_heavy_bytes for p in chosen)
        steps = ["files"]
        reasons.append(f"{heavy:,} files with {settings.delete_ratio:.0%} or more of their rows deleted")
    if max((p.surplus_deletes for p in chosen), default=0) >= settings.min_input_files:
        steps.append("deletes")
        reasons.append(f"{sum(p.surplus_deletes for p in chosen):,} surplus delete files")
    if files.small_manifests >= MANY_MANIFESTS:
        steps.append("manifests")
        reasons.append(f"{files.small_manifests:,} small manifests")
    if not steps:
        counts = files.counts
        most = max((p.small for p in every.values()), default=0)
        reasons.append(
            f"{counts.data_files:,} data files, at most {most} small ones in a partition, "
            f"{counts.delete_files:,} delete files, {counts.manifests:,} manifests"
        )
    if choice.waiting:
        reasons.append(f"{_partitions(len(choice.waiting))} skipped: still written to")
    if not files.complete:
        reasons.append("counts are lower bounds: out of time")
    reason, mean = "; ".join(reasons), size // max(count, 1)
    return Assessment(target.name, Action.REWRITE, tuple(steps), reason, where=choice.where, mean_bytes=mean)


def _has_many_small(part: PartitionFiles, settings: Maintenance) -> bool:
    return part.small >= settings.min_input_files or (part.small > 1 and part.small_bytes > settings.target_file_size)


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count:,} partitions"


def oldest_snapshot_rule(target: Target, table: Table, inputs: AssessmentInputs) -> expiry_plan.SnapshotPredicate:
    """Which snapshots may be the oldest of this table's kept chain."""
    if target.kind == TableKind.TYPED:
        return expiry_plan.carries_published
    if needs := _rollback_needs(target, table, inputs):
        return expiry_plan.carries_staged(needs.published_through)
    return lambda _: True


def _rollback_needs(target: Target, table: Table, inputs: AssessmentInputs) -> expiry_plan.RollbackNeeds | None:
    """What rollbacks may need of this table, if it is a staging table."""
    if target.kind != TableKind.STAGING or target.topic is None:
        return None
    return inputs.rollback_needs(target.topic, consumers.read_consumers(table))


def plan_trim(target: Target, table: Table, inputs: AssessmentInputs) -> expiry_plan.TrimPlan | None:
    """The raw records that may be deleted, if this is a staging table; None: none."""
    needs = _rollback_needs(target, table, inputs)
    if needs is None:
        return None
    return expiry_plan.plan_trim(inputs, table, needs, targets.staging_retention(inputs.contracts, needs.topic))


def _assess_expiry(target: Target, table: Table, inputs: AssessmentInputs) -> tuple[tuple[str, ...], str]:
    problems, now = inputs.contracts.problems, inputs.now
    if target.kind == TableKind.STAGING and problems:
        # A table with a broken contract is unknown here, and may not have published yet.
        return (), f"skipped while a contract is broken: {problems[0]}"
    plan = expiry_plan.plan_expiry(table, target.settings, now, oldest_snapshot_rule(target, table, inputs))
    if target.kind == TableKind.TYPED:
        inputs.add_window(target.name, plan.kept)
    trim = plan_trim(target, table, inputs)
    cutoff = expiry_plan.history_cutoff(table, target.history, now) if target.history else None
    steps, reasons = [], []
    if trim:
        steps.append("trim")
        if trim.through >= trim.first:
            reasons.append(f"batches {trim.first} to {trim.through} are published and past their retention")
        elif trim.incomplete:
            reasons.append(f"an earlier trim left rows of batches up to {trim.through}")
        if trim.slices:
            reasons.append(f"{len(trim.slices):,} backfill slices are past their retention")
    if cutoff:
        steps.append("history")
        reasons.append(f"rows from before {cutoff:%Y-%m-%d} are past their history of {_span(now - cutoff)}")
    if target.contract and (expired := retention.find_expired_rows(table, target.contract, now)):
        steps.append("retention")
        reasons.append(expired.reason)
    if plan.expired:
        steps.append("snapshots")
        if plan.reset_main_retention:
            reasons.append("main's own retention keeps less than the contract, and is removed")
    if needs := _rollback_needs(target, table, inputs):
        reasons += needs.holds
    every = table.metadata.snapshots
    age = now - utc_from_micros(1000 * min(s.timestamp_ms for s in every))
    reasons.append(f"{len(plan.expired):,} of {len(every):,} snapshots can expire, the oldest is {_span(age)} old")
    return tuple(steps), "; ".join(reasons)


def min_orphan_age(target: Target, contracts: Contracts) -> timedelta:
    """How old an unreferenced file must be to count as an orphan: longer than any application runs, at least a day."""
    longest = max((g.settings.timeout for g in contracts.groups.values()), default=timedelta(0))
    return max(target.settings.orphan_age, MIN_ORPHAN_AGE, longest)


def _assess_orphans(
    target: Target, table: Table, cleanup: LastCleanup | None, inputs: AssessmentInputs
) -> tuple[tuple[str, ...], str]:
    now = inputs.now
    changed = utc_from_micros(1000 * table.metadata.last_updated_ms)
    if cleanup is None:
        return ("orphans",), f"never checked for orphan files, metadata last written {_span(now - changed)} ago"
    # A batch creates a branch before it writes files: an unchanged table has no files of batches. Maintenance creates
    # no branch, so the time when it last began counts as well.
    age = min_orphan_age(target, inputs.contracts)
    reason = (
        f"last checked for orphan files {_span(now - cleanup.at)} ago, metadata last written {_span(now - changed)} ago"
    )
    written = max(changed, cleanup.begun or changed)
    return (("orphans",) if written > cleanup.at - age else ()), reason


def _span(age: timedelta) -> str:
    seconds = age.total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
