"""Table `sluice.schemas`: every version of every table's contract, reviews of schema changes, and decisions on them.

Append-only. The active contract is stored in the table itself (`iceberg.active_contract`); a version that a killed run
did not write here is added from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import dropwhile

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType, TimestamptzType

from sluice.contract.contract import Contract
from sluice.errors import CatalogUnavailableError, SchemaChangeError
from sluice.iceberg import own_table, table_names, tables
from sluice.iceberg.active_contract import ContractVersion
from sluice.iceberg.filters import above, equal

MAX_APPEND_ATTEMPTS = 10


class SchemaState(StrEnum):
    """What a row records: an applied version, or a step of a review."""

    APPLIED = "applied"
    REVIEW = "review"
    APPROVED = "approved"
    REJECTED = "rejected"


SCHEMA = Schema(
    NestedField(1, "at", TimestamptzType(), required=True),
    NestedField(2, "table", StringType(), required=True),
    NestedField(3, "state", StringType(), required=True, doc=", ".join(SchemaState)),
    NestedField(4, "version", IntegerType(), required=True, doc="of a review: the version that it would become"),
    NestedField(5, "contract_id", StringType(), required=True, doc="name of the contract's shape"),
    NestedField(6, "base_id", StringType(), doc="review: the active shape until it is decided"),
    NestedField(7, "kinds", ListType(20, StringType(), False), doc="kinds of changes, as in schema_policy"),
    NestedField(8, "words", ListType(21, StringType(), False), doc="the changes"),
    NestedField(9, "schema_id", IntegerType(), doc="applied: Iceberg's id of the table's schema"),
    NestedField(10, "snapshot_id", LongType(), doc="the table's head then; what came later is of this version"),
    NestedField(11, "offsets", StringType(), doc="topic -> partition -> first offset that came later, as JSON"),
    NestedField(12, "contract", StringType(), doc="applied, rejected: the shape, as JSON"),
    NestedField(13, "who", StringType()),
    NestedField(14, "why", StringType()),
    NestedField(15, "run_id", StringType()),
    NestedField(16, "table_uuid", StringType(), doc="Iceberg's: another table of that name is another table"),
)


@dataclass(frozen=True)
class SchemaRow:
    """One line; see `SCHEMA` for what each field means."""

    table: str
    state: SchemaState
    version: int
    contract_id: str
    base_id: str | None = None
    kinds: Sequence[str] = ()
    words: Sequence[str] = ()
    schema_id: int | None = None
    snapshot_id: int | None = None
    offsets: str | None = None
    contract: str | None = None
    who: str | None = None
    why: str | None = None
    run_id: str | None = None
    table_uuid: str | None = None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @classmethod
    def applied(cls, table: Table, version: ContractVersion, run_id: str | None = None) -> SchemaRow:
        """Return the row of a table's active version."""
        return cls(
            ".".join(table.name()),
            SchemaState.APPLIED,
            version.version,
            version.id,
            kinds=version.kinds,
            words=version.words,
            schema_id=version.schema_id,
            snapshot_id=version.snapshot_id,
            offsets=json.dumps(version.offsets),
            contract=json.dumps(version.shape),
            who=version.who,
            why=version.why,
            run_id=run_id,
            table_uuid=str(table.metadata.table_uuid),
            at=datetime.fromisoformat(version.at),
        )


def read_schema_rows(catalog: Catalog, table: str | None = None, since: datetime | None = None) -> list[SchemaRow]:
    """Return the rows of one table or all, oldest first; none if `sluice.schemas` does not exist."""
    return _read(catalog, table, since)[0]


def read_previous_contracts(catalog: Catalog, table: Table, file: Contract) -> list[Contract]:
    """Return the table's contracts before the active one, newest first, back to the first that masks a column.

    Raises:
        SchemaChangeError: one of them is not valid for this version of Sluice.
    """
    active, uuid = ContractVersion.from_table(table), str(table.metadata.table_uuid)
    if active is None or active.version == 1:
        return []
    applied = [
        row
        for row in read_schema_rows(catalog, file.table)
        if row.state == SchemaState.APPLIED and row.table_uuid == uuid and row.contract and row.version < active.version
    ]
    applied.sort(key=lambda row: row.version)
    contracts = list[Contract]()
    for row in dropwhile(lambda row: '"mask"' not in (row.contract or ""), applied):
        try:
            version = ContractVersion(row.version, row.contract_id, json.loads(row.contract or ""))
            contracts.insert(0, version.to_contract(file))
        except (ValueError, SchemaChangeError) as error:
            raise SchemaChangeError(
                f"Version {row.version} of the contract can't be read; it may mask what the file shows.",
                table=file.table,
                next_step="If everything that it masked may be shown, delete its row (this table and version) from "
                "sluice.schemas.",
            ) from error
    return contracts


