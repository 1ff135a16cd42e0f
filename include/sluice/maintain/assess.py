"""Assess: what each maintenance action would find to do in a table, from metadata alone, with the figure as the reason.

Runs on the Airflow worker, without a JVM, and again in the Spark application just before the action.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.contract.folder import Contracts
from sluice.contract.settings import ORPHAN_FLOOR, Maintenance
from sluice.errors import CatalogUnavailableError, SluiceError, first_line
from sluice.iceberg import availability, tables
from sluice.ledger import maintenance_table
from sluice.ledger.maintenance_table import Action, Cleaned
from sluice.maintain import active_partitions, expiry, file_stats
from sluice.maintain import subjects as maintain_subjects
from sluice.maintain.expiry import Others
from sluice.maintain.file_stats import Facts, PartitionFacts
from sluice.maintain.subjects import Kind, Subject

log = logging.getLogger(__name__)

MANY_MANIFESTS = 20

MANY_SNAPSHOTS = 500
"""So many of one of Sluice's own tables are expired by the rewrite's DAG as well, which comes more often: every run
makes some, and they are most of what a commit there costs."""

SECOND_LOOKS_S = 120.0
"""For so long large tables are looked at once more: the others' first looks must not wait for it."""

EMPTY = "it holds nothing yet"
WAITS = "not looked at, the time was used up; the next run begins with what was left"


@dataclass(frozen=True)
class Need:
    """What an action finds in a table.

    Attributes:
        steps: what is to be done, of `files`, `deletes`, `manifests`, `trim`, `history`, `snapshots`, `orphans`; empty:
            nothing.
        reason: the figures, whether anything is to be done or not.
        error: why the table could not be assessed.
        where: SQL that selects the files to rewrite; None: all.
        mean_bytes: of the files to rewrite.
    """

    table: str
    action: Action
    steps: tuple[str, ...]
    reason: str
    error: str | None = None
    where: str | None = None
    mean_bytes: int = 0


def assess(
    contracts: Contracts,
    catalog: Catalog,
    action: Action,
    *,
    names: Collection[str] = (),
    now: datetime | None = None,
    deadline: float = inf,
    run_id: str = "",
) -> list[Need]:
    """Assess every table, or those of these names; one that can't be read is told as an error and stops no other.

    Args:
        deadline: `time.monotonic()` after which no table is looked at but the first. Those that are left are told as
            such, and the next run begins with them, so that each has its look, however many there are.
        run_id: the Airflow run, under which it is kept with which one that is.

    Raises:
        ConfigError: a name is not that of a table which Sluice maintains.
        CatalogUnavailableError: the catalog itself went away meanwhile, so that no table can be read.
    """
    moment = now or datetime.now(UTC)
    with availability.catalog_errors():
        cleaned = maintenance_table.last_cleaned(catalog) if action == Action.ORPHANS else {}
        subjects = maintain_subjects.in_turn(maintain_subjects.subjects(contracts, names), catalog, action)
    until = min(time.monotonic() + SECOND_LOOKS_S, deadline)
    others = Others(catalog, contracts, moment)
    look_at = partial(look, action=action, now=moment, cleaned=cleaned, others=others, until=until)
    needs: list[Need] = []
    for subject in subjects:
        if needs and time.monotonic() > deadline:
            break
        try:
            with availability.catalog_errors():
                needs.append(look_at(subject, contracts, catalog))
        except Exception as error:
            if isinstance(error, CatalogUnavailableError):
                with availability.catalog_errors():
                    catalog.list_namespaces()  # it answers: so it is this table's storage
            known = isinstance(error, SluiceError)
            log.error("%s: %s", subject.name, error, exc_info=not known)
            told = f"{type(error).__name__}: {error}" if known else first_line(error)  # as the runbook lists it
            needs.append(Need(subject.name, action, (), "could not be assessed", told))
    if left := subjects[len(needs) :]:
        log.warning("%s: %s tables are not looked at, the time was used up", action, f"{len(left):,}")
        maintain_subjects.keep_turn(catalog, left[0], action, run_id=run_id)
    return needs + [Need(s.name, action, (), WAITS) for s in left]


