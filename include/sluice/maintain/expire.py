"""Expires snapshots in Spark, and deletes raw records and rows that are past their retention.

In: a table and the steps that its assessment found due. Out: what Iceberg's procedure reports, for the ledger.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.table.update import AssertRefSnapshotId

from sluice.iceberg import refs, table_names, tables
from sluice.iceberg.sql_literals import sql_literal
from sluice.ingest.context import Context
from sluice.maintain import assess, expiry_plan, procedures, retention
from sluice.maintain.assess import Assessment
from sluice.maintain.expiry_plan import AssessmentInputs
from sluice.maintain.targets import Target
from sluice.timestamps import utc_from_micros


def expire_snapshots(context: Context, target: Target, found: Assessment, inputs: AssessmentInputs) -> dict[str, Any]:
    """Carry out the steps `trim`, `history` and `retention`, then expire snapshots; returns what was done, by step."""
    done: dict[str, Any] = {}
    if "trim" in found.steps:
        done["trimmed_through"] = _trim_staging(context, target, inputs.refreshed())
    if "history" in found.steps and target.history:
        cutoff = inputs.now - target.history
        _delete(context, target, f"at <= {sql_literal(cutoff)}")
        done["deleted_through"] = cutoff.isoformat()
    table = context.catalog.load_table(target.identifier)
    if target.contract and (expired := retention.find_expired_rows(table, target.contract, inputs.now)):
        retention.delete_expired_rows(context, expired)
        done["deleted_through"] = expired.before.isoformat()
        table = context.catalog.load_table(target.identifier)
    rule = assess.oldest_snapshot_rule(target, table, inputs.refreshed())
    plan = expiry_plan.plan_expiry(table, target.settings, inputs.now, rule)
    if not plan.expired:
        return done
    if plan.reset_main_retention:
        head = plan.kept[0].snapshot_id
        unmoved = (AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=head),)
        refs.commit(context.catalog, table, unmoved, (refs.set_ref(refs.MAIN, head),))
    older_than = utc_from_micros(1000 * plan.older_than_ms)
    return done | procedures.call_procedure(
        context, target, "expire_snapshots", older_than=older_than, retain_last=plan.retain_last
    )


def _trim_staging(context: Context, target: Target, inputs: AssessmentInputs) -> int | None:
    """Delete the raw records of batches that are published and past their retention."""
    staging = context.catalog.load_table(target.identifier)
    plan = assess.plan_trim(target, staging, inputs)
    if plan is None:
        return None
    if plan.slices:
        _delete(context, target, f"batch_seq IN ({', '.join(map(str, plan.slices))})")
    if plan.through >= plan.first:
        # Set before the rows go: a reader that checks it after reading knows whether rows may have been missing.
        with staging.transaction() as transaction:
            transaction.set_properties({tables.TRIMMED_THROUGH: str(plan.through)})
    if plan.through >= plan.first or plan.incomplete:
        _delete_through(context, target, plan.through)
    return plan.through


def _delete_through(context: Context, target: Target, through: int) -> None:
    # Numbers below zero are backfill slices, which have a retention of their own.
    _delete(context, target, f"batch_seq > 0 AND batch_seq <= {through}")


def _delete(context: Context, target: Target, condition: str) -> None:
    name = table_names.spark_name(context.catalog_name, target.identifier)
    context.spark.sql(f"DELETE FROM {name} WHERE {condition}")  # noqa: S608 - a quoted name; numbers and literals
