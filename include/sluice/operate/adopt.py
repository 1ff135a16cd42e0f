"""Adopts a table that another writer has filled: Sluice continues at the offsets where that writer stopped. No JVM.

In: a contract and the offsets. Out: a preview; with a `Decision`, one commit. Nothing else is written: the next plan
starts the topic's staging at these offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from sluice.batch import PUBLISHED_THROUGH, PublishedOffsets
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.contract.shape import shape, shape_id
from sluice.errors import CursorUnknownError, EqualityDeletesError, FencedError, RefusedError, SluiceError
from sluice.evolve import adopt as adoption
from sluice.evolve.adopt import StagedColumns
from sluice.iceberg import cursor, snapshots, table_names, tables
from sluice.iceberg.active_contract import CONTRACT_PROPERTY, ContractVersion
from sluice.iceberg.sql_literals import quote_identifier
from sluice.kafka import broker
from sluice.ledger import schemas_table
from sluice.offsets import OffsetRange, Offsets
from sluice.operate.operator_input import Decision
from sluice.operate.previous_writer import PreviousWriter
from sluice.plan.model import PlanInputs

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

MAX_KEYS = 20_000_000
"""Of a table with more rows, it is not checked here that no key is in it twice: the keys are compared in memory."""


@dataclass(frozen=True)
class Adoption:
    """What an adoption would do.

    Attributes:
        staged: the changes of the table's columns.
        writer: the previous writer.
        published: per topic where Sluice continues.
        watermarks: per topic and partition what Kafka holds.
        keys_checked: whether no key is in the table twice; always true in mode append.
    """

    staged: StagedColumns
    writer: PreviousWriter
    published: Mapping[str, PublishedOffsets]
    watermarks: Mapping[str, Mapping[int, OffsetRange]]
    keys_checked: bool

    @property
    def table(self) -> str:
        """The table's name."""
        return self.staged.contract.table

    def lost(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Per topic and partition the offsets `[first, end)` that nobody has read, and that Kafka no longer holds."""
        found: dict[str, dict[int, tuple[int, int]]] = {}
        for topic, each in self.published.items():
            for p, offset in each.next_offsets.items():
                if offset < (start := self.watermarks[topic][p].start):
                    found.setdefault(topic, {})[p] = (offset, start)
        return found

    def lines(self) -> list[str]:
        """The preview as text."""
        table, rows = self.staged.table, snapshots.count_rows(self.staged.table)
        lines = [
            f"{self.table}: {rows:,} rows, main at snapshot {table.metadata.current_snapshot_id}",
            f"previous writer: {self.writer.name}",
            *(f"column  {each}" for each in self.staged.descriptions),
            *([] if self.keys_checked else ["keys    not checked: the table is too large"]),
        ]
        for topic, each in sorted(self.published.items()):
            for p, offset in sorted(each.next_offsets.items()):
                marks = self.watermarks[topic][p]
                unread = f"{max(marks.end - max(offset, marks.start), 0):,} records to read"
                lines.append(f"offset  {topic} partition {p} continues at {offset} ({unread})")
        lines += [
            f"lost    {topic} partition {p}: Kafka no longer holds [{first}, {end}); the next run stops for it, until "
            "the gap is accepted"
            for topic, each in sorted(self.lost().items())
            for p, (first, end) in sorted(each.items())
        ]
        return lines


def load_table(name: str, contracts: Contracts, catalog: Catalog) -> Table:
    """Load the typed table of a contract.

    Raises:
        ContractError: no contract names it.
        RefusedError: it does not exist.
    """
    found = tables.load(catalog, table_names.typed(contracts.table(name)))
    if found is None:
        raise RefusedError("The table does not exist.", table=name, next_step="The next run creates it.")
    return found


def preview_adoption(
    table: str, inputs: PlanInputs, writer: PreviousWriter, *, accept_unchecked_keys: bool = False
) -> Adoption:
    """Find out what an adoption would do, changing nothing.

    Args:
        table: the name of the typed table.
        inputs: the contracts, the catalog, and the client of the cluster that holds the table's topics.
        writer: where the previous writer stopped.
        accept_unchecked_keys: the operator has made sure that no key is in the table twice.

    Raises:
        ContractError: no contract names the table.
        RefusedError, SchemaChangeError, EqualityDeletesError: with the reason and the next step.
        BrokerUnavailableError: Kafka did not answer.
    """
    catalog, contract = inputs.catalog, inputs.contracts.table(table)
    if stop := inputs.contracts.stopped.get(table):
        raise stop
    found = load_table(table, inputs.contracts, catalog)
    _check_adoptable(found, contract)
    staged = adoption.stage_columns(found, contract)
    checked = _check_keys(staged, accept_unchecked=accept_unchecked_keys)
    states = _describe_topics(inputs.client, contract)
    published = {}
    for topic, state in states.items():
        offsets = _complete_offsets(table, state, writer)
        staging = tables.load_staging(catalog, topic)
        seq = _staged_through(table, staging, topic, offsets)
        published[topic] = PublishedOffsets(seq, cursor.known_topic_id(staging, state.topic_id), offsets)
    return Adoption(staged, writer, published, {t: s.watermarks for t, s in states.items()}, checked)


def adopt(found: Adoption, catalog: Catalog, decision: Decision) -> None:
    """Carry out an adoption.

    Raises:
        FencedError: another commit came first; nothing was changed.
    """
    contract = found.staged.contract
    version = ContractVersion(
        1,
        shape_id(contract),
        shape(contract),
        words=[f"adopts the table of {found.writer.name}", *found.staged.descriptions],
        kinds=["adopt"],
        offsets={t: {str(p): o for p, o in each.next_offsets.items()} for t, each in found.published.items()},
        snapshot_id=found.staged.table.metadata.current_snapshot_id,
        who=decision.who,
        why=decision.why,
    )
    try:
        adoption.commit_adoption(catalog, found.staged, found.published, version, run_id=decision.run_id)
    except CommitFailedException as error:
        raise FencedError(
            "Another commit changed the table meanwhile; nothing was changed.",
            table=contract.table,
            next_step="Stop the previous writer, and run the command again.",
        ) from error
    schemas_table.record_versions(catalog, [catalog.load_table(table_names.typed(contract))], decision.run_id)


def _check_adoptable(table: Table, contract: Contract) -> None:
    name = contract.table
    with suppress(CursorUnknownError):
        is_own = CONTRACT_PROPERTY in table.properties or cursor.find_offset_snapshot(table, PUBLISHED_THROUGH)
        if is_own:
            raise RefusedError(
                "Sluice writes this table already.",
                table=name,
                next_step="None, if its group's DAG runs. If it was given back to another writer, use a new table.",
            )
    if contract.mode not in ("append", "upsert"):
        raise RefusedError(
            f"A table of mode {contract.mode} can't be adopted: rows of another writer lack what it needs.",
            table=name,
            next_step="Use mode append or upsert, or a new table.",
        )
    if contract.auto:
        raise RefusedError(
            "columns: auto can't adopt a table.",
            table=name,
            next_step="List the columns; once the table is adopted, `auto` can be used.",
        )
    if masked := [c for c in contract.identifier if contract.column(c).mask]:
        raise RefusedError(
            f"The key column {', '.join(masked)} is masked: masked keys do not match those in the table.",
            table=name,
            next_step="Use a new table.",
        )
    if (version := table.format_version) != contract.format_version:
        fix = f"ALTER TABLE {name} SET TBLPROPERTIES ('format-version' = '2')" if version < 2 else ""
        raise RefusedError(
            f"The table has format version {version}, and the contract {contract.format_version}.",
            table=name,
            next_step=f"{fix or f'Set format_version: {version} in the contract'}.",
        )
    if snapshots.has_equality_deletes(table):
        raise EqualityDeletesError("The previous writer wrote equality deletes.", table=name)


def _check_keys(staged: StagedColumns, *, accept_unchecked: bool) -> bool:
    """Whether no key is in the table twice, and none is null; in mode append there is nothing to check.

    Raises:
        RefusedError: with a query that shows the rows.
    """
    contract, table = staged.contract, staged.table
    if not contract.upsert:
        return True
    names = list(contract.identifier)
    key = ", ".join(map(quote_identifier, names))
    query = f"SELECT {key}, count(*) FROM {contract.table} GROUP BY {key} HAVING count(*) > 1"  # noqa: S608 - only shown
    if snapshots.count_rows(table) > MAX_KEYS:
        if accept_unchecked:
            return False
        raise RefusedError(
            f"The table has more than {MAX_KEYS:,} rows: whether a key is in it twice must be checked by an engine.",
            table=contract.table,
            next_step=f"{query}; if it finds nothing, add --accept-unchecked-keys.",
        )
    keys = table.scan(selected_fields=tuple(names)).to_arrow()
    if nulls := sum(keys[name].null_count for name in names):
        raise RefusedError(
            f"{nulls:,} values of {', '.join(names)} are null, and mode upsert needs a key in each row.",
            table=contract.table,
            next_step="Remove these rows, or use mode append.",
        )
    if doubled := len(keys) - len(keys.group_by(names).aggregate([])):
        raise RefusedError(
            f"{doubled:,} rows have a key that another row has, and mode upsert needs one row for each key.",
            table=contract.table,
            next_step=f"{query} shows the keys. Remove the older rows, or use mode append.",
        )
    return True


def _describe_topics(client: AdminClient, contract: Contract) -> dict[str, broker.TopicState]:
    states = broker.describe_topics(client, contract.topics)
    for state in states.values():
        if isinstance(state, SluiceError):
            raise state
    return {topic: state for topic, state in states.items() if isinstance(state, broker.TopicState)}


def _complete_offsets(table: str, state: broker.TopicState, writer: PreviousWriter) -> Offsets:
    """The offsets of all partitions of a topic; a partition that the writer has not read continues at its first one.

    Raises:
        RefusedError: the writer has no offsets of the topic, or offsets that Kafka does not have.
    """
    given, marks = writer.offsets.get(state.topic), state.watermarks
    where = {"table": table, "topic": state.topic}
    if not given:
        known = ", ".join(sorted(writer.offsets)) or "none"
        raise RefusedError(
            f"The previous writer ({writer.name}) has no offsets of this topic.",
            **where,
            next_step=f"Topics that it has offsets of: {known}. Is it the right one, and does the contract name the "
            "topic that it read?",
        )
    if gone := sorted(set(given) - set(marks)):
        raise RefusedError(f"The topic has no partition {gone[0]}.", **where, next_step="Is it the right cluster?")
    if beyond := {p: (offset, marks[p].end) for p, offset in given.items() if offset > marks[p].end}:
        raise RefusedError(
            "The offsets are after the log end offset: {partition: (offset, log end)} " + json.dumps(beyond) + ".",
            **where,
            next_step="Is it the right cluster, and was the topic not created again?",
        )
    return {p: given.get(p, m.start) for p, m in sorted(marks.items())}


def _staged_through(table: str, staging: Table | None, topic: str, offsets: Offsets) -> int:
    """The number of the staged batch that ends at these offsets; 0 if nothing of the topic is staged.

    Raises:
        RefusedError: the topic is staged for other tables, and none of its batches ends at these offsets.
    """
    last = cursor.read_staging_cursor(staging)
    if last is None:
        return 0
    staged = [last, *(batch for batch, _ in cursor.read_staged_batches(staging).values())]
    for batch in staged:
        if dict(batch.next_offsets) == dict(offsets):
            return batch.seq
    raise RefusedError(
        "The topic is staged for other tables already, and no staged batch ends at the previous writer's offsets.",
        table=table,
        topic=topic,
        next_step=f"Let the previous writer read up to exactly {dict(last.next_offsets)}, where staging ends, and stop "
        "there; pause the group's DAG meanwhile.",
    )