def append_rows(catalog: Catalog, new: Iterable[SchemaRow]) -> None:
    """Write rows. Two writers at once both succeed."""
    _append(catalog, list(new))


def append_once(catalog: Catalog, row: SchemaRow, taken: Iterable[SchemaState]) -> SchemaRow:
    """Write a row, unless there is one about the same change in one of the states `taken`.

    Returns:
        The row that was written, or the first that was there.

    Raises:
        CatalogUnavailableError: other writers came first, at each attempt.
    """
    states = set(taken)
    for _ in range(MAX_APPEND_ATTEMPTS):
        existing, head = _read(catalog, row.table)
        if same := find_same_change(existing, row, states):
            return same[0]
        try:
            _append(catalog, [row], if_unchanged=True, head=head)
        except CommitFailedException:
            continue
        return row
    raise CatalogUnavailableError(
        f"Other writers changed sluice.schemas during each of {MAX_APPEND_ATTEMPTS} attempts.", table=row.table
    )


def find_same_change(rows: Iterable[SchemaRow], like: SchemaRow, states: Iterable[SchemaState]) -> list[SchemaRow]:
    """Return the rows in these states about the same change: the same version, from one shape to another."""
    wanted = set(states)
    key = (like.table_uuid, like.version, like.base_id, like.contract_id)
    return [r for r in rows if (r.table_uuid, r.version, r.base_id, r.contract_id) == key and r.state in wanted]


def unrecorded_version(table: Table, rows: Iterable[SchemaRow], run_id: str | None = None) -> list[SchemaRow]:
    """Return a row for the table's active version, if `rows` has none."""
    version = ContractVersion.from_table(table)
    row = SchemaRow.applied(table, version, run_id) if version else None
    return [row] if row and not find_same_change(rows, row, (SchemaState.APPLIED,)) else []


def record_versions(catalog: Catalog, loaded: Iterable[Table], run_id: str | None = None) -> None:
    """Write rows for the active versions of these tables, where they are missing."""
    new: list[SchemaRow] = []
    for table in loaded:
        new += unrecorded_version(table, read_schema_rows(catalog, ".".join(table.name())), run_id)
    append_rows(catalog, new)


def _read(catalog: Catalog, table: str | None, since: datetime | None = None) -> tuple[list[SchemaRow], int | None]:
    """The rows, oldest first, and the id of the snapshot that they were read from."""
    schemas = tables.load(catalog, table_names.SCHEMAS)
    head = schemas.metadata.current_snapshot_id if schemas else None
    if schemas is None or head is None:
        return [], None
    scan = schemas.scan() if table is None else schemas.scan(row_filter=equal("table", table))
    if since is not None:
        scan = scan.filter(above("at", since.isoformat()))
    records = scan.to_arrow().sort_by([("at", "ascending")]).to_pylist()
    return [SchemaRow(**{**r, "state": SchemaState(r["state"])}) for r in records], head


def _append(catalog: Catalog, new: Sequence[SchemaRow], *, if_unchanged: bool = False, head: int | None = None) -> None:
    """Append rows; with `if_unchanged`, only if `head` is still the table's current snapshot.

    Raises:
        CommitFailedException: another writer came first.
    """
    if not new:
        return
    table = tables.ensure_table(catalog, table_names.SCHEMAS, SCHEMA)
    if if_unchanged and table.metadata.current_snapshot_id != head:
        raise CommitFailedException("another writer came first")
    records = [{**asdict(r), "kinds": list(r.kinds), "words": list(r.words)} for r in new]
    data = pa.Table.from_pylist(records, schema=table.schema().as_arrow())
    own_table.append(table, data, retry=not if_unchanged)
