"""TODO docstring of sluice.maintain.expire."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pyiceberg.table.update import AssertRefSnapshotId

from sluice.contract.folder import Contracts
from sluice.iceberg import refs, table_names, tables
from sluice.iceberg.sql_literals import literal
from sluice.ingest.landing import Context
from sluice.maintain import assess, expiry, procedures
from sluice.maintain.assess import Need
from sluice.maintain.expiry import Others
from sluice.maintain.subjects import Subject


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
    cut = expiry.cut(table, subject.settings, now, assess.enough(subject, others))
    if cut.doomed:
        if cut.short:
            head = cut.kept[0].snapshot_id
            here = (AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=head),)
            refs.commit(context.catalog, table, here, (refs.point(refs.MAIN, head),))
        older_than = expiry.moment(cut.older_than_ms)
        done |= procedures._call(context, subject, "expire_snapshots", older_than=older_than, retain_last=cut.least)
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
    name = table_names.spark_name(context.catalog_name, subject.identifier)
    context.spark.sql(f"DELETE FROM {name} WHERE {condition}")  # noqa: S608 - quoted, and numbers
