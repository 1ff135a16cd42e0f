"""`sluice.schemas`: every version of every table's contract, the reviews of changes, and who decided what, and why.

Append-only, like the ledger. Which contract is in force is what the table itself says (`iceberg.active_contract`); a
version that a run did not live to write here is told from there.
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
from sluice.iceberg.active_contract import InForce
from sluice.iceberg.filters import above, equal

TRIES = 10


class State(StrEnum):
    """What a row reports: a version in force, or the course of a review."""

    APPLIED = "applied"
    REVIEW = "review"
    APPROVED = "approved"
    REJECTED = "rejected"


SCHEMA = Schema(
    NestedField(1, "at", TimestamptzType(), required=True),
    NestedField(2, "table", StringType(), required=True),
    NestedField(3, "state", StringType(), required=True, doc=", ".join(State)),
    NestedField(4, "version", IntegerType(), required=True, doc="of a review: the one that it would make"),
    NestedField(5, "contract_id", StringType(), required=True, doc="name of the contract's shape"),
    NestedField(6, "base_id", StringType(), doc="review: the shape that is in force meanwhile"),
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
class Row:
    """One line; see `SCHEMA` for what each field means."""

    table: str
    state: State
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
    def applied(cls, table: Table, told: InForce, run_id: str | None = None) -> Row:
        """The version that a table says is in force."""
        return cls(
            ".".join(table.name()),
            State.APPLIED,
            told.version,
            told.id,
            kinds=told.kinds,
            words=told.words,
            schema_id=told.schema_id,
            snapshot_id=told.snapshot_id,
            offsets=json.dumps(told.offsets),
            contract=json.dumps(told.shape),
            who=told.who,
            why=told.why,
            run_id=run_id,
            table_uuid=str(table.metadata.table_uuid),
            at=datetime.fromisoformat(told.at),
        )


def rows(catalog: Catalog, table: str | None = None, since: datetime | None = None) -> list[Row]:
    """What is known of one table or all, oldest first; nothing where `sluice.schemas` is not there yet."""
    return _read(catalog, table, since)[0]


def _read(catalog: Catalog, table: str | None, since: datetime | None = None) -> tuple[list[Row], int | None]:
    found = tables.load(catalog, table_names.SCHEMAS)
    head = found.metadata.current_snapshot_id if found else None
    if found is None or head is None:
        return [], None
    scan = found.scan() if table is None else found.scan(row_filter=equal("table", table))
    if since is not None:
        scan = scan.filter(above("at", since.isoformat()))
    records = scan.to_arrow().sort_by([("at", "ascending")]).to_pylist()
    return [Row(**{**r, "state": State(r["state"])}) for r in records], head


def before(catalog: Catalog, table: Table, file: Contract) -> list[Contract]:
    """The contracts that a table had before the one in force, newest first, back to the first that masks a column.

    Raises:
        SchemaChangeError: one can't be read (any more).
    """
    told, uuid = InForce.of(table), str(table.metadata.table_uuid)
    if told is None or told.version == 1:
        return []
    mine = [r for r in rows(catalog, file.table) if r.state == State.APPLIED and r.table_uuid == uuid and r.contract]
    mine = sorted((r for r in mine if r.version < told.version), key=lambda r: r.version)
    found = list[Contract]()
    for row in dropwhile(lambda r: '"mask"' not in (r.contract or ""), mine):
        try:
            found.insert(0, InForce(row.version, row.contract_id, json.loads(row.contract or "")).contract(file))
        except (ValueError, SchemaChangeError) as error:
            raise SchemaChangeError(
                f"Version {row.version} of the contract, which may have masked what the file shows, can't be read.",
                table=file.table,
                way_out="If all that it masked may be shown, delete its row (this table and version) from "
                "sluice.schemas.",
            ) from error
    return found


def append(catalog: Catalog, new: Iterable[Row]) -> None:
    """Write rows. Two writers at once both succeed."""
    _write(catalog, list(new))


def append_once(catalog: Catalog, row: Row, taken: Iterable[State]) -> Row:
    """Write a row, unless one of the states in `taken` is known of the same change already.

    Returns:
        The row that stands: the new one, or the first that was there.

    Raises:
        CatalogUnavailableError: others wrote each time before this could.
    """
    states = set(taken)
    for _ in range(TRIES):
        known, head = _read(catalog, row.table)
        if there := same_change(known, row, states):
            return there[0]
        try:
            _write(catalog, [row], cas=True, head=head)
        except CommitFailedException:
            continue
        return row
    raise CatalogUnavailableError("sluice.schemas was written to each time before this could be.", table=row.table)


def same_change(known: Iterable[Row], like: Row, states: Iterable[State]) -> list[Row]:
    """The rows in these states that are about one change: of the same version, from one shape to another."""
    wanted = set(states)
    about = (like.table_uuid, like.version, like.base_id, like.contract_id)
    return [r for r in known if (r.table_uuid, r.version, r.base_id, r.contract_id) == about and r.state in wanted]


def untold(table: Table, known: Iterable[Row], run_id: str | None = None) -> list[Row]:
    """The version that the table says is in force, where it is not known yet."""
    told = InForce.of(table)
    row = Row.applied(table, told, run_id) if told else None
    return [row] if row and not same_change(known, row, (State.APPLIED,)) else []


def remember(catalog: Catalog, loaded: Iterable[Table], run_id: str | None = None) -> None:
    """Write down the versions that tables say are in force, where that was not done yet."""
    append(catalog, [r for t in loaded for r in untold(t, rows(catalog, ".".join(t.name())), run_id)])


def _write(catalog: Catalog, new: Sequence[Row], *, cas: bool = False, head: int | None = None) -> None:
    """Append; with `cas` only if the table's head is still the one that was read.

    Raises:
        CommitFailedException: it is not.
    """
    if not new:
        return
    table = tables.ensure(catalog, table_names.SCHEMAS, SCHEMA)
    if cas:
        if table.metadata.current_snapshot_id != head:
            raise CommitFailedException("the head moved")
        own_table.commit_once(table)
    records = [{**asdict(r), "kinds": list(r.kinds), "words": list(r.words)} for r in new]
    own_table.append(table, pa.Table.from_pylist(records, schema=table.schema().as_arrow()))
