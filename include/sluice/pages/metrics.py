"""The status of the tables as Prometheus metrics. All are gauges: they are read from the tables, not counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from sluice.pages.history import History
from sluice.status import verdicts
from sluice.status.events import Event
from sluice.status.model import CATALOG, KAFKA, Status, TableStatus
from sluice.usage.overview import DayFacts

CONTENT_TYPE = CONTENT_TYPE_LATEST

_TABLE = "table"
METRICS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "table_state": ("1: the current state of the table", (_TABLE, "state", "group")),
    "table_risk": ("1: the table has a risk of this kind, whatever its state", (_TABLE, "kind", "group")),
    "table_lag_offsets": ("offsets in Kafka that are not in the table", (_TABLE, "topic")),
    "table_behind_seconds": (
        "timestamp of the newest record in Kafka minus that of the newest record in the table",
        (_TABLE,),
    ),
    "table_freshness_promised_seconds": ("the freshness target of the contract", (_TABLE,)),
    "table_freshness_kept": ("1: no unread record is older than the freshness target; 0: some are", (_TABLE,)),
    "table_failing": ("1: the last attempt was blocked or failed, and its batch is not published", (_TABLE,)),
    "table_failed_runs": (
        "consecutive runs that were blocked or failed at a batch that is not published; of the worst topic",
        (_TABLE,),
    ),
    "table_open_batches": ("planned or staged batches that are not published", (_TABLE,)),
    "table_quarantined_records": ("records quarantined now", (_TABLE,)),
    "table_expectations_failed": ("failed expectations of the last evaluated batch", (_TABLE,)),
    "table_snapshot_timestamp_seconds": ("time of the last commit with offsets", (_TABLE,)),
    "table_size": (
        "totals of the newest snapshot: records, files, bytes, delete_files, deleted_records",
        (_TABLE, "of"),
    ),
    "table_last_batch_seconds": ("duration of publishing the last batch, its commit included", (_TABLE,)),
    "table_last_batch_commit_seconds": ("duration of the commit that made the last batch visible", (_TABLE,)),
    "table_last_batch_records": ("records of the last published batch", (_TABLE,)),
    "table_last_batch_rejected": ("quarantined records of the last published batch", (_TABLE,)),
    "table_last_batch_delay": (
        "age of the oldest record of the last batch when it was published, in seconds",
        (_TABLE,),
    ),
    "table_last_day_cpu_seconds": (
        "CPU seconds of drivers and executors for the table in the last 24 hours",
        (_TABLE,),
    ),
    "table_last_day_files": ("data and delete files written for the table in the last 24 hours", (_TABLE,)),
    "ledger_rows": ("rows of the ledger; only for callers who may see every table", ()),
    "read_timestamp_seconds": ("time at which these metrics were read", ()),
    "unavailable": ("1: the source (kafka or catalog) did not answer, or only in part", ("source",)),
}
"""Description and labels of each metric, by its name without `sluice_`."""

_LAST_BATCH = "table_last_batch_"


def metrics_text(
    status: Status, history: History | None, costs: Mapping[str, DayFacts] | None = None, *, all_tables: bool
) -> bytes:
    """Format the tables' metrics in Prometheus' text format. Unknown values are left out, not reported as 0.

    Args:
        history: recent events; without them, the metrics of last batches are left out.
        costs: what tables used in the last 24 hours; without them, these metrics are left out.
        all_tables: whether these are all tables; if not, the size of the ledger is left out.
    """
    registry = CollectorRegistry()

    def gauge(name: str) -> Gauge:
        description, labels = METRICS[name]
        return Gauge(f"sluice_{name}", description, labels, registry=registry)

    # One without labels has the value 0 from the beginning: it is made where its value is known.
    gauges = {name: gauge(name) for name, (_, labels) in METRICS.items() if labels}
    lag, size = gauges["table_lag_offsets"], gauges["table_size"]
    for table in status.tables:
        _set_state(gauges, table)
        for topic in table.topics:
            if topic.lag_records is not None and not table.unasked:
                lag.labels(table.table, topic.topic).set(topic.lag_records)
        for of, count in table.totals.items():
            if CATALOG not in table.unasked:
                size.labels(table.table, of.replace(" ", "_")).set(count)
        for name, value in _table_values(table).items():
            if value is not None:
                gauges[name].labels(table.table).set(value)
    gauge("read_timestamp_seconds").set(status.at.timestamp())
    for source in (KAFKA, CATALOG):
        gauges["unavailable"].labels(source).set(source in status.unasked)
    if history:
        last = {name.removeprefix(_LAST_BATCH): each for name, each in gauges.items() if name.startswith(_LAST_BATCH)}
        _set_last_batches(last, {t.table for t in status.tables}, history.last)
    _set_costs(gauges, {t.table for t in status.tables}, costs or {})
    if history and all_tables:
        gauge("ledger_rows").set(history.ledger_rows)
    return generate_latest(registry)


def _set_state(gauges: Mapping[str, Gauge], table: TableStatus) -> None:
    gauges["table_state"].labels(table.table, verdicts.worst_verdict(table).word, table.group).set(1)
    for each in table.risks:
        gauges["table_risk"].labels(table.table, each.kind, table.group).set(1)


def _table_values(table: TableStatus) -> dict[str, float | None]:
    values: dict[str, float | None] = {"table_freshness_promised_seconds": table.freshness_promised_seconds}
    if CATALOG not in table.unasked:
        runs = table.last_error.runs if table.last_error and table.last_error.open else 0
        values |= {
            "table_failing": runs > 0,
            "table_failed_runs": runs,
            "table_open_batches": len(table.open_batches),
            "table_quarantined_records": table.quarantined,
            "table_snapshot_timestamp_seconds": table.snapshot.at.timestamp() if table.snapshot else None,
            "table_expectations_failed": len(table.expectations.failed) if table.expectations else None,
        }
    if not table.unasked:
        values |= {
            "table_behind_seconds": table.freshness_now_seconds,
            "table_freshness_kept": table.freshness_kept,
        }
    return values


def _set_costs(gauges: Mapping[str, Gauge], names: set[str], costs: Mapping[str, DayFacts]) -> None:
    for table, used in costs.items():
        if table in names:
            gauges["table_last_day_cpu_seconds"].labels(table).set(used.cpu_seconds)
            gauges["table_last_day_files"].labels(table).set(used.files)


def _set_last_batches(gauges: Mapping[str, Gauge], names: set[str], last: Iterable[Event]) -> None:
    for event in last:
        if event.table in names:
            for name, gauge in gauges.items():
                if (value := getattr(event, name)) is not None:
                    gauge.labels(event.table).set(value)
