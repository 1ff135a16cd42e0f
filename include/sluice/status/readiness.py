"""Is a table fit to be relied on? Each line is worked out from facts, with its evidence and the step to take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from sluice.contract.columns import REGISTERED
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.errors import RefusedError, SluiceError
from sluice.evolve.auto_columns import subject_of
from sluice.iceberg import snapshots, table_names, tables
from sluice.iceberg.filters import And, equal, one_of
from sluice.kafka.registry import Registry, subjects_of
from sluice.kafka.registry_settings import config
from sluice.ledger import maintenance_table
from sluice.ledger.maintenance_table import Action
from sluice.ledger.offsets_table import Ledger, State
from sluice.maintain import assess, subjects
from sluice.operate import rollback
from sluice.status import timeline
from sluice.status.text import duration
from sluice.status.text import moment as utc

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sluice.status.model import TableStatus

WEEK = timedelta(days=7)
FRESHNESS = "Freshness of the last 7 days"
DRILLED = timedelta(days=90)
CLEANED = timedelta(days=14)
# The registry tells one line of a page: it must not keep the others waiting.
SUBJECTS, IMPATIENT = 5, {"timeout": 3, "max.retries": 0}


@dataclass(frozen=True)
class Line:
    """One question about a table.

    Attributes:
        ready: None where the facts that would tell are not there yet.
        evidence: what it was told by.
        step: what would make it ready; empty where nothing need be done.
    """

    subject: str
    ready: bool | None
    evidence: str
    step: str = ""


def of_table(contract: Contract, contracts: Contracts, catalog: Catalog, now: datetime | None = None) -> list[Line]:
    """Every line for one table.

    Args:
        contracts: all of them, with their topics (`topics.resolve`).
    """
    moment = now or datetime.now(UTC)
    table = tables.load(catalog, table_names.typed(contract))
    lines = [*_promised(contract), *_compatibility(contract), _freshness(contract, catalog, moment)]
    if table is not None and table.current_snapshot() is not None:
        lines += [
            _restore_point(contract, table, moment),
            _comes_again(contract, contracts, catalog, table),
            *_drills(contract, catalog, moment),
            _small_files(contract, contracts, catalog, moment),
            _orphans(contract, contracts, catalog, moment),
        ]
    return lines


def standing(lines: Sequence[Line], table: TableStatus) -> list[Line]:
    """The lines beside where the table stands now: batches that never landed are not among those that were late."""
    if table.freshness_kept is not False:
        return list(lines)
    now = f"{duration(table.freshness_now_seconds)} behind now; "
    step = "See the timeline for what holds it up."
    return [
        replace(line, ready=False, evidence=now + line.evidence, step=step) if line.subject == FRESHNESS else line
        for line in lines
    ]


def access(group: str, manager: str, may_start: Mapping[str, bool], *, anybody: bool) -> Line:
    """Who may read the table, and what the reader may do.

    Args:
        manager: the name of Airflow's auth manager.
        may_start: whether the reader may start each of these DAGs.
        anybody: whether no login is asked for.
    """
    told = f"read by those who may read DAG ingest_{group}, as {manager} says"
    if anybody:
        told = "everybody who reaches Airflow is an administrator, without a login"
    for may, words in ((True, "you may start"), (False, "you may not start")):
        if dags := [dag for dag, allowed in may_start.items() if allowed is may]:
            told += f"; {words} {', '.join(dags)}"
    step = (
        "Let [core] simple_auth_manager_all_admins be False, or set an auth manager that knows people."
        if anybody
        else ""
    )
    return Line("Access", not anybody, told, step)


def _promised(contract: Contract) -> Iterator[Line]:
    """What the contract itself answers."""
    yield Line("Owner", True, contract.owner)
    if contract.keyed:
        keys = ", ".join(contract.identifier)
        order = ", ".join(contract.order) if contract.order else "the offset within the partition"
        if contract.upsert:
            yield Line("Key", True, f"one row per {keys}")
            yield Line("Order", True, f"of two records of a key the later by {order} wins")
        else:
            yield Line("Key", True, f"every version of {keys} is a row, valid from {contract.valid_from}")
            yield Line("Order", True, f"a version ends where the next by {order} begins")
        words = (
            "records without a value delete" if contract.tombstones_delete else "records without a value are ignored"
        )
        events = f"; change events by {contract.cdc.format}" if contract.cdc else ""
        kind = f", deletes are {contract.deletes}" if contract.deletes in ("hard", "soft") else ""
        yield Line("Deletes", True, f"{words}{kind}{events}")
    else:
        yield Line("Key", True, "every record is a row, told apart by topic, partition and offset")
    policy = contract.schema_policy.model_dump()
    by_answer = {a: [k.replace("_", " ") for k, v in policy.items() if v == a] for a in ("review", "refuse", "ignore")}
    told = "; ".join(f"{answer}: {', '.join(kinds)}" for answer, kinds in by_answer.items() if kinds)
    ignored = by_answer["ignore"]
    yield Line(
        "Changes of shape", not ignored, told or "all changes are made by themselves",
        "An ignored change leaves contract and table apart: set it to review." if ignored else "",
    )  # fmt: skip
    count = len(contract.expectations)
    stops = sum(e.severity == "block" for e in contract.expectations)
    yield Line(
        "Expectations", count > 0, f"{count} are held against each batch, {stops} of them can stop it",
        "" if count else "Add `expectations:` to the contract.",
    )  # fmt: skip


def _compatibility(contract: Contract) -> Iterator[Line]:
    """Whether the registry lets any schema in; what has none tells nothing."""
    if contract.value.format not in REGISTERED:
        return
    named = dict.fromkeys(s for topic in contract.topics for s in subjects_of(topic, contract.value.types))
    subjects = [subject_of(contract)] if contract.auto else list(named)
    try:
        registry = Registry({**config(), **IMPATIENT})
        known = [s for s in subjects[:SUBJECTS] if registry.newest(s)]
        levels = {s: registry.compatibility(s) for s in known}
    except SluiceError as error:
        yield Line("Compatibility", None, error.message)
        return
    told = ", ".join(f"{s}: {level}" for s, level in levels.items()) or "no schema is registered"
    told += f"; {len(subjects) - SUBJECTS} more were not asked for" if len(subjects) > SUBJECTS else ""
    ready = "NONE" not in levels.values() if levels else None
    step = "Have the registry hold new schemas against the last: with NONE it takes any." if ready is False else ""
    yield Line("Compatibility", ready, told, step)


def _freshness(contract: Contract, catalog: Catalog, now: datetime) -> Line:
    if contract.freshness is None:
        return Line(FRESHNESS, False, "none is promised", "Set `freshness:` in the contract.")
    promised = contract.freshness.total_seconds()
    delays = [e.delay for e in timeline.published(catalog, now - WEEK, contract) if e.delay is not None]
    if not delays:
        return Line(FRESHNESS, None, "no batch was published of which the ledger tells how old its records were")
    late = sum(delay > promised for delay in delays)
    told = (
        f"{len(delays) - late:,} of {len(delays):,} batches landed within {duration(promised)} of their oldest record"
    )
    told += f", the slowest {duration(max(delays))} after it"
    return Line(FRESHNESS, not late, told, "See the timeline for what held them up." if late else "")


def _restore_point(contract: Contract, table: Table, now: datetime) -> Line:
    line = list(snapshots.ancestors(table.metadata))
    back = now - snapshots.committed_at(line[-1])
    window = contract.maintenance.snapshot_age
    whole = snapshots.began(line[-1])
    told = f"{len(line):,} snapshots, back to {utc(snapshots.committed_at(line[-1]))}"
    told += "; the table's first is among them" if whole else ""
    ready = whole or back >= window
    step = "" if ready else "Somebody expired more than Sluice does: let only maintain_expire_snapshots expire."
    return Line("Restore point", ready, f"{told}; {duration(window.total_seconds())} are promised", step)


def _comes_again(contract: Contract, contracts: Contracts, catalog: Catalog, table: Table) -> Line:
    """A rollback to the oldest snapshot there is: would everything come again that it undoes?"""
    subject = "Raw records for a rollback"
    *undone, oldest = snapshots.ancestors(table.metadata)
    if not undone:
        return Line(subject, True, "there is but one snapshot, and nothing to roll back")
    existing = tables.load(catalog, table_names.LEDGER)
    try:
        found = rollback.look(
            contract.table, contracts, catalog, Ledger(catalog, existing) if existing else None,
            snapshot_id=oldest.snapshot_id,
        )  # fmt: skip
    except RefusedError as error:
        return Line(subject, False, str(error), error.way_out or "")
    except SluiceError as error:
        return Line(subject, None, str(error))
    again = [held for batches in found.again.values() for held in batches]
    gone = [held for held in again if not held.whole]
    topics = (subjects.staging_retention(contracts, topic) for topic in contract.topics)
    kept = min(topics, default=subjects.STAGING_RETENTION)
    window = contract.maintenance.snapshot_age
    margin = duration((kept - window).total_seconds())
    told = f"from the restore point on {len(again):,} batches would be published again, {len(gone):,} of them are gone"
    told += f"; staging keeps them {duration(kept.total_seconds())} after they are published, "
    told += f"{margin} longer than snapshots are kept to go back to"
    return Line(subject, not gone, told, "Let staging_retention be longer than snapshot_age." if gone else "")


def _drills(contract: Contract, catalog: Catalog, now: datetime) -> Iterator[Line]:
    ledger = tables.load(catalog, table_names.LEDGER)
    last: dict[str, datetime] = {}
    if ledger is not None and ledger.current_snapshot() is not None:
        states = one_of("state", [str(State.ROLLED_BACK), str(State.REPLAYED)])
        where = And(equal("table", contract.table), states)
        for row in ledger.scan(row_filter=where, selected_fields=("state", "at")).to_arrow().to_pylist():
            last[row["state"]] = max(row["at"], last.get(row["state"], row["at"]))
    for state, subject, step in (
        (
            State.ROLLED_BACK,
            "Rollback drilled",
            "Roll a copy or the table itself back by DAG rollback, and let it catch up.",
        ),
        (
            State.REPLAYED,
            "Replay drilled",
            "Bring a range again by DAG backfill: what is there already stays as it is.",
        ),
    ):
        at = last.get(state)
        ready = at is not None and now - at <= DRILLED
        told = f"last at {utc(at)}" if at else "never, as far as the ledger tells"
        yield Line(subject, ready, told, "" if ready else step)


def _small_files(contract: Contract, contracts: Contracts, catalog: Catalog, now: datetime) -> Line:
    need = _need(contract, contracts, catalog, Action.REWRITE, now, {})
    step = "Unpause DAG maintain_rewrite_data_files." if need.steps else ""
    return Line("Small files", not need.steps, need.reason, step)


def _orphans(contract: Contract, contracts: Contracts, catalog: Catalog, now: datetime) -> Line:
    """A table that nobody wrote to since needs no further look, however long ago the last one was."""
    cleaned = maintenance_table.last_cleaned(catalog)
    need = _need(contract, contracts, catalog, Action.ORPHANS, now, cleaned)
    last = cleaned.get(contract.table)
    ready = not need.steps or (last is not None and now - last.at <= CLEANED)
    return Line("Orphan files", ready, need.reason, "" if ready else "Unpause DAG maintain_remove_orphan_files.")


def _need(
    contract: Contract,
    contracts: Contracts,
    catalog: Catalog,
    action: Action,
    now: datetime,
    cleaned: Mapping[str, maintenance_table.Cleaned],
) -> assess.Need:
    subject = next(s for s in subjects.subjects(contracts) if s.name == contract.table)
    return assess.look(subject, contracts, catalog, action, now=now, cleaned=cleaned)
