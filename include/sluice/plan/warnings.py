"""Warnings of a plan: records that Kafka will delete, timestamps and fields gone wrong, batches that nobody publishes.

In: the plans of topics and tables. Out: risks; none of them stops a table.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.errors import SluiceError
from sluice.iceberg import cursor, snapshots, tables
from sluice.iceberg.filters import And, Or, above, at_most
from sluice.ledger import backlog
from sluice.offsets import OffsetRange, encode_ranges
from sluice.plan import retention_warnings, writer_schema_warnings
from sluice.plan.risk import Risk, RiskKind
from sluice.timestamps import NO_TIMESTAMP

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sluice.batch import Batch
    from sluice.plan.model import PlanInputs, TablePlan, TopicPlan

log = logging.getLogger(__name__)

NEWEST_BATCHES = 100
"""The batches of a topic whose timestamps are checked."""


def find_risks(
    inputs: PlanInputs,
    topic_plans: Mapping[str, TopicPlan],
    table_plans: Mapping[str, TablePlan],
    staging: Mapping[str, backlog.StagingState],
) -> tuple[Risk, ...]:
    """What the owner of a table should know before it goes wrong.

    Args:
        inputs: what the plans were made from.
        topic_plans: the plan of each topic.
        table_plans: the plan of each table.
        staging: the staging table and last staged batch of each topic.
    """
    contracts, client = inputs.contracts, inputs.client
    found: list[Risk] = []
    all_waiting: dict[str, dict[str, Sequence[Batch]]] = {}
    for name, table_plan in table_plans.items():
        for topic, batches in table_plan.pending.items():
            if batches:
                all_waiting.setdefault(topic, {})[name] = batches
    deleting = [t.contract for t in table_plans.values() if t.contract.keyed and t.contract.deletes != "ignore"]
    with_deletes = {topic for contract in deleting for topic in contract.topics}
    for topic, plan in topic_plans.items():
        schedule = contracts.group(contracts.topics[topic].group).settings.schedule
        waiting = all_waiting.get(topic, {})
        table = staging[topic][0] if topic in staging else None
        record_bytes = snapshots.bytes_per_record(table) if table else None
        found += retention_warnings.find_retention_risks(client, plan, waiting, schedule, record_bytes)
        found += _timestamp_risks(topic, staging.get(topic))
        if topic in with_deletes:
            found += retention_warnings.find_tombstone_risks(client, plan, schedule)
    subjects = writer_schema_warnings.SubjectCache()
    for table_plan in table_plans.values():
        found += _schema_risks(table_plan.contract, subjects)
        found += _unpublished_leftovers(inputs.catalog, table_plan, contracts)
        if text := table_plan.other_writers:
            topic = next(iter(table_plan.contract.topics), "")
            found.append(Risk(RiskKind.OTHER_WRITERS, topic, text, table_plan.contract.table))
    return tuple(found)


def _timestamp_risks(topic: str, state: backlog.StagingState | None) -> list[Risk]:
    """Staged records whose Kafka timestamp is beyond the years 1 to 9999, from the bounds of files alone."""
    if state is None or state.table is None or state.last is None:
        return []
    table = state.table
    try:
        column = table.schema().find_field("_kafka_timestamp_ms")
        newest = above("batch_seq", max(state.last.seq - NEWEST_BATCHES, 0))
        beyond = Or(above(column.name, NO_TIMESTAMP), at_most(column.name, NO_TIMESTAMP - 1))
        files = [task.file for task in tables.plan_files(table, And(newest, beyond))]
    except ValueError:  # a table that an earlier version created
        return []
    except Exception as error:  # noqa: BLE001 - a failed check of a warning stops nothing
        log.info("%s: the timestamps of staged records were not checked: %s", topic, error)
        return []
    bounds = [tables.decode_bound(b, column, NO_TIMESTAMP) for f in files for b in (f.upper_bounds, f.lower_bounds)]
    if not (odd := [ms for ms in bounds if ms != NO_TIMESTAMP]):
        return []
    numbers = sorted({file.partition[0] for file in files})
    text = (
        f"batches {numbers[0]} to {numbers[-1]} have records with a Kafka timestamp beyond the years 1 to 9999, "
        f"such as {odd[-1]} ms since 1970. It is null in their rows; staging has the number in _kafka_timestamp_ms."
    )
    return [Risk(RiskKind.TIMESTAMPS, topic, text)]


def _schema_risks(contract: Contract, subjects: writer_schema_warnings.SubjectCache) -> list[Risk]:
    try:
        return writer_schema_warnings.find_schema_risks(contract, subjects)
    except Exception:
        log.warning("%s: the newest registered schema was not checked", contract.table, exc_info=True)
        return []  # a failed check of a warning stops nothing


def _unpublished_leftovers(catalog: Catalog, table: TablePlan, contracts: Contracts) -> Iterator[Risk]:
    """Staged batches that the table had not published when the topic was removed from its contract.

    Only for topics that no contract names: where another table reads the topic, new batches are not meant for this one.
    """
    removed = set(table.published) - set(contracts.topics) if not contracts.problems else set()
    for topic in sorted(removed):
        done = table.published[topic]
        try:
            staging = tables.load_staging(catalog, topic)
            last = cursor.read_staging_cursor(staging)
            after = max(done.seq, tables.trimmed_through(staging) if staging else 0)
            rows = backlog.count_rows_by_batch(staging, above("batch_seq", after))
        except Exception as error:
            trace, name = not isinstance(error, SluiceError), table.contract.table
            log.info("%s: staged records of topic %s were not checked: %s", name, topic, error, exc_info=trace)
            continue
        if last and (count := sum(rows.values())):
            at = dict(done.next_offsets)
            left = {p: OffsetRange(at.get(p, 0), end) for p, end in last.next_offsets.items() if end > at.get(p, 0)}
            text = (
                f"{count:,} staged records, offsets {encode_ranges(left)}, were not published into "
                f"{table.contract.table} before the topic was removed from its contract."
            )
            yield Risk(RiskKind.LEFT_BEHIND, topic, text, table.contract.table)
