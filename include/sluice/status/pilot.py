"""The five stages of a table's pilot, as readiness checks: is it proved beside what it replaces?

In: the contract, the table, and the rows of `sluice.pilot`. Out: one check per stage; a single one before it begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sluice import dag_ids
from sluice.contract.contract import Contract
from sluice.iceberg import table_names, tables
from sluice.iceberg.active_contract import ContractVersion
from sluice.ledger import pilot_table
from sluice.ledger.pilot_table import PilotRow, Stage
from sluice.status import rehearsed
from sluice.status.readiness import MAX_DRILL_AGE, ReadinessCheck
from sluice.status.text import counted, duration, utc_text

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

BASELINE, CONTRACT, COMPARED, REHEARSED, DECISION = (
    f"Pilot {number}: {name}"
    for number, name in enumerate(
        ("baseline recorded", "contract defined", "parallel run compared", "failures rehearsed", "decision"), 1
    )
)
COMPARE = f"Compare it with the table that it is to replace: `sluice compare`, or DAG {dag_ids.COMPARE}."


def check_pilot(contract: Contract, catalog: Catalog) -> list[ReadinessCheck]:
    """Return a check per stage; before the first comparison or decision, one for all."""
    rows = pilot_table.read(catalog, contract.table)
    if all(row.stage is Stage.REHEARSED for row in rows):
        return [ReadinessCheck("Pilot", None, "no comparison and no decision is recorded", COMPARE)]
    by_stage = {stage: [row for row in rows if row.stage is stage] for stage in Stage}
    return [
        _check_baseline(by_stage[Stage.COMPARED]),
        _check_contract(contract, catalog),
        _check_comparison(by_stage[Stage.COMPARED]),
        _check_rehearsals(rows),
        _check_decision(by_stage[Stage.DECIDED]),
    ]


def _check_baseline(rows: Sequence[PilotRow]) -> ReadinessCheck:
    """What the first comparison found of the other table."""
    if not rows:
        return ReadinessCheck(BASELINE, False, "no other table was compared", COMPARE)
    first, found = rows[0], rows[0].evidence.get("theirs", {})
    evidence = f"{first.evidence.get('with')} at {utc_text(first.at)}: {counted(found.get('rows'), 'row')}"
    if (interval := found.get("interval_seconds")) is not None:
        evidence += f", a commit every {duration(interval)}"
    if (delay := found.get("delay_seconds")) is not None:
        evidence += f", {duration(delay)} after its newest value"
    return ReadinessCheck(BASELINE, True, evidence)


def _check_contract(contract: Contract, catalog: Catalog) -> ReadinessCheck:
    table = tables.load(catalog, table_names.typed(contract))
    version = ContractVersion.from_table(table) if table else None
    missing = [name for name in ("freshness", "expectations") if not getattr(contract, name)]
    evidence = f"version {version.version}, owner {contract.owner}" if version else "the table stores no contract yet"
    evidence += f"; without {' and '.join(missing)}" if missing else ""
    step = f"Add `{missing[0]}:` to the contract." if missing else "" if version else "Let the next run publish."
    return ReadinessCheck(CONTRACT, not step, evidence, step)


def _check_comparison(rows: Sequence[PilotRow]) -> ReadinessCheck:
    if not rows:
        return ReadinessCheck(COMPARED, False, "never", COMPARE)
    last = rows[-1]
    evidence = f"with {last.evidence.get('with')} at {utc_text(last.at)}: {last.verdict}"
    evidence += f"; {sum(row.ok for row in rows):,} of {counted(len(rows), 'comparison')} found them equal"
    compared = last.ok and last.evidence.get("ours", {}).get("rows", 0) > 0
    step = "" if compared else "Find the cause by the report's examples, and compare again."
    return ReadinessCheck(COMPARED, compared, evidence, step)


def _check_rehearsals(rows: Sequence[PilotRow]) -> ReadinessCheck:
    ready, evidence = rehearsed.describe_rehearsals(rows, datetime.now(UTC), MAX_DRILL_AGE)
    step = "" if ready else rehearsed.STEP.format(dag=dag_ids.REHEARSE)
    return ReadinessCheck(REHEARSED, ready, evidence, step)


def _check_decision(rows: Sequence[PilotRow]) -> ReadinessCheck:
    if not rows:
        return ReadinessCheck(DECISION, False, "none", "Decide by `sluice decide`, with who and why on record.")
    last = rows[-1]
    evidence = f"{last.verdict}, decided by {last.who} at {utc_text(last.at)}: {last.why}"
    return ReadinessCheck(DECISION, last.ok, evidence, "" if last.ok else "See the reason.")
