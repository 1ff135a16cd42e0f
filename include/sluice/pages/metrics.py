"""The status of the tables as Prometheus metrics. All are gauges: they are read from the tables, not counted."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from sluice.pages.history import History
from sluice.status import verdicts
from sluice.status.events import Event
from sluice.status.model import CATALOG, KAFKA, Status, TableStatus

CONTENT_TYPE = CONTENT_TYPE_LATEST

_TABLE_METRICS = {
    "behind_seconds": "timestamp of the newest record in Kafka minus that of the newest record in the table",
    "freshness_promised_seconds": "the freshness target of the contract",
    "freshness_kept": "1: no unread record is older than the freshness target; 0: some are",
    "failing": "1: the last attempt was blocked or failed, and its batch is not published",
    "failed_runs": "consecutive runs that were blocked or failed at a batch that is not published",
    "open_batches": "planned or staged batches that are not published",
    "quarantined_records": "records quarantined now",
    "snapshot_timestamp_seconds": "time of the last commit with offsets",
    "expectations_failed": "failed expectations of the last evaluated batch",
}


def metrics_text(status: Status, history: History | None, *, all_tables: bool) -> bytes:
    """Format the tables' metrics in Prometheus' text format. Unknown values are left out, not reported as 0.

    Args:
        history: recent events; without them, the metrics of last batches are left out.
        all_tables: whether these are all tables; if not, the size of the ledger is left out.
    """
    registry = CollectorRegistry()

    def gauge(name: str, description: str, *labels: str) -> Gauge:
        return Gauge(f"sluice_table_{name}", description, ("table", *labels), registry=registry)

    state = gauge("state", "1: the current state of the table", "state", "group")
    lag = gauge("lag_offsets", "offsets in Kafka that are not in the table", "topic")
    size = gauge("size", "totals of the newest snapshot", "of")
    gauges = {name: gauge(name, description) for name, description in _TABLE_METRICS.items()}
    for table in status.tables:
        state.labels(table.table, verdicts.worst_verdict(table).word, table.group).set(1)
        for topic in table.topics:
            if topic.lag_records is not None and not table.unasked:
                lag.labels(table.table, topic.topic).set(topic.lag_records)
        for of, count in table.totals.items():
            if CATALOG not in table.unasked:
                size.labels(table.table, of.replace(" ", "_")).set(count)
        for name, value in _table_values(table).items():
            if value is not None:
                gauges[name].labels(table.table).set(value)
    read = Gauge("sluice_read_timestamp_seconds", "time at which these metrics were read", registry=registry)
    read.set(status.at.timestamp())
    unavailable = Gauge(
        "sluice_unavailable", "1: the source did not answer, or only in part", ("source",), registry=registry
    )
    for source in (KAFKA, CATALOG):
        unavailable.labels(source).set(source in status.unasked)
    if history:
        _add_last_batches(registry, {t.table for t in status.tables}, history.last)
    if history and all_tables:
        rows = Gauge("sluice_ledger_rows", "rows of the ledger", registry=registry)
        rows.set(history.ledger_rows)
    return generate_latest(registry)


def _table_values(table: TableStatus) -> dict[str, float | None]:
    values: dict[str, float | None] = {"freshness_promised_seconds": table.freshness_promised_seconds}
    if CATALOG not in table.unasked:
        runs = table.last_error.runs if table.last_error and table.last_error.open else 0
        values |= {
            "failing": runs > 0,
            "failed_runs": runs,
            "open_batches": len(table.open_batches),
            "quarantined_records": table.quarantined,
            "snapshot_timestamp_seconds": table.snapshot.at.timestamp() if table.snapshot else None,
            "expectations_failed": len(table.expectations.failed) if table.expectations else None,
        }
    if not table.unasked:
        values |= {"behind_seconds": table.freshness_now_seconds, "freshness_kept": table.freshness_kept}
    return values


def _add_last_batches(registry: CollectorRegistry, names: set[str], last: Iterable[Event]) -> None:
    descriptions = {
        "seconds": "duration of publishing the last batch, its commit included",
        "commit_seconds": "duration of the commit that made the last batch visible",
        "records": "records of the last published batch",
        "rejected": "quarantined records of the last published batch",
        "delay": "age of the oldest record of the last batch when it was published, in seconds",
    }
    gauges = {
        name: Gauge(f"sluice_table_last_batch_{name}", description, ("table",), registry=registry)
        for name, description in descriptions.items()
    }
    for event in last:
        if event.table in names:
            for name, gauge in gauges.items():
                if (value := getattr(event, name)) is not None:
                    gauge.labels(event.table).set(value)
