"""Traces one record: from its offset to the batch that read it, and to its row, its quarantine, or why it has neither.

In: a table's contract and a record's coordinates, or a key. Out: what Kafka, the ledger and the tables say. No JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING, Any

from sluice.contract.contract import Contract
from sluice.contract.folder import load_contracts
from sluice.errors import ContractError, SluiceError
from sluice.iceberg import availability, cursor, snapshots, table_names, tables
from sluice.iceberg import catalog as catalogs
from sluice.iceberg.filters import And, BooleanExpression, above, at_most, equal
from sluice.kafka import broker
from sluice.ledger.ledger_rows import LedgerRow, LedgerState, row_from_record
from sluice.ledger.offsets_table import load_ledger
from sluice.offsets import OffsetRange
from sluice.plan import resolve_topics

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from sluice.ledger.offsets_table import Ledger


class Place(StrEnum):
    """Where a record is."""

    FUTURE = "Kafka has no record with this offset yet"
    UNREAD = "not read yet: the next run reads it"
    BEFORE = "before the first batch of its topic: only a backfill reads it"
    GAP = "skipped permanently, by an accepted gap"
    PLANNED = "planned, not staged yet: the next run goes on"
    STAGED = "staged, not published yet: the next run goes on"
    BLOCKED = "staged, and its batch is blocked"
    FAILED = "staged, and publishing its batch failed"
    ROW = "in the table"
    QUARANTINED = "quarantined"
    MERGED = "published, without a row of its own: a later record of its key replaced it, or it is a delete or excluded"
    EXCLUDED = "published, without a row of its own: the contract excludes it, or its row was deleted since"


@dataclass(frozen=True)
class Coordinates:
    """A record's place in Kafka."""

    topic: str
    partition: int
    offset: int

    @property
    def at_offset(self) -> BooleanExpression:
        """The filter for rows of the record, in a table of its topic alone."""
        found: BooleanExpression = And(equal("_kafka_partition", self.partition), equal("_kafka_offset", self.offset))
        return found

    @property
    def filter(self) -> BooleanExpression:
        """The filter for rows of the record."""
        found: BooleanExpression = And(equal("_kafka_topic", self.topic), self.at_offset)
        return found


@dataclass(frozen=True)
class RecordTrace:
    """What became of a record.

    Attributes:
        table: the typed table.
        record: its coordinates.
        place: where it is.
        kafka: the offsets that Kafka has of its partition, up to the last stable one; None if Kafka did not answer.
        batch: the number of the batch that read it.
        planned_at: when that was planned, and by which run.
        planned_by: the run.
        staged_at: when its batch was staged.
        raw: whether staging has the raw record; None if no batch has read it.
        timestamp: Kafka's timestamp of the record; None if neither staging, the table nor the quarantine has it.
        published_at: when its batch became visible in the table.
        published_by: the run that published it.
        snapshot_id: the snapshot with which it did.
        delay_seconds: from the record's timestamp until then, or until now if its batch is not published.
        target_seconds: the table's freshness target.
        late: whether the delay is longer than the target; None without a target, or without a timestamp.
        error: of a blocked or failed batch, or of the quarantined record.
        error_class: of the quarantined record.
        field: the column that its error is about.
        why: of an accepted gap: who skipped it, and why.
    """

    table: str
    record: Coordinates
    place: Place
    kafka: OffsetRange | None = None
    batch: int | None = None
    planned_at: datetime | None = None
    planned_by: str | None = None
    staged_at: datetime | None = None
    raw: bool | None = None
    timestamp: datetime | None = None
    published_at: datetime | None = None
    published_by: str | None = None
    snapshot_id: int | None = None
    delay_seconds: float | None = None
    target_seconds: float | None = None
    late: bool | None = None
    error: str | None = None
    error_class: str | None = None
    field: str | None = None
    why: str | None = None


def parse_coordinates(contract: Contract, text: str, topic: str | None) -> Coordinates:
    """Parse `PARTITION:OFFSET`.

    Args:
        contract: the table's contract.
        text: the text.
        topic: needed if several topics feed the table.

    Raises:
        ContractError: the text is no such pair, or the topic is missing or not one of the table's.
    """
    partition, _, offset = text.partition(":")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise ContractError(f"{text!r} is no PARTITION:OFFSET, such as 0:4711.", table=contract.table)
    if topic is None and len(contract.topics) == 1:
        topic = contract.topics[0]
    if topic not in contract.topics:
        names = ", ".join(contract.topics)
        raise ContractError(f"Name the record's topic, one of: {names}.", table=contract.table)
    return Coordinates(topic, int(partition), int(offset))