def look(
    subject: Subject,
    contracts: Contracts,
    catalog: Catalog,
    action: Action,
    *,
    now: datetime,
    cleaned: Mapping[str, Cleaned],
    others: Others | None = None,
    until: float | None = None,
) -> Need:
    """Assess one table.

    Args:
        others: what was read of other tables for looks before; to be read when left out.
        until: as in `_rewrite`.
    """
    table = tables.load(catalog, subject.identifier)
    if table is None or table.current_snapshot() is None:
        return Need(subject.name, action, (), EMPTY)
    if action == Action.REWRITE:
        need = _rewrite(subject, table, now, until)
        return _with_snapshots(need, subject, table, now) if subject.kind == Kind.OWN else need
    if action == Action.EXPIRE:
        steps, reason = _expire(subject, table, others or Others(catalog, contracts, now))
    else:
        steps, reason = _orphans(subject, table, cleaned.get(subject.name), now, contracts)
    return Need(subject.name, action, steps, reason)


def _rewrite(subject: Subject, table: Table, now: datetime, until: float | None = None) -> Need:
    """What a rewrite would find.

    Args:
        until: when there is no time left to look once more.
    """
    settings = subject.settings
    read = partial(file_stats.read, table, target=settings.target_file_size, delete_ratio=settings.delete_ratio)
    # A batch is a partition of staging: its few files can't be put together with those of others, and they go anyway.
    found = file_stats.outline(table) if subject.kind == Kind.STAGING else read()
    need = _of_facts(subject, table, found, now)
    left = file_stats.PATIENT_S if until is None else min(file_stats.PATIENT_S, until - time.monotonic())
    if found.complete or need.steps or left <= 0:
        return need
    return _of_facts(subject, table, read(budget=left), now)


def _with_snapshots(need: Need, subject: Subject, table: Table, now: datetime) -> Need:
    """What a rewrite would find in one of Sluice's own tables, of which snapshots may have to be expired as well."""
    doomed = len(expiry.cut(table, subject.settings, now, lambda _: True).doomed)
    if doomed < MANY_SNAPSHOTS:
        return need
    told = f"{need.reason}; {doomed:,} snapshots are not needed"
    return replace(need, steps=(*need.steps, "snapshots"), reason=told)


def _of_facts(subject: Subject, table: Table, found: Facts, now: datetime) -> Need:
    settings, all_parts = subject.settings, found.partitions
    needy = (
        k for k, p in all_parts.items() if _crowded(p, settings) or p.worn or p.surplus >= settings.min_input_files
    )
    choice = active_partitions.choose(table, all_parts, needy, settings, now)
    parts = [all_parts[key] for key in choice.keys]
    steps, reasons = [], []
    crowded = [p for p in parts if _crowded(p, settings)]
    count, held = sum(p.small for p in crowded), sum(p.small_bytes for p in crowded)
    if crowded:
        steps.append("files")
        mean = held // count
        reasons.append(f"{count:,} small files of {mean:,} bytes on average in {_partitions(len(crowded))}")
    if worn := sum(p.worn for p in parts):
        count, held = count + worn, held + sum(p.worn_bytes for p in parts)
        steps = ["files"]
        reasons.append(f"{worn:,} files with {settings.delete_ratio:.0%} or more of their rows deleted")
    if max((p.surplus for p in parts), default=0) >= settings.min_input_files:
        steps.append("deletes")
        reasons.append(f"{sum(p.surplus for p in parts):,} delete files too many")
    if found.small_manifests >= MANY_MANIFESTS:
        steps.append("manifests")
        reasons.append(f"{found.small_manifests:,} small manifests")
    if not steps:
        size = found.size
        most = max((p.small for p in all_parts.values()), default=0)
        reasons.append(
            f"{size.data_files:,} data files, at most {most} small ones in a partition, "
            f"{size.delete_files:,} delete files, {size.manifests:,} manifests"
        )
    if choice.waiting:
        reasons.append(f"{_partitions(len(choice.waiting))} still written to, left alone")
    if not found.complete:
        reasons.append("at least, time was used up")
    told, mean = "; ".join(reasons), held // max(count, 1)
    return Need(subject.name, Action.REWRITE, tuple(steps), told, where=choice.where, mean_bytes=mean)


