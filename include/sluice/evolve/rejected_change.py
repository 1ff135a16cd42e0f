"""Adds a rejected contract change to the errors of quarantined records that need it: who rejected it, and why.

`annotate_quarantine` does it for records that are there when it is rejected, `ingest.check` for those that come later.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from sluice.contract.columns import Column
from sluice.contract.contract import Contract
from sluice.contract.fields import row_paths
from sluice.contract.shape import previous_columns
from sluice.contract.values import join_names
from sluice.errors import SchemaChangeError
from sluice.evolve.diff import ContractChange, compare_contracts
from sluice.iceberg import compat, table_names, tables
from sluice.iceberg.active_contract import ContractVersion
from sluice.iceberg.filters import And, above, equal
from sluice.ledger import schemas_table
from sluice.ledger.schemas_table import SchemaRow, SchemaState

log = logging.getLogger(__name__)

ATTEMPTS = 10
# The quarantined records of a batch, raw values included, are rewritten in memory.
MAX_BATCH_BYTES = 64 << 20
MAX_TEXT = 1_000


@dataclass(frozen=True)
class RejectedChange:
    """A contract change that was rejected.

    Attributes:
        text: what is added to the error of a record.
        fields: a regular expression, for Java and Python, of the fields that the change affects.
    """

    text: str
    fields: str


def list_rejected_changes(catalog: Catalog, table: Table, contract: Contract) -> list[RejectedChange]:
    """The changes of the active contract that were rejected and not approved since, oldest first."""
    active = ContractVersion.from_table(table)
    if active is None:
        return []
    here = (str(table.metadata.table_uuid), active.version + 1, active.id)
    last: dict[str, SchemaRow] = {}
    for row in schemas_table.read_schema_rows(catalog, contract.table):
        if (row.table_uuid, row.version, row.base_id) == here and row.state in (
            SchemaState.APPROVED,
            SchemaState.REJECTED,
        ):
            last[row.contract_id] = row
    return [r for row in last.values() if row.state == SchemaState.REJECTED and (r := _rejected_change(row, contract))]


def _rejected_change(row: SchemaRow, contract: Contract) -> RejectedChange | None:
    if not row.contract:  # written by a version of Sluice that did not store it
        return None
    try:
        requested = ContractVersion(row.version, row.contract_id, json.loads(row.contract)).to_contract(contract)
    except (ValueError, SchemaChangeError) as error:
        log.warning("%s: a rejected contract change can't be read: %s", contract.table, error)
        return None
    fields = changed_fields_pattern(contract, requested, compare_contracts(contract, requested))
    text = f"its change ({'; '.join(row.words)}) was rejected by {row.who or 'somebody'}: {row.why}"
    return RejectedChange(text[:MAX_TEXT], fields) if fields else None


def changed_fields_pattern(old: Contract, new: Contract, changes: Iterable[ContractChange]) -> str | None:
    """A pattern of the fields that changes affect, see `RejectedChange.fields`; None where they affect none."""
    names = {n for column in _changed_columns(old, new, changes) for n in _quarantine_names(old, column)}
    return f"^({'|'.join(map(re.escape, sorted(names)))})($|[.\\[{{])" if names else None


def _changed_columns(old: Contract, new: Contract, changes: Iterable[ContractChange]) -> Iterator[Column]:
    """The columns of the active contract that the changes affect."""
    known, before = previous_columns(old, new), {c.name: c for c in old.columns}
    for change in changes:
        if column := known.get(change.column) or before.get(change.column):
            yield column


def _quarantine_names(contract: Contract, column: Column) -> set[str]:
    """The names of a column in quarantine: its own, its source, and its paths in the row and in the whole value."""
    if column.from_key:
        read = [join_names(column.key_path)]
    elif column.from_envelope:
        read = [join_names(column.envelope_path)]
    else:
        read = [join_names((*outer, *column.path)) for outer in ((), *row_paths(contract)) if column.path]
    return {column.name, column.source, *read} - {""}


def annotate_quarantine(
    catalog: Catalog, contract: Contract, changes: Sequence[RejectedChange], since: datetime
) -> tuple[int, int]:
    """Add rejected changes to the errors of records that were quarantined since and need them; can be repeated.

    Returns:
        How many records have a rejected change in their error, and how many do not because their batch is too large.
    """
    quarantine = tables.load_quarantine(catalog, contract)
    annotation = _Annotation(contract, changes, since)
    annotated = left = 0
    for topic, seq in _quarantined_batches(quarantine, since):
        done, skipped = _annotate_batch(catalog, annotation, topic, seq)
        annotated, left = annotated + done, left + skipped
    return annotated, left


@dataclass(frozen=True)
class _Annotation:
    contract: Contract
    changes: Sequence[RejectedChange]
    since: datetime


def _quarantined_batches(quarantine: Table | None, since: datetime) -> list[tuple[str, int]]:
    """Topic and number of each batch that has quarantined records since then."""
    if quarantine is None or quarantine.current_snapshot() is None:
        return []
    wanted = above("quarantined_at", since.isoformat())
    rows = quarantine.scan(row_filter=wanted, selected_fields=("_kafka_topic", "batch_seq")).to_arrow()
    found = rows.group_by(["_kafka_topic", "batch_seq"]).aggregate([]).to_pylist()
    return sorted((r["_kafka_topic"], r["batch_seq"]) for r in found)


def _annotate_batch(catalog: Catalog, annotation: _Annotation, topic: str, seq: int) -> tuple[int, int]:
    """Rewrite the quarantined records of one batch in one commit; tried again where another commit comes first."""
    contract, changes, since = annotation.contract, annotation.changes, annotation.since
    batch = And(equal("_kafka_topic", topic), equal("batch_seq", seq))
    for _ in range(ATTEMPTS):
        quarantine = catalog.load_table(table_names.quarantine(contract))
        if sum(task.file.file_size_in_bytes for task in tables.plan_files(quarantine, batch)) > MAX_BATCH_BYTES:
            return 0, quarantine.scan(row_filter=And(batch, above("quarantined_at", since.isoformat()))).count()
        rows = quarantine.scan(row_filter=batch).to_arrow()
        before, fields, times = (rows[n].to_pylist() for n in ("error", "field", "quarantined_at"))
        errors = [
            annotate_error(error, field, changes) if at > since else error
            for error, field, at in zip(before, fields, times, strict=True)
        ]
        annotated = sum(any(c.text in (error or "") for c in changes) for error in errors)
        if errors == before:
            return annotated, 0
        index = rows.schema.get_field_index("error")
        column = rows.schema.field(index)
        changed = rows.set_column(index, column, pa.array(errors, column.type))
        try:
            compat.without_commit_retries(quarantine).overwrite(changed, overwrite_filter=batch)
        except CommitFailedException:
            continue
        return annotated, 0
    log.warning(
        "%s: the quarantine changed during each of %s attempts: errors of %s batch %s lack the rejected change",
        contract.table, ATTEMPTS, topic, seq,
    )  # fmt: skip
    return 0, 0


def annotate_error(error: str | None, field: str | None, changes: Iterable[RejectedChange]) -> str | None:
    """An error, with the rejected changes of its field."""
    more = [c.text for c in changes if re.search(c.fields, field or "") and c.text not in (error or "")]
    return "; ".join(filter(None, [error, *more])) or None