def find_by_key(catalog: Catalog, contract: Contract, values: Sequence[str]) -> Coordinates | None:
    """Find the record that wrote the row of a key, or the latest delete of it; None if the table knows of neither.

    Args:
        catalog: where the table is.
        contract: of an upsert or history table.
        values: the values of its identifier columns, as text.

    Raises:
        ContractError: the table has no key, or another number of columns in it.
    """
    if len(values) != len(contract.identifier):
        names = ", ".join(contract.identifier) or "none: name the record by --offset"
        raise ContractError(f"The table's key has {len(contract.identifier)} columns ({names}), not {len(values)}.")
    wanted = reduce(And, (equal(name, value) for name, value in zip(contract.identifier, values, strict=True)))
    for identifier in (table_names.typed(contract), table_names.deletes(contract)):
        table = tables.load(catalog, identifier)
        for row in _rows(table, wanted, ("_kafka_topic", "_kafka_partition", "_kafka_offset"))[-1:]:
            return Coordinates(row["_kafka_topic"], row["_kafka_partition"], row["_kafka_offset"])
    return None


def read_trace(name: str, text: str, topic: str | None, kafka: Mapping[str, Any] | None) -> RecordTrace:
    """Trace a record of a table, for the pages.

    Args:
        name: the table's name.
        text: `PARTITION:OFFSET`.
        topic: needed if several topics feed the table.
        kafka: settings of librdkafka; None: those of the environment.

    Raises:
        ContractError: no contract names the table, or as `parse_coordinates`.
        CatalogUnavailableError: the catalog did not answer.
    """
    with availability.translate_catalog_errors(), catalogs.load() as catalog:
        contract = resolve_topics.resolve(load_contracts(strict=False), catalog, None).table(name)
        record = parse_coordinates(contract, text, topic)
        return ask_and_trace(catalog, contract, record, lambda: broker.make_admin_client(kafka))


def ask_and_trace(
    catalog: Catalog, contract: Contract, record: Coordinates, connect: Callable[[], AdminClient]
) -> RecordTrace:
    """Trace a record as `trace_record` does, with what Kafka says of its topic, if Kafka answers."""
    try:
        state = broker.describe_topics(connect(), [record.topic])[record.topic]
    except SluiceError as error:
        state = error
    known = state if isinstance(state, broker.TopicState) else None
    return trace_record(catalog, contract, record, load_ledger(catalog), known)


def trace_record(
    catalog: Catalog, contract: Contract, record: Coordinates, ledger: Ledger | None, state: broker.TopicState | None
) -> RecordTrace:
    """Trace a record.

    Args:
        catalog: where the tables are.
        contract: the table's contract.
        record: the record's coordinates.
        ledger: None if it does not exist yet.
        state: what Kafka says of the topic; None if it did not answer.

    Raises:
        TableDamagedError, CursorUnknownError: staging or the table can't be read.
    """
    table = tables.load(catalog, table_names.typed(contract))
    staging = tables.load_staging(catalog, record.topic)
    kafka = state.watermarks.get(record.partition) if state else None
    known = _ledger_rows(ledger, record, contract.table)
    facts: dict[str, Any] = {"table": contract.table, "record": record, "kafka": kafka}
    gap = next((r for r in known if r.state == LedgerState.GAP and r.table in (None, contract.table)), None)
    if gap:
        facts["why"] = f"{gap.who or 'an operator'}, {gap.at:%Y-%m-%d %H:%M} UTC: {gap.why}"
    planned = next((r for r in known if r.state == LedgerState.PLANNED and (r.batch_seq or 0) > 0), None)
    if planned is None:
        return RecordTrace(**facts, place=Place.GAP if gap else _unplanned_place(record, staging, kafka))
    seq = planned.batch_seq
    facts |= {"batch": seq, "planned_at": planned.at, "planned_by": planned.run_id}
    of_batch = [r for r in known if r.batch_seq == seq]
    raw = _rows(staging, And(equal("batch_seq", seq), record.at_offset), ("_kafka_timestamp",))
    facts |= {"raw": bool(raw), "timestamp": raw[0]["_kafka_timestamp"] if raw else None}
    last = cursor.read_staging_cursor(staging)
    if last is None or last.seq < (seq or 0):
        return RecordTrace(**facts, place=Place.GAP if gap else Place.PLANNED)
    facts["staged_at"] = next((r.at for r in of_batch if r.state == LedgerState.STAGED), None)
    facts |= _staged_part(contract, record, (table, tables.load(catalog, table_names.quarantine(contract))), of_batch)
    if gap and facts["place"] in (Place.MERGED, Place.EXCLUDED):
        facts["place"] = Place.GAP
    return RecordTrace(**facts, **_arrival(contract, facts["timestamp"], facts.get("published_at")))