def _crowded(part: PartitionFacts, settings: Maintenance) -> bool:
    return part.small >= settings.min_input_files or (part.small > 1 and part.small_bytes > settings.target_file_size)


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count:,} partitions"


def enough(subject: Subject, others: Others) -> expiry.Enough:
    """With which snapshot the chain of this table may end."""
    if subject.kind == Kind.TYPED:
        return expiry.carries_published
    if subject.kind == Kind.STAGING and subject.topic:
        return expiry.carries_staged(others.floor(subject.topic))
    return lambda _: True


def trim(subject: Subject, table: Table, others: Others) -> expiry.Trim | None:
    """The batches that may leave this table, if it is staging."""
    topic = subject.topic
    if subject.kind != Kind.STAGING or topic is None:
        return None
    kept = maintain_subjects.staging_retention(others.contracts, topic)
    return expiry.trim(others, table, topic, others.floor(topic), others.undoable(topic), kept)


def _expire(subject: Subject, table: Table, others: Others) -> tuple[tuple[str, ...], str]:
    problems, now = others.contracts.problems, others.now
    if subject.kind == Kind.STAGING and problems:
        # A table whose contract can't be read is in none of the maps, and may not have published yet.
        return (), f"left alone while a contract is broken: {problems[0]}"
    cut = expiry.cut(table, subject.settings, now, enough(subject, others))
    if subject.kind == Kind.TYPED:
        others.note(subject.name, cut.kept)
    trimmed = trim(subject, table, others)
    outlived = expiry.outlived(table, subject.history, now) if subject.history else None
    steps, reasons = [], []
    oldest = min(s.timestamp_ms for s in table.metadata.snapshots)
    age = now - expiry.moment(oldest)
    if trimmed:
        steps.append("trim")
        if trimmed.through >= trimmed.first:
            reasons.append(f"batches {trimmed.first} to {trimmed.through} are published and past their retention")
        elif trimmed.left:
            reasons.append(f"rows of batches up to {trimmed.through} are still there")
        if trimmed.slices:
            reasons.append(f"{len(trimmed.slices):,} slices of backfills are past their retention")
    if outlived:
        steps.append("history")
        reasons.append(f"rows from before {outlived:%Y-%m-%d} have outlived {_span(now - outlived)}")
    if cut.doomed:
        steps.append("snapshots")
        reasons += ["main was told to keep less by itself, which is taken off"] if cut.short else []
    total = len(table.metadata.snapshots)
    reasons.append(f"{len(cut.doomed):,} of {total:,} snapshots are not needed, the oldest is {_span(age)} old")
    return tuple(steps), "; ".join(reasons)


def orphan_age(subject: Subject, contracts: Contracts) -> timedelta:
    """The least age of a file to be taken for an orphan: longer than any application may run, and a day at least."""
    longest = max((g.settings.timeout for g in contracts.groups.values()), default=timedelta(0))
    return max(subject.settings.orphan_age, ORPHAN_FLOOR, longest)


def _orphans(
    subject: Subject, table: Table, cleaned: Cleaned | None, now: datetime, contracts: Contracts
) -> tuple[tuple[str, ...], str]:
    changed = expiry.moment(table.metadata.last_updated_ms)
    if cleaned is None:
        return ("orphans",), f"never looked for orphan files, last changed {_span(now - changed)} ago"
    # A batch makes a branch before it writes: a table that did not change has no files of it. Maintenance makes none.
    age = orphan_age(subject, contracts)
    looked = f"last looked for orphan files {_span(now - cleaned.at)} ago, last changed {_span(now - changed)} ago"
    written = max(changed, cleaned.begun or changed)
    return (("orphans",) if written > cleaned.at - age else ()), looked


def _span(age: timedelta) -> str:
    seconds = age.total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
