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
from datetime import UTC, datetime
from functools import cache, partial

from pyiceberg.exceptions import CommitFailedException

from sluice.contract.folder import Contracts
from sluice.errors import SluiceError
from sluice.iceberg import refs, tables
from sluice.ingest.landing import Context
from sluice.ledger import maintenance_table
from sluice.ledger.maintenance_table import Action, Cleaned, Effect
from sluice.maintain import assess, expire, file_stats, orphan_guard, remove_orphans, rewrite, table_locations
from sluice.maintain import subjects as maintain_subjects
from sluice.maintain.subjects import Kind, Subject
from sluice.maintain.table_locations import Folders

log = logging.getLogger(__name__)

TRIES = 3
NEVER = datetime.min.replace(tzinfo=UTC)
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
    cleaned = maintenance_table.last_cleaned(context.catalog) if action == Action.ORPHANS else {}
    # Once for all: a table that is made meanwhile has none but young files.
    where = cache(partial(table_locations.known, contracts, context.catalog, context.run_id))
    turns, wanted = maintenance_table.turns(context.catalog, action), set(names)
    subjects = [s for s in maintain_subjects.subjects(contracts) if s.name in wanted]
    effects = [_gone(name, action, contracts) for name in sorted(wanted - {s.name for s in subjects})]
    unkept = list(effects)
    for number, subject in enumerate(sorted(subjects, key=lambda s: turns.get(s.name, NEVER))):
        if number and time.monotonic() > deadline:
            log.info("%s: %s tables wait, the time was used up", action, f"{len(subjects) - number:,}")
            break
        unkept.append(Effect(subject.name, action, maintenance_table.BEGUN))
        try:
            # One commit each: should the application be killed, what it did is known, and what it was at.
            maintenance_table.keep(context.catalog, unkept, run_id=context.run_id)
            unkept = []
        except CommitFailedException as error:  # what was done is done, and the next tables wait
            log.warning("%s %s: to be kept with the next: %s", action, subject.name, error)
        attempt = partial(_attempt, context, subject, contracts, action, cleaned, where, dry_run)
        effect = _maintain(subject, action, attempt)
        log.log(logging.ERROR if effect.red else logging.INFO, "%s %s: %s", action, subject.name, effect.told)
        effects.append(effect)
        unkept.append(effect)
    maintenance_table.keep(context.catalog, unkept, run_id=context.run_id)
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
    effect.before = effect.before or file_stats.size(table)
    if action == Action.REWRITE:
        settings, without = rewrite._sortable(subject.settings, table)
        if without:
            effect.reason = f"{need.reason}; not sorted, the table has no column {', '.join(without)} yet"
        result = rewrite._rewrite(context, subject, settings, need)
        if "snapshots" in need.steps:
            result["expired"] = expire._expire(context, subject, contracts, need, now)
        if undone := rewrite._took_back_deletes(context, table):
            state, effect.reason = "left", f"{need.reason}; {undone}"
    elif action == Action.EXPIRE:
        result = expire._expire(context, subject, contracts, need, now)
    else:
        found, oldest = where(), now - assess.orphan_age(subject, contracts)
        readable = orphan_guard.check(
            subject.name, table, found, maintenance_table.known_ids(context.catalog, subject.name)
        )
        result = remove_orphans._remove_orphans(
            context, subject, table, min(oldest, readable or oldest), dry_run, effect
        )
        result["folders"] = found.read.get(subject.name) or table_locations.written(table)
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
    effect.after = file_stats.size(context.catalog.load_table(subject.identifier))
    effect.state = state