def _arrival(contract: Contract, timestamp: datetime | None, published_at: datetime | None) -> dict[str, Any]:
    """How long the record took to arrive, or has not arrived yet, and whether that is later than promised."""
    target = contract.freshness.total_seconds() if contract.freshness else None
    if timestamp is None:
        return {"target_seconds": target}
    delay = ((published_at or datetime.now(UTC)) - timestamp).total_seconds()
    return {"target_seconds": target, "delay_seconds": delay, "late": None if target is None else delay > target}


def _staged_part(
    contract: Contract, record: Coordinates, places: tuple[Table | None, Table | None], rows: list[LedgerRow]
) -> dict[str, Any]:
    """What the ledger says of a record whose batch is staged, and its possible places: the table, the quarantine."""
    seq = rows[0].batch_seq or 0
    found: dict[str, Any] = {}
    table, quarantine = places
    for row in _rows(quarantine, record.filter, ("error_class", "error", "field", "_kafka_timestamp"))[-1:]:
        found = {"error_class": row["error_class"], "error": row["error"], "field": row["field"]}
        found |= _timestamp(row)
    through = cursor.read_table_cursor(table).get(record.topic)
    if through is None or through.seq < seq:
        ended = [r for r in rows if r.state in (LedgerState.BLOCKED, LedgerState.FAILED) and r.table == contract.table]
        if not ended:
            return {**found, "place": Place.STAGED}
        place = Place.BLOCKED if ended[-1].state == LedgerState.BLOCKED else Place.FAILED
        return {"error": ended[-1].error, **found, "place": place}
    published = [r for r in rows if r.state == LedgerState.PUBLISHED and r.table == contract.table]
    if published:
        last = published[-1]
        snapshot_id = (last.snapshots or {}).get(contract.table)
        found |= {"published_by": last.run_id, "published_at": last.at, "snapshot_id": snapshot_id}
        snapshot = table.snapshot_by_id(snapshot_id) if table and snapshot_id else None
        if table and snapshot:
            found["published_at"] = snapshots.visible_times(table.metadata).get(snapshot.snapshot_id, last.at)
    if rows_of_record := _rows(table, record.filter, ("_kafka_timestamp",)):
        place = Place.ROW
        found |= _timestamp(rows_of_record[0])
    elif "error_class" in found:
        place = Place.QUARANTINED
    else:
        place = Place.MERGED if contract.keyed else Place.EXCLUDED
    return {**found, "place": place}


def _timestamp(row: Mapping[str, Any]) -> dict[str, datetime]:
    """Kafka's timestamp in a row, if it has one: staging may no longer have the record."""
    at = row["_kafka_timestamp"]
    return {"timestamp": at} if at else {}


def _unplanned_place(record: Coordinates, staging: Table | None, kafka: OffsetRange | None) -> Place:
    """Where a record is that no batch has read."""
    last = cursor.read_staging_cursor(staging)
    if last is not None and record.offset < last.next_offsets.get(record.partition, 0):
        return Place.BEFORE
    if kafka is not None and record.offset >= kafka.end:
        return Place.FUTURE
    return Place.UNREAD


def _rows(table: Table | None, row_filter: BooleanExpression, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    if table is None or table.metadata.current_snapshot_id is None:
        return []
    rows: list[dict[str, Any]] = table.scan(row_filter=row_filter, selected_fields=columns).to_arrow().to_pylist()
    return rows


def _ledger_rows(ledger: Ledger | None, record: Coordinates, table: str) -> list[LedgerRow]:
    """The ledger's rows whose range holds the record, and those of its batch as a whole, oldest first."""
    if ledger is None or ledger.table.metadata.current_snapshot_id is None:
        return []
    of_topic = equal("topic", record.topic)
    holds = And(
        And(of_topic, equal("partition", record.partition)),
        And(at_most("start_offset", record.offset), above("end_offset", record.offset)),
    )
    found = _read(ledger, holds)
    numbers = {r.batch_seq for r in found if r.state == LedgerState.PLANNED and (r.batch_seq or 0) > 0}
    if numbers:
        of_batch = _read(ledger, And(of_topic, equal("batch_seq", max(n for n in numbers if n))))
        found += [r for r in of_batch if r.partition is None and r.table in (None, table)]
    return sorted(found, key=lambda r: r.at)


def _read(ledger: Ledger, row_filter: BooleanExpression) -> list[LedgerRow]:
    return [row_from_record(row) for row in ledger.table.scan(row_filter=row_filter).to_arrow().to_pylist()]
