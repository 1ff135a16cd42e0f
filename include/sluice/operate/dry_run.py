"""What an operator's run would do, as text, from the values of its DAG's form. Changes nothing; no JVM.

In: the id of a DAG, the `conf` of its run, and the catalog. Out: lines of text, and the values that pin what was shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sluice import dag_ids
from sluice.backfill import backfill_plan
from sluice.backfill.ranges import Request, parse_time
from sluice.errors import RefusedError
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.slices import Origin
from sluice.operate import accept_gap, operator_input, publish_blocked, review_schema, rollback
from sluice.operate.operator_input import Decision
from sluice.operate.rollback_target import RestorePoint
from sluice.plan import resolve_topics
from sluice.plan.model import PlanInputs


@dataclass(frozen=True)
class DryRun:
    """The result of a dry run.

    Attributes:
        lines: what the run would do.
        pinned: values for the form, so that the run does what was shown and nothing that came later.
    """

    lines: list[str]
    pinned: dict[str, Any] = field(default_factory=dict)


def dry_run(dag: str, form: Mapping[str, Any], inputs: PlanInputs) -> DryRun:
    """Find out what a run would do.

    Args:
        dag: one of `dag_ids.OPERATOR_DAGS`.
        form: the `conf` of the run.
        inputs: the contracts as they are in their files, the catalog, and a client for those that need Kafka.

    Raises:
        RefusedError: what is asked for cannot be done, or the DAG has no dry run.
        SluiceError: as the DAG's task would fail.
    """
    if dag not in _DRY_RUNS:
        raise RefusedError(f"DAG {dag!r} has no dry run.", next_step=f"Choose one of {', '.join(_DRY_RUNS)}.")
    return _DRY_RUNS[dag](form, inputs)


def backfill_request(form: Mapping[str, Any]) -> Request:
    """What the form of DAG `backfill` asks for.

    Raises:
        RefusedError: with the field and what is wrong with it.
    """
    source = form.get("source") or Origin.KAFKA
    if source not in set(Origin):
        raise RefusedError(f"{source!r} is not a source.", next_step=f"Choose one of {', '.join(Origin)}.")
    return Request(
        form["table"],
        operator_input.parse_ranges(form.get("ranges") or {}),
        parse_time(form.get("since") or "", "since"),
        parse_time(form.get("until") or "", "until"),
        Origin(source),
        form.get("topic") or "",
        form.get("why") or "",
    )


def restore_point(form: Mapping[str, Any]) -> RestorePoint:
    """Where the form of DAG `rollback` goes back to.

    Raises:
        RefusedError: the snapshot's id is not a number.
    """
    return RestorePoint(operator_input.parse_snapshot_id(form.get("snapshot_id")), form.get("before_run") or None)


def _backfill(form: Mapping[str, Any], inputs: PlanInputs) -> DryRun:
    request = backfill_request(form)
    inputs = _resolve(inputs, ask_kafka=request.needs_kafka)
    return DryRun(backfill_plan.plan_backfill(request, replace(inputs, ledger=Ledger(inputs.catalog))).lines())


def _rollback(form: Mapping[str, Any], inputs: PlanInputs) -> DryRun:
    contracts, catalog = _resolve(inputs, ask_kafka=False).contracts, inputs.catalog
    point = restore_point(form)
    return DryRun(rollback.preview_rollback(form["table"], contracts, catalog, Ledger(catalog), point).lines())


def _accept_gap(form: Mapping[str, Any], inputs: PlanInputs) -> DryRun:
    ranges = operator_input.parse_ranges(form.get("ranges") or {})
    nobody = Decision("", "", "")
    gaps = accept_gap.accept_gaps(form["name"], ranges, _resolve(inputs, ask_kafka=True), nobody, dry_run=True)
    lines = [f"skipped permanently: {each}" for each in gaps]
    if len(gaps) > 1:  # the form takes ranges of one topic only
        return DryRun(lines)
    return DryRun(lines, {"ranges": {str(p): [r.start, r.end] for p, r in gaps[0].ranges.items()}})


def _review_schema(form: Mapping[str, Any], inputs: PlanInputs) -> DryRun:
    contract = _resolve(inputs, ask_kafka=False).contracts.table(form["table"])
    return DryRun(review_schema.load_review(inputs.catalog, contract, include_rejected=True).lines())


def _publish_blocked(form: Mapping[str, Any], inputs: PlanInputs) -> DryRun:
    contracts = _resolve(inputs, ask_kafka=False).contracts
    found = publish_blocked.find_blocked(form["table"], contracts, inputs.catalog)
    return DryRun([f"published by the next run: {each}" for each in found])


def _resolve(inputs: PlanInputs, *, ask_kafka: bool) -> PlanInputs:
    client = inputs.client if ask_kafka else None
    return replace(inputs, contracts=resolve_topics.resolve(inputs.contracts, inputs.catalog, client))


_DRY_RUNS: dict[str, Callable[[Mapping[str, Any], PlanInputs], DryRun]] = {
    dag_ids.BACKFILL: _backfill,
    dag_ids.ROLLBACK: _rollback,
    dag_ids.ACCEPT_GAP: _accept_gap,
    dag_ids.REVIEW_SCHEMA: _review_schema,
    dag_ids.PUBLISH_BLOCKED: _publish_blocked,
}
