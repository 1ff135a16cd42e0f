"""Records that a rejected change would have let in: their rows in quarantine say that it was rejected, by whom and why.

Those that are there when it is rejected are told by `tell`; those that come later are born with it (`ingest.check`).
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
from sluice.contract.fields import rows_at
from sluice.contract.shape import origins
from sluice.errors import SchemaChangeError
from sluice.evolve.diff import Change, compare
from sluice.iceberg import own_table, table_names, tables
from sluice.iceberg.active_contract import InForce
from sluice.iceberg.filters import And, above, equal
from sluice.ledger import schemas_table
from sluice.ledger.schemas_table import Row, State

log = logging.getLogger(__name__)

TRIES = 10
# A batch's part of the quarantine is rewritten in memory, raw records and all.
LARGEST = 64 << 20
LONGEST = 1_000


@dataclass(frozen=True)
class Refused:
    """A change that was rejected.

    Attributes:
        text: what the error of a record says of it.
        fields: a regular expression, Java's and Python's, of the fields that it is about.
    """

    text: str
    fields: str


def standing(catalog: Catalog, table: Table, contract: Contract) -> list[Refused]:
    """The changes of the contract in force that were rejected, and not approved since; oldest first."""
    told = InForce.of(table)
    if told is None:
        return []
    here = (str(table.metadata.table_uuid), told.version + 1, told.id)
    last: dict[str, Row] = {}
    for row in schemas_table.rows(catalog, contract.table):
        if (row.table_uuid, row.version, row.base_id) == here and row.state in (State.APPROVED, State.REJECTED):
            last[row.contract_id] = row
    return [r for row in last.values() if row.state == State.REJECTED and (r := _refused(row, contract))]


def _refused(row: Row, contract: Contract) -> Refused | None:
    if not row.contract:  # written before rows told
        return None
    try:
        asked = InForce(row.version, row.contract_id, json.loads(row.contract)).contract(contract)
    except (ValueError, SchemaChangeError) as error:
        log.warning("%s: what was rejected can't be read: %s", contract.table, error)
        return None
    fields = touched(contract, asked, compare(contract, asked))
    text = f"its change ({'; '.join(row.words)}) was rejected by {row.who or 'somebody'}: {row.why}"
    return Refused(text[:LONGEST], fields) if fields else None


def touched(old: Contract, new: Contract, changes: Iterable[Change]) -> str | None:
    """The fields that changes are about, as in `Refused`; None where they are about none."""
    names = {n for column in _touched(old, new, changes) for n in _names(old, column)}
    return f"^({'|'.join(map(re.escape, sorted(names)))})($|[.\\[{{])" if names else None


def _touched(old: Contract, new: Contract, changes: Iterable[Change]) -> Iterator[Column]:
    """The columns of the contract in force that the changes are about."""
    known, before = origins(old, new), {c.name: c for c in old.columns}
    for change in changes:
        if column := known.get(change.column) or before.get(change.column):
            yield column


def _names(contract: Contract, column: Column) -> set[str]:
    """What the quarantine calls a column: by its name, or by where it is read, from the row or from the whole value."""
    if column.from_key:
        read = [".".join(column.key_path)]
    elif column.special:
        read = [column.source.removeprefix("$")]
    else:
        read = [".".join((*outer, *column.path)) for outer in ((), *rows_at(contract)) if column.path]
    return {column.name, column.source, *read} - {""}


def tell(catalog: Catalog, contract: Contract, refused: Sequence[Refused], since: datetime) -> tuple[int, int]:
    """Add the rejection to the errors of the records that were set apart since, where they are about its fields.

    Once more changes nothing.

    Returns:
        How many records tell of it, and how many do not as their batches have too many.
    """
    told = left = 0
    for part in _parts(tables.load(catalog, table_names.quarantine(contract)), since):
        found = _tell(catalog, contract, refused, since, *part)
        told, left = told + found[0], left + found[1]
    return told, left


def _parts(held: Table | None, since: datetime) -> list[tuple[str, int]]:
    if held is None or held.current_snapshot() is None:
        return []
    wanted = above("quarantined_at", since.isoformat())
    rows = held.scan(row_filter=wanted, selected_fields=("_kafka_topic", "batch_seq")).to_arrow()
    found = rows.group_by(["_kafka_topic", "batch_seq"]).aggregate([]).to_pylist()
    return sorted((r["_kafka_topic"], r["batch_seq"]) for r in found)


def _tell(
    catalog: Catalog, contract: Contract, refused: Sequence[Refused], since: datetime, topic: str, seq: int
) -> tuple[int, int]:
    """One batch's part: written anew whole, in one commit, if nobody writes to the quarantine meanwhile."""
    part = And(equal("_kafka_topic", topic), equal("batch_seq", seq))
    for _ in range(TRIES):
        held = catalog.load_table(table_names.quarantine(contract))
        if sum(task.file.file_size_in_bytes for task in tables.files(held, part)) > LARGEST:
            return 0, held.scan(row_filter=And(part, above("quarantined_at", since.isoformat()))).count()
        rows = held.scan(row_filter=part).to_arrow()
        before, fields, times = (rows[n].to_pylist() for n in ("error", "field", "quarantined_at"))
        errors = [
            told_of(error, field, refused) if at > since else error
            for error, field, at in zip(before, fields, times, strict=True)
        ]
        about = sum(any(r.text in (error or "") for r in refused) for error in errors)
        if errors == before:
            return about, 0
        place = rows.schema.get_field_index("error")
        changed = rows.set_column(place, rows.schema.field(place), pa.array(errors, rows.schema.field(place).type))
        own_table.commit_once(held)
        try:
            held.overwrite(changed, overwrite_filter=part)
        except CommitFailedException:
            continue
        return about, 0
    log.warning("%s: batch %s of %s was written to each time, its records do not tell", contract.table, seq, topic)
    return 0, 0


def told_of(error: str | None, field: str | None, refused: Iterable[Refused]) -> str | None:
    """An error, with what was rejected of its field."""
    more = [r.text for r in refused if re.search(r.fields, field or "") and r.text not in (error or "")]
    return "; ".join(filter(None, [error, *more])) or None
