"""What a plan warns of, though it goes on: retention that comes near, fields that writers drop, batches left behind."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.iceberg import cursor, snapshots, table_names, tables
from sluice.iceberg.filters import above
from sluice.ledger import backlog
from sluice.offsets import OffsetRange, encode_ranges
from sluice.plan import retention_warnings, risk, writer_schema_warnings
from sluice.plan.risk import Kind

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyiceberg.catalog import Catalog

    from sluice.plan.model import TablePlan, TopicPlan

log = logging.getLogger(__name__)


def look(
    client: AdminClient,
    catalog: Catalog,
    plans: Mapping[str, TopicPlan],
    table_plans: Mapping[str, TablePlan],
    contracts: Contracts,
    loaded: Mapping[str, backlog.Staging],
) -> tuple[risk.Risk, ...]:
    """What a person is warned of before it happens; `loaded` as of `backlog.staged`."""
    found: list[risk.Risk] = []
    for topic, plan in plans.items():
        schedule = contracts.group(contracts.topics[topic].group).settings.schedule
        waiting = {name: t.pending[topic] for name, t in table_plans.items() if t.pending.get(topic)}
        staging = loaded[topic][0] if topic in loaded else None
        each = snapshots.bytes_per_record(staging) if staging else None
        found += retention_warnings.look(client, plan, waiting, schedule, each)
        if any(
            t.contract.keyed and t.contract.deletes != "ignore"
            for t in table_plans.values()
            if topic in t.contract.topics
        ):
            found += retention_warnings.tombstones(client, plan, schedule)
    subjects = writer_schema_warnings.Subjects()
    for table in table_plans.values():
        found += _of_writers(table.contract, subjects)
        found += _left_behind(catalog, table, contracts)
    return tuple(found)


def _of_writers(contract: Contract, subjects: writer_schema_warnings.Subjects) -> list[risk.Risk]:
    try:
        return writer_schema_warnings.look(contract, subjects)
    except Exception:
        log.warning("%s: the writers' newest schema could not be looked at", contract.table, exc_info=True)
        return []  # a warning that can't be given stops nothing


def _left_behind(catalog: Catalog, table: TablePlan, contracts: Contracts) -> Iterator[risk.Risk]:
    """Batches that the table had yet to publish when its contract named their topic no more: now nobody does.

    Only of topics that no contract names: from one that feeds others batches keep coming, which are not meant for it.
    """
    gone = set(table.through) - set(contracts.topics) if not contracts.problems else set()
    for topic in sorted(gone):
        done = table.through[topic]
        try:
            staging = tables.load(catalog, table_names.staging(topic))
            last = cursor.staged(staging)
            after = max(done.seq, tables.trimmed_through(staging) if staging else 0)
            rows = backlog.rows_by_batch(staging, above("batch_seq", after))
        except Exception as error:  # noqa: BLE001 - a warning that can't be given stops nothing
            log.info("%s: what is staged of %s was not looked at: %s", table.contract.table, topic, error)
            continue
        if last and (count := sum(rows.values())):
            at = dict(done.next_offsets)
            left = {p: OffsetRange(at.get(p, 0), end) for p, end in last.next_offsets.items() if end > at.get(p, 0)}
            text = (
                f"{count:,} records staged of it, offsets {encode_ranges(left)}, were not published into "
                f"{table.contract.table} before its contract named the topic no more."
            )
            yield risk.Risk(Kind.LEFT, topic, text, table.contract.table)
