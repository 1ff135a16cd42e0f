"""What a table's page shows beyond its status: batches and snapshots, expectations, rejected records, versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import yaml

from sluice import catalog as catalogs
from sluice import contracts, cursor, quality, reach, readiness, schemas, tables, topics, upkeep
from sluice.contract import Contract
from sluice.model import RUN_ID, STEP, TOPIC, OffsetRange, batches_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

BATCHES = 50
REJECTED_SHOWN = 50
REJECTED_COUNTED = 200_000
RESULTS_BACK = timedelta(days=7)
EFFECTS = 20

_WRONG = ("error_class", "field")
_PLACE = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "batch_seq")


@dataclass(frozen=True)
class BatchLine:
    """A batch in the table's history; the numbers are of the commit, which may hold several batches.

    Attributes:
        rejected: its records in quarantine now.
        failed: expectations that did not hold; None where none were judged.
    """

    topic: str
    seq: int
    ranges: Mapping[int, OffsetRange]
    step: str
    snapshot_id: int
    at: datetime
    run_id: str | None
    added: int
    rejected: int
    failed: int | None


@dataclass(frozen=True)
class Trend:
    """One expectation over the last batches, the oldest first."""

    expectation: str
    column: str
    severity: str
    results: Sequence[quality.Result]

    @property
    def last(self) -> quality.Result:
        """What it came to in the newest batch."""
        return self.results[-1]

    def of_slices(self, wanted: bool) -> Trend:
        """What it came to in slices of backfills alone, or without them."""
        return replace(self, results=[r for r in self.results if (r.batch_seq < 0) == wanted])


@dataclass(frozen=True)
class Detail:
    """All of it.

    Attributes:
        wrong: records in quarantine by class of error and field, the most frequent first.
        rejected: the newest of them: place, batch, class, field, error, time; never the record.
        readiness: the scorecard.
        counted: of how many records in quarantine, where not of all.
        contract: as YAML, without what is left to its default.
    """

    batches: Sequence[BatchLine] = ()
    trends: Sequence[Trend] = ()
    wrong: Sequence[tuple[str, str, int]] = ()
    rejected: Sequence[Mapping[str, Any]] = ()
    versions: Sequence[schemas.Row] = ()
    effects: Sequence[upkeep.Effect] = ()
    readiness: Sequence[readiness.Line] = ()
    counted: int | None = None
    contract: str = ""


def read(name: str) -> Detail:
    """Read it from the catalog; nothing where no contract has the table any more.

    Raises:
        CatalogUnavailableError: the catalog did not answer.
    """
    with reach.catalog_errors():
        catalog = catalogs.load()
        known = topics.resolve(contracts.load(strict=False), catalog, None)
        contract = known.tables.get(name)
        if contract is None:
            return Detail()
        table = tables.load(catalog, tables.typed(contract))
        found = trends(_results(catalog, contract.table))
        by_class, rejected, by_batch = _quarantine(catalog, contract)
        return Detail(
            _batches(table, by_batch, found) if table else (),
            found,
            _ranked(by_class),
            rejected,
            list(reversed(schemas.rows(catalog, contract.table))),
            list(reversed(upkeep.kept(catalog, names=[contract.table], states=("done", "failed"))[-EFFECTS:])),
            readiness.of_table(contract, known, catalog),
            REJECTED_COUNTED if by_class.total() >= REJECTED_COUNTED else None,
            yaml.safe_dump(
                contract.model_dump(mode="json", exclude_defaults=True), sort_keys=False, allow_unicode=True
            ),
        )


def _batches(table: Table, rejected: Mapping[tuple[str, int], int], trends: Sequence[Trend]) -> list[BatchLine]:
    judged: dict[tuple[str, int], int] = {}
    for result in (r for trend in trends for r in trend.results):
        key = (result.topic, result.batch_seq)
        judged[key] = judged.get(key, 0) + (result.success is False)
    found: list[BatchLine] = []
    for snapshot in cursor.ancestors(table.metadata):
        told = cursor.summary(snapshot)
        if TOPIC not in told:
            continue
        at = cursor.committed_at(snapshot)
        found += [
            BatchLine(
                b.topic, b.seq, dict(b.ranges), told.get(STEP, ""), snapshot.snapshot_id, at, told.get(RUN_ID),
                int(told.get("added-records", "0")), rejected.get((b.topic, b.seq), 0), judged.get((b.topic, b.seq)),
            )
            for b in reversed(batches_of(told))
        ]  # fmt: skip
        if len(found) >= BATCHES:
            break
    return found[:BATCHES]


def trends_of_all() -> dict[str, list[Trend]]:
    """Per table its expectations, as far as they were judged within a week.

    Raises:
        CatalogUnavailableError: the catalog did not answer.
    """
    with reach.catalog_errors():
        return _by_table(_results(catalogs.load()))


def trends_of_run(run_id: str) -> dict[str, list[Trend]]:
    """Per table its expectations, as a run judged them, however long ago; of a backfill its slices.

    Raises:
        CatalogUnavailableError: the catalog did not answer.
    """
    with reach.catalog_errors():
        return _by_table(quality.of_run(catalogs.load(), None, run_id))


def _by_table(found: Sequence[quality.Result]) -> dict[str, list[Trend]]:
    by_table: dict[str, list[quality.Result]] = {}
    for result in found:
        by_table.setdefault(result.table, []).append(result)
    return {table: trends(results) for table, results in by_table.items()}


def _results(catalog: Catalog, table: str | None = None) -> list[quality.Result]:
    return quality.since(catalog, datetime.now(UTC) - RESULTS_BACK, table, of_each=BATCHES)


def trends(results: Sequence[quality.Result]) -> list[Trend]:
    """Results by expectation."""
    by_name: dict[tuple[str, str, str], list[quality.Result]] = {}
    for r in results:
        by_name.setdefault((r.expectation, r.column, r.severity), []).append(r)
    return [Trend(*name, found[-BATCHES:]) for name, found in sorted(by_name.items())]


def wrong(catalog: Catalog, contract: Contract) -> list[tuple[str, str, int]]:
    """Records in quarantine by class of error and field, the most frequent first."""
    return _ranked(_quarantine(catalog, contract)[0])


def _ranked(counts: Counter[tuple[str, str]]) -> list[tuple[str, str, int]]:
    return [(kind, where, n) for (kind, where), n in counts.most_common()]


def _quarantine(
    catalog: Catalog, contract: Contract
) -> tuple[Counter[tuple[str, str]], list[dict[str, Any]], Counter[tuple[str, int]]]:
    held = tables.load(catalog, tables.quarantine(contract))
    if held is None or held.current_snapshot() is None:
        return Counter(), [], Counter()
    names = (*_WRONG, *_PLACE, "error", "quarantined_at")
    rows = held.scan(selected_fields=names, limit=REJECTED_COUNTED).to_arrow()
    counts = rows.group_by([*_WRONG, "_kafka_topic", "batch_seq"], use_threads=False).aggregate([([], "count_all")])
    by_class: Counter[tuple[str, str]] = Counter()
    by_batch: Counter[tuple[str, int]] = Counter()
    for row in counts.to_pylist():
        by_class[row["error_class"], row["field"] or ""] += row["count_all"]
        by_batch[row["_kafka_topic"], row["batch_seq"]] += row["count_all"]
    order = [("quarantined_at", "descending"), ("_kafka_partition", "ascending"), ("_kafka_offset", "ascending")]
    return by_class, rows.sort_by(order).slice(0, REJECTED_SHOWN).to_pylist(), by_batch
