"""Where every table stands, as Prometheus reads it. Gauges alone: what is told is read from the tables, not counted."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from sluice.pages.history import History
from sluice.status import verdicts
from sluice.status.events import Event
from sluice.status.model import CATALOG, KAFKA, Status, TableStatus

CONTENT_TYPE = CONTENT_TYPE_LATEST

_OF_TABLE = {
    "behind_seconds": "how far the table is behind its topics, in the records' own time",
    "freshness_promised_seconds": "the freshness that the contract promises",
    "freshness_kept": "1: no unread record is older than promised; 0: there are such",
    "failing": "1: the last attempt was blocked or failed, and its batch is not published",
    "failed_runs": "runs in a row that were blocked or failed at a batch that is not published",
    "open_batches": "batches planned or staged that the table does not hold",
    "quarantined_records": "records in quarantine now",
    "snapshot_timestamp_seconds": "since when readers see the last durable snapshot with offsets",
    "expectations_failed": "expectations of the batch judged last that did not hold",
}


def text(status: Status, known: History | None, *, whole: bool) -> bytes:
    """The metrics of these tables in Prometheus' text format. What nobody could be asked is left out: 0 would be calm.

    Args:
        known: what happened of late; the metrics of last batches are left out where it is not known.
        whole: whether these are all tables: else the ledger's size tells of others.
    """
    registry = CollectorRegistry()

    def gauge(name: str, words: str, *labels: str) -> Gauge:
        return Gauge(f"sluice_table_{name}", words, ("table", *labels), registry=registry)

    state = gauge("state", "1: the table's state in a word", "state", "group")
    lag = gauge("lag_offsets", "offsets in Kafka that the table does not hold", "topic")
    size = gauge("size", "what the table's newest snapshot says of it", "of")
    made = {name: gauge(name, words) for name, words in _OF_TABLE.items()}
    for table in status.tables:
        state.labels(table.table, verdicts.of_table(table).word, table.group).set(1)
        for topic in table.topics:
            if topic.lag_records is not None and not table.unasked:
                lag.labels(table.table, topic.topic).set(topic.lag_records)
        for of, count in table.totals.items():
            if CATALOG not in table.unasked:
                size.labels(table.table, of.replace(" ", "_")).set(count)
        for name, value in _of_table(table).items():
            if value is not None:
                made[name].labels(table.table).set(value)
    read = Gauge("sluice_read_timestamp_seconds", "when what is exported here was read", registry=registry)
    read.set(status.at.timestamp())
    away = Gauge("sluice_unavailable", "1: it did not answer, or not all it was asked", ("source",), registry=registry)
    for source in (KAFKA, CATALOG):
        away.labels(source).set(source in status.unasked)
    if known:
        _last_batches(registry, {t.table for t in status.tables}, known.last)
    if known and whole:
        rows = Gauge("sluice_ledger_rows", "rows of the ledger", registry=registry)
        rows.set(known.ledger_rows)
    return generate_latest(registry)


def _of_table(table: TableStatus) -> dict[str, float | None]:
    told: dict[str, float | None] = {"freshness_promised_seconds": table.freshness_promised_seconds}
    if CATALOG not in table.unasked:
        runs = table.last_error.runs if table.last_error and table.last_error.open else 0
        told |= {
            "failing": runs > 0,
            "failed_runs": runs,
            "open_batches": len(table.open_batches),
            "quarantined_records": table.quarantined,
            "snapshot_timestamp_seconds": table.snapshot.at.timestamp() if table.snapshot else None,
            "expectations_failed": len(table.expectations.failed) if table.expectations else None,
        }
    if not table.unasked:
        told |= {"behind_seconds": table.freshness_now_seconds, "freshness_kept": table.freshness_kept}
    return told


def _last_batches(registry: CollectorRegistry, names: set[str], last: Iterable[Event]) -> None:
    gauges = {
        "seconds": "how long publishing the last batch took, its commit included",
        "commit_seconds": "of these, how long the commit took that readers see",
        "records": "records of the last published batch",
        "rejected": "of them in quarantine",
        "delay": "the age in seconds that its oldest record had reached when it was published",
    }
    made = {
        n: Gauge(f"sluice_table_last_batch_{n}", words, ("table",), registry=registry) for n, words in gauges.items()
    }
    for event in last:
        if event.table in names:
            for name, metric in made.items():
                if (value := getattr(event, name)) is not None:
                    metric.labels(event.table).set(value)
