"""The readiness checks of a table: is it fit to be relied on?

In: contract, table, ledger, registry. Out: one `ReadinessCheck` per question, with evidence and next step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from sluice import dag_ids
from sluice.contract.columns import REGISTRY_FORMATS
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.errors import RefusedError, RequirementsNotEnforcedError, SluiceError
from sluice.evolve.auto_columns import find_subject
from sluice.iceberg import requirements_check, snapshots, table_names, tables
from sluice.iceberg.filters import And, equal, one_of
from sluice.kafka.registry import SchemaRegistry, candidate_subjects
from sluice.kafka.registry_settings import registry_config
from sluice.ledger import maintenance_table, pilot_table
from sluice.ledger.ledger_rows import LedgerState
from sluice.ledger.maintenance_table import Action
from sluice.ledger.offsets_table import Ledger
from sluice.maintain import assess, targets
from sluice.maintain.expiry_plan import AssessmentInputs
from sluice.operate import rollback
from sluice.operate.rollback_target import RestorePoint
from sluice.status import rehearsed, timeline
from sluice.status.text import duration, utc_text

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sluice.status.model import TableStatus

WEEK = timedelta(days=7)
FRESHNESS = "Freshness of the last 7 days"
MAX_DRILL_AGE = timedelta(days=90)
MAX_CLEANUP_AGE = timedelta(days=14)
# The registry answers one check: a slow one must not delay the others.
MAX_SUBJECTS, FAST_HTTP = 5, {"timeout": 3, "max.retries": 0}


@dataclass(frozen=True)
class ReadinessCheck:
    """One check of a table.

    Attributes:
        ready: None if the facts are not there yet.
        evidence: the measured facts.
        step: the next step; empty if nothing need be done.
    """

    subject: str
    ready: bool | None
    evidence: str
    step: str = ""


def check_table(
    contract: Contract,
    contracts: Contracts,
    catalog: Catalog,
    now: datetime | None = None,
    paused: Mapping[str, bool] = MappingProxyType({}),
) -> list[ReadinessCheck]:
    """Run all checks of one table.

    Args:
        contracts: all contracts, with resolved topics.
        paused: whether each maintenance DAG is paused, as far as it is known.
    """
    now = now or datetime.now(UTC)
    table = tables.load(catalog, table_names.typed(contract))
    lines = [*_check_contract(contract), *_check_compatibility(contract), _check_freshness(contract, catalog, now)]
    if table is not None and table.current_snapshot() is not None:
        ledger = tables.load(catalog, table_names.LEDGER)
        lines += [
            _check_requirements(catalog, ledger),
            _check_restore_point(contract, table, now),
            _check_rollback_records(contract, contracts, catalog, table),
            *_check_drills(contract, ledger, now),
            _check_rehearsal(contract, catalog, now),
            _check_small_files(contract, AssessmentInputs(catalog, contracts, now), paused),
            _check_orphan_files(contract, AssessmentInputs(catalog, contracts, now), paused),
        ]
    return lines


def with_current_freshness(checks: Sequence[ReadinessCheck], table: TableStatus) -> list[ReadinessCheck]:
    """Mark freshness as not ready while the table is late: unpublished batches are not in the history."""
    if table.freshness_kept is not False:
        return list(checks)
    now = f"currently {duration(table.freshness_now_seconds)} behind; "
    step = "See the timeline."
    return [
        replace(check, ready=False, evidence=now + check.evidence, step=step) if check.subject == FRESHNESS else check
        for check in checks
    ]


def check_access(group: str, manager: str, may_start: Mapping[str, bool], *, anybody: bool) -> ReadinessCheck:
    """Who may see the table, and which DAGs the user may trigger.

    Args:
        manager: class name of Airflow's auth manager.
        may_start: whether the user may trigger each of these DAGs.
        anybody: whether Airflow works without a login.
    """
    evidence = f"visible to users who may read DAG {dag_ids.ingest_dag(group)} ({manager})"
    if anybody:
        evidence = "anybody who can reach Airflow is an administrator, without a login"
    for may, text in ((True, "you may trigger"), (False, "you may not trigger")):
        if dags := [dag for dag, allowed in may_start.items() if allowed is may]:
            evidence += f"; {text} {', '.join(dags)}"
    step = "Set [core] simple_auth_manager_all_admins to False, or configure another auth manager." if anybody else ""
    return ReadinessCheck("Access", not anybody, evidence, step)


def _check_contract(contract: Contract) -> Iterator[ReadinessCheck]:
    yield ReadinessCheck("Owner", True, contract.owner)
    if contract.keyed:
        keys = ", ".join(contract.identifier)
        order = ", ".join(contract.order) if contract.order else "offset within the partition"
        if contract.upsert:
            yield ReadinessCheck("Key", True, f"one row per {keys}")
            yield ReadinessCheck("Order", True, f"the latest record of a key by {order} wins")
        else:
            yield ReadinessCheck("Key", True, f"one row per version of {keys}, valid from {contract.valid_from}")
            yield ReadinessCheck("Order", True, f"a version ends when the next one by {order} begins")
        tombstones = "tombstones delete rows" if contract.tombstones_delete else "tombstones are ignored"
        events = f"; {contract.cdc.format} change events" if contract.cdc else ""
        kind = f", {contract.deletes} deletes" if contract.deletes in ("hard", "soft") else ""
        yield ReadinessCheck("Deletes", True, f"{tombstones}{kind}{events}")
    else:
        yield ReadinessCheck("Key", True, "one row per record, identified by topic, partition and offset")
    policy = contract.schema_policy.model_dump()
    by_answer = {a: [k.replace("_", " ") for k, v in policy.items() if v == a] for a in ("review", "refuse", "ignore")}
    evidence = "; ".join(f"{answer}: {', '.join(kinds)}" for answer, kinds in by_answer.items() if kinds)
    ignored = by_answer["ignore"]
    yield ReadinessCheck(
        "Schema change policy", not ignored, evidence or "all changes are applied automatically",
        "Set ignored changes to review: they leave the table different from its contract." if ignored else "",
    )  # fmt: skip
    count = len(contract.expectations)
    stops = sum(e.severity == "block" for e in contract.expectations)
    yield ReadinessCheck(
        "Expectations", count > 0, f"{count} are evaluated per batch, {stops} of them can block it",
        "" if count else "Add `expectations:` to the contract.",
    )  # fmt: skip


def _check_compatibility(contract: Contract) -> Iterator[ReadinessCheck]:
    """Whether the registry checks new schemas for compatibility; nothing for formats without a registry."""
    if contract.value.format not in REGISTRY_FORMATS:
        return
    all_subjects = dict.fromkeys(
        s for topic in contract.topics for s in candidate_subjects(topic, contract.value.types)
    )
    subjects = [find_subject(contract)] if contract.auto else list(all_subjects)
    try:
        registry = SchemaRegistry({**registry_config(), **FAST_HTTP})
        known = [s for s in subjects[:MAX_SUBJECTS] if registry.newest(s)]
        levels = {s: registry.compatibility(s) for s in known}
    except SluiceError as error:
        yield ReadinessCheck("Compatibility", None, error.message)
        return
    evidence = ", ".join(f"{s}: {level}" for s, level in levels.items()) or "no schema is registered"
    evidence += f"; {len(subjects) - MAX_SUBJECTS} more are not checked" if len(subjects) > MAX_SUBJECTS else ""
    ready = "NONE" not in levels.values() if levels else None
    step = "Set a compatibility level in the registry: NONE accepts any schema." if ready is False else ""
    yield ReadinessCheck("Compatibility", ready, evidence, step)


def _check_freshness(contract: Contract, catalog: Catalog, now: datetime) -> ReadinessCheck:
    if contract.freshness is None:
        return ReadinessCheck(FRESHNESS, False, "no target is set", "Set `freshness:` in the contract.")
    target = contract.freshness.total_seconds()
    delays = [e.delay for e in timeline.read_published_batches(catalog, now - WEEK, contract) if e.delay is not None]
    if not delays:
        return ReadinessCheck(FRESHNESS, None, "no published batch with record timestamps in the ledger")
    late = sum(delay > target for delay in delays)
    evidence = (
        f"{len(delays) - late:,} of {len(delays):,} batches were published within {duration(target)} of their oldest "
    )
    evidence += f"record, the slowest {duration(max(delays))} after it"
    return ReadinessCheck(FRESHNESS, not late, evidence, "See the timeline." if late else "")


def _check_requirements(catalog: Catalog, ledger: Table | None) -> ReadinessCheck:
    """Whether the catalog refuses commits whose requirements do not hold, as planning found and kept."""
    answer = ledger.properties.get(requirements_check.ENFORCED) if ledger else None
    kind = requirements_check.identify(catalog)
    if answer == kind:
        ready, evidence = (
            True,
            f"the catalog ({kind}) refuses a commit where another writer was faster: no data is lost",
        )
    elif answer == requirements_check.NOT_ENFORCED:
        ready, evidence = False, f"the catalog ({kind}) accepts a commit that overwrites one of another writer"
    else:
        ready, evidence = None, "not checked yet; the next plan does it"
    step = RequirementsNotEnforcedError.advice if ready is False else ""
    return ReadinessCheck("Commit requirements", ready, evidence, step)


def _check_restore_point(contract: Contract, table: Table, now: datetime) -> ReadinessCheck:
    history = list(snapshots.ancestors(table.metadata))
    back = now - snapshots.committed_at(history[-1])
    window = contract.maintenance.snapshot_age
    whole = snapshots.is_first_snapshot(history[-1])
    evidence = f"{len(history):,} snapshots, back to {utc_text(snapshots.committed_at(history[-1]))}"
    evidence += "; the first one is kept" if whole else ""
    ready = whole or back >= window
    step = "" if ready else f"Expire snapshots only with {dag_ids.EXPIRE_SNAPSHOTS}: something else expired more."
    evidence += f"; the rollback window is {duration(window.total_seconds())}"
    return ReadinessCheck("Restore point", ready, evidence, step)


def _check_rollback_records(contract: Contract, contracts: Contracts, catalog: Catalog, table: Table) -> ReadinessCheck:
    """Whether a rollback to the oldest snapshot could republish everything that it undoes."""
    subject = "Raw records for a rollback"
    *undone, oldest = snapshots.ancestors(table.metadata)
    if not undone:
        return ReadinessCheck(subject, True, "there is only one snapshot")
    existing = tables.load(catalog, table_names.LEDGER)
    try:
        ledger = Ledger(catalog, existing) if existing else None
        point = RestorePoint(snapshot_id=oldest.snapshot_id)
        found = rollback.preview_rollback(contract.table, contracts, catalog, ledger, point)
    except RefusedError as error:
        return ReadinessCheck(subject, False, str(error), error.next_step or "")
    except SluiceError as error:
        return ReadinessCheck(subject, None, str(error))
    again = [batch for batches in found.republish.values() for batch in batches]
    gone = [batch for batch in again if not batch.complete]
    topics = (targets.staging_retention(contracts, topic) for topic in contract.topics)
    kept = min(topics, default=targets.STAGING_RETENTION)
    window = contract.maintenance.snapshot_age
    margin = duration((kept - window).total_seconds())
    evidence = f"{len(again):,} batches since the restore point, {len(gone):,} of them no longer in staging"
    evidence += f"; staging keeps batches {duration(kept.total_seconds())} after they are published, "
    evidence += f"{margin} longer than the rollback window"
    step = "Set staging_retention longer than snapshot_age." if gone else ""
    return ReadinessCheck(subject, not gone, evidence, step)


def _check_drills(contract: Contract, ledger: Table | None, now: datetime) -> Iterator[ReadinessCheck]:
    last: dict[str, datetime] = {}
    if ledger is not None and ledger.current_snapshot() is not None:
        states = one_of("state", [str(LedgerState.ROLLED_BACK), str(LedgerState.REPLAYED)])
        where = And(equal("table", contract.table), states)
        for row in ledger.scan(row_filter=where, selected_fields=("state", "at")).to_arrow().to_pylist():
            last[row["state"]] = max(row["at"], last.get(row["state"], row["at"]))
    for state, subject, step in (
        (
            LedgerState.ROLLED_BACK,
            "Rollback tested",
            f"Roll back this table or a copy with DAG {dag_ids.ROLLBACK}, and let it catch up.",
        ),
        (
            LedgerState.REPLAYED,
            "Replay tested",
            f"Replay a range with DAG {dag_ids.BACKFILL}; rows that exist stay unchanged.",
        ),
    ):
        at = last.get(state)
        ready = at is not None and now - at <= MAX_DRILL_AGE
        evidence = f"last at {utc_text(at)}" if at else "never, according to the ledger"
        yield ReadinessCheck(subject, ready, evidence, "" if ready else step)


def _check_rehearsal(contract: Contract, catalog: Catalog, now: datetime) -> ReadinessCheck:
    ready, evidence = rehearsed.describe_rehearsals(pilot_table.read(catalog, contract.table), now, MAX_DRILL_AGE)
    step = "" if ready else rehearsed.STEP.format(dag=dag_ids.REHEARSE)
    return ReadinessCheck("Failures rehearsed", ready, evidence, step)


def _check_small_files(contract: Contract, inputs: AssessmentInputs, paused: Mapping[str, bool]) -> ReadinessCheck:
    need = _assess(contract, Action.REWRITE, inputs, {})
    step = _maintenance_step(dag_ids.REWRITE_FILES, paused) if need.steps else ""
    return ReadinessCheck("Small files", not need.steps, need.reason, step)


def _check_orphan_files(contract: Contract, inputs: AssessmentInputs, paused: Mapping[str, bool]) -> ReadinessCheck:
    cleaned = maintenance_table.read_last_cleanups(inputs.catalog)
    need = _assess(contract, Action.ORPHANS, inputs, cleaned)
    last = cleaned.get(contract.table)
    ready = not need.steps or (last is not None and inputs.now - last.at <= MAX_CLEANUP_AGE)
    step = "" if ready else _maintenance_step(dag_ids.REMOVE_ORPHANS, paused)
    return ReadinessCheck("Orphan files", ready, need.reason, step)


def _maintenance_step(dag: str, paused: Mapping[str, bool]) -> str:
    if dag not in paused:
        return f"Check that DAG {dag} is not paused, and that its last run succeeded."
    if paused[dag]:
        return f"Unpause DAG {dag}."
    return f"The next run of DAG {dag} does it, or trigger it. If this stays, see the log of its last run."


def _assess(
    contract: Contract,
    action: Action,
    inputs: AssessmentInputs,
    cleanups: Mapping[str, maintenance_table.LastCleanup],
) -> assess.Assessment:
    target = next(t for t in targets.list_targets(inputs.contracts) if t.name == contract.table)
    return assess.assess_table(target, action, inputs, cleanups=cleanups)
