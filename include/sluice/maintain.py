"""Maintain: one action on each of the tables that need it, by Iceberg's own procedures, in one Spark application.

Nothing here may cost a record: rewrites change no row, expiry leaves what `retention` keeps, and orphan clean-up
touches no file that is young. A table that fails stops no other; where another writer comes first, the next run goes
on.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import takewhile
from posixpath import commonprefix
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertRefSnapshotId
from pyspark.sql import Row, SparkSession

from sluice import assess, cursor, facts, folders, refs, retention, tables, upkeep, whereabouts
from sluice.assess import Need
from sluice.commit import Context
from sluice.contract import Maintenance
from sluice.contracts import Contracts
from sluice.errors import AddressMismatchError, FencedError, SluiceError
from sluice.literals import literal, quoted
from sluice.retention import Others
from sluice.upkeep import Action, Cleaned, Effect, Kind, Subject
from sluice.whereabouts import Folders

log = logging.getLogger(__name__)

TRIES = 3
MOST_FILES = 2_000
# Each run leaves three of a few kilobytes per topic in the ledger alone.
MOST_OWN_FILES = 50_000
LEAST_CUT, LEAST_GROUP = 32 << 20, 128 << 20
LISTED = 1_000
DAY = timedelta(days=1)
_STRICT = {"prefix_mismatch_mode": "ERROR"}
_VIEW, _FILES = "sluice_orphan_files", "file_path string, last_modified timestamp"
NEVER = datetime.min.replace(tzinfo=UTC)
_CONFLICT = re.compile(r"Conflicting authorities/schemes: (.*?)\.(?:\s|$)")
# What the catalog or Iceberg say when another writer came first. A ValidationException alone may be for good: say, that
# the table's gc.enabled is false.
_OVERTAKEN = re.compile(
    r"CommitFailedException|CommitStateUnknownException|ValidationException.*([Ff]ound (new|concurrently|conflicting) "
    r"|[Mm]issing (data|required) files|could not be found in the latest snapshot|Cannot determine history)",
    re.DOTALL,
)


def run(
    context: Context,
    action: Action,
    names: Sequence[str],
    contracts: Contracts,
    *,
    deadline: float,
    dry_run: bool = False,
) -> list[Effect]:
    """Carry out an action on the named tables, as far as it is still needed.

    Args:
        names: tables as `assess` names them.
        deadline: `time.monotonic()` after which no table is begun but the first. The tables that had their turn longest
            ago come first, so that each has one however many there are, and though one of them kill the application.
        dry_run: orphan files are listed, and stay.

    Returns:
        What came of those that had their turn, which is also kept in `sluice.maintenance`. A name that the contracts,
        read anew by each application, have no more is left alone, and stops no other.
    """
    cleaned = upkeep.last_cleaned(context.catalog) if action == Action.ORPHANS else {}
    # Once for all: a table that is made meanwhile has none but young files.
    where = cache(partial(whereabouts.known, contracts, context.catalog, context.run_id))
    turns, wanted = upkeep.turns(context.catalog, action), set(names)
    subjects = [s for s in upkeep.subjects(contracts) if s.name in wanted]
    effects = [_gone(name, action, contracts) for name in sorted(wanted - {s.name for s in subjects})]
    unkept = list(effects)
    for number, subject in enumerate(sorted(subjects, key=lambda s: turns.get(s.name, NEVER))):
        if number and time.monotonic() > deadline:
            log.info("%s: %s tables wait, the time was used up", action, f"{len(subjects) - number:,}")
            break
        unkept.append(Effect(subject.name, action, upkeep.BEGUN))
        try:
            # One commit each: should the application be killed, what it did is known, and what it was at.
            upkeep.keep(context.catalog, unkept, run_id=context.run_id)
            unkept = []
        except CommitFailedException as error:  # what was done is done, and the next tables wait
            log.warning("%s %s: to be kept with the next: %s", action, subject.name, error)
        attempt = partial(_attempt, context, subject, contracts, action, cleaned, where, dry_run)
        effect = _maintain(subject, action, attempt)
        log.log(logging.ERROR if effect.red else logging.INFO, "%s %s: %s", action, subject.name, effect.told)
        effects.append(effect)
        unkept.append(effect)
    upkeep.keep(context.catalog, unkept, run_id=context.run_id)
    return effects


def _gone(name: str, action: Action, contracts: Contracts) -> Effect:
    """What is told of a table that the contracts had when the run began, and have no more."""
    told = f"a contract is broken: {contracts.problems[0]}" if contracts.problems else "no contract has it any more"
    log.warning("%s %s: %s", action, name, told)
    return Effect(name, action, "left", told)


def _maintain(subject: Subject, action: Action, attempt: Callable[[Effect], None]) -> Effect:
    """What an action came to, tried again where another writer came first."""
    began = time.monotonic()
    effect = Effect(subject.name, action, "failed")
    for number in range(1, TRIES + 1):
        try:
            attempt(effect)
            effect.error = None
            break
        except Exception as error:
            overtaken = isinstance(error, CommitFailedException) or bool(_OVERTAKEN.search(str(error)))
            effect.state = "left" if overtaken else "failed"
            effect.error = f"{type(error).__name__}: {str(error)[:500]}"
            if not overtaken:
                log.error("%s %s", action, subject.name, exc_info=not isinstance(error, SluiceError))
                break
            log.info("%s %s: another writer came first (%s of %s)", action, subject.name, number, TRIES)
            time.sleep(number)
    effect.seconds = time.monotonic() - began
    effect.at = datetime.now(UTC)
    return effect


def _attempt(
    context: Context,
    subject: Subject,
    contracts: Contracts,
    action: Action,
    cleaned: Mapping[str, Cleaned],
    where: Callable[[], Folders],
    dry_run: bool,
    effect: Effect,
) -> None:
    now = datetime.now(UTC)
    if subject.kind in (Kind.TYPED, Kind.STAGING) and (there := tables.load(context.catalog, subject.identifier)):
        # After a rollback by hand the tag is ahead of main; a chain that is cut afterwards would make it believed.
        refs.heal_tag(context.catalog, there)
    need = assess.look(subject, contracts, context.catalog, action, now=now, cleaned=cleaned)
    effect.reason = need.reason
    if not need.steps:
        effect.state = "idle"
        return
    table, state = context.catalog.load_table(subject.identifier), "done"
    effect.before = effect.before or facts.size(table)
    if action == Action.REWRITE:
        settings, without = _sortable(subject.settings, table)
        if without:
            effect.reason = f"{need.reason}; not sorted, the table has no column {', '.join(without)} yet"
        result = _rewrite(context, subject, settings, need)
        if "snapshots" in need.steps:
            result["expired"] = _expire(context, subject, contracts, need, now)
        if undone := _took_back_deletes(context, table):
            state, effect.reason = "left", f"{need.reason}; {undone}"
    elif action == Action.EXPIRE:
        result = _expire(context, subject, contracts, need, now)
    else:
        found, oldest = where(), now - assess.orphan_age(subject, contracts)
        readable = folders.check(subject.name, table, found, upkeep.known_ids(context.catalog, subject.name))
        result = _remove_orphans(context, subject, table, min(oldest, readable or oldest), dry_run, effect)
        result["folders"] = found.read.get(subject.name) or whereabouts.written(table)
        if result["strange"]:
            effect.reason = f"{need.reason}; {result['strange']:,} files beside its own are left, the log names them"
        if dry_run:
            state, effect.reason = "left", f"{effect.reason}; a dry run: what is listed is there still"
        elif readable and readable < oldest:
            state = "left"
            effect.reason = (
                f"{effect.reason}; files from after {readable:%Y-%m-%d %H:%M} UTC are left, as they may be those of "
                f"{', '.join(sorted(found.damaged))}, which can't be read"
            )
    effect.result = json.dumps(result | {"id": str(table.metadata.table_uuid)}, separators=(",", ":"))
    effect.after = facts.size(context.catalog.load_table(subject.identifier))
    effect.state = state


def _sortable(settings: Maintenance, table: Table) -> tuple[Maintenance, list[str]]:
    """The settings, to sort by what the contract in force has; and what it lacks, such as a column under review."""
    without = sorted(set(settings.sort_by) - {f.name for f in table.schema().fields})
    return (upkeep.unsorted(settings) if without else settings), without


def _rewrite(context: Context, subject: Subject, settings: Maintenance, need: Need) -> dict[str, Any]:
    done: dict[str, Any] = {}
    chosen = {"where": need.where} if need.where else {}
    if "files" in need.steps:
        target = settings.target_file_size
        options = {
            "target-file-size-bytes": target,
            # As `facts` counts them; by Iceberg's own three quarters, 1.3 times the target is cut into two small files.
            "min-file-size-bytes": int(target * facts.SMALL),
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
        done |= _call(context, subject, "rewrite_data_files", **how, options=options)
        if done.get("failed_data_files_count"):
            # With partial progress Iceberg keeps to itself why a group failed. Once more without: now it says so.
            options["partial-progress.enabled"] = "false"
            done["again"] = _call(context, subject, "rewrite_data_files", **how, options=options)
    if "deletes" in need.steps:
        options = {"min-input-files": settings.min_input_files}
        done["deletes"] = _call(context, subject, "rewrite_position_delete_files", **chosen, options=options)
    if "manifests" in need.steps:
        done["manifests"] = _call(context, subject, "rewrite_manifests", use_caching=False)
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
    line = list(cursor.ancestors(now.metadata))
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


def _expire(context: Context, subject: Subject, contracts: Contracts, need: Need, now: datetime) -> dict[str, Any]:
    done: dict[str, Any] = {}
    if "trim" in need.steps:
        done["trimmed_through"] = _trim(context, subject, contracts, now)
    if "history" in need.steps and subject.history:
        outlived = now - subject.history
        _delete(context, subject, f"at <= {literal(outlived)}")
        done["deleted_through"] = outlived.isoformat()
    table = context.catalog.load_table(subject.identifier)
    others = Others(context.catalog, contracts, now)  # as they are by now
    cut = retention.cut(table, subject.settings, now, assess.enough(subject, others))
    if cut.doomed:
        if cut.short:
            head = cut.kept[0].snapshot_id
            here = (AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=head),)
            refs.commit(context.catalog, table, here, (refs.point(refs.MAIN, head),))
        older_than = retention.moment(cut.older_than_ms)
        done |= _call(context, subject, "expire_snapshots", older_than=older_than, retain_last=cut.least)
    return done


def _trim(context: Context, subject: Subject, contracts: Contracts, now: datetime) -> int | None:
    """Delete the raw records of batches that are published and past their retention."""
    staging = context.catalog.load_table(subject.identifier)
    found = assess.trim(subject, staging, Others(context.catalog, contracts, now))
    if found is None:
        return None
    if found.slices:
        _delete(context, subject, f"batch_seq IN ({', '.join(map(str, found.slices))})")
    if found.through >= found.first:
        # Said before it is done: a reader that looks after it has read knows whether anything may have been missing.
        with staging.transaction() as transaction:
            transaction.set_properties({tables.TRIMMED_THROUGH: str(found.through)})
    if found.through >= found.first or found.left:
        _delete_through(context, subject, found.through)
    return found.through


def _delete_through(context: Context, subject: Subject, through: int) -> None:
    # Below zero are the slices of backfills, which go by their own age.
    _delete(context, subject, f"batch_seq > 0 AND batch_seq <= {through}")


def _delete(context: Context, subject: Subject, condition: str) -> None:
    name = tables.spark_name(context.catalog_name, subject.identifier)
    context.spark.sql(f"DELETE FROM {name} WHERE {condition}")  # noqa: S608 - quoted, and numbers


def _remove_orphans(
    context: Context, subject: Subject, table: Table, older_than: datetime, dry_run: bool, effect: Effect
) -> dict[str, Any]:
    """First only list; then remove what was listed. Files of an open batch are younger than the least age."""
    found = {folder: _orphans(context, subject, folder, older_than) for folder in folders.listed(table)}
    ours = {folder: [path for path in each if folders.may_be_ours(path, table)] for folder, each in found.items()}
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
        rows = _rows(context, subject, "remove_orphan_files", older_than=older_than, **named, **_STRICT)
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
        return len(_rows(context, subject, "remove_orphan_files", older_than=older_than, **named, **_STRICT))
    finally:
        context.spark.catalog.dropTempView(_VIEW)


def _call(context: Context, subject: Subject, procedure: str, **arguments: Any) -> dict[str, Any]:
    rows = _rows(context, subject, procedure, **arguments)
    return rows[0].asDict() if rows else {}


def _rows(context: Context, subject: Subject, procedure: str, **arguments: Any) -> list[Row]:
    """Call one of Iceberg's procedures on the table."""
    session: SparkSession = context.spark
    table = ".".join(quoted(part) for part in subject.identifier)
    given = {"table": table, **arguments}
    listed = ", ".join(f"{name} => {_argument(value)}" for name, value in given.items())
    return session.sql(f"CALL {quoted(context.catalog_name)}.system.{procedure}({listed})").collect()


def _argument(value: Any) -> str:
    if isinstance(value, dict):
        return "map(" + ", ".join(literal(str(x)) for pair in value.items() for x in pair) + ")"
    return literal(value)
