"""What each expectation came to over the last batches, as a table's page and that of data quality show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sluice.contract import folder as contract_folder
from sluice.iceberg import availability
from sluice.iceberg import catalog as catalogs
from sluice.ledger import quality_table
from sluice.plan import resolve_topics

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sluice.contract.contract import Contract

BATCHES = 50
RESULTS_BACK = timedelta(days=7)


@dataclass(frozen=True)
class Trend:
    """One expectation over the last batches of one topic, the oldest first.

    Attributes:
        judged: whether the contract has it, with this severity and these parameters; else its results are history.
        parameters: as `quality.Result` has them; empty in results that are older than those.
    """

    expectation: str
    column: str
    severity: str
    results: Sequence[quality_table.Result]
    judged: bool = True
    parameters: str = ""
    topic: str = ""

    @property
    def name(self) -> tuple[str, ...]:
        """What tells the expectation from others of the table, whatever the topic."""
        return tuple(getattr(self, each) for each in quality_table.EXPECTATION)

    @property
    def last(self) -> quality_table.Result:
        """What it came to in the newest batch."""
        return self.results[-1]

    def newest(self, slices: bool) -> quality_table.Result | None:
        """What it came to last in a slice of a backfill, or in a batch."""
        return next((r for r in reversed(self.results) if (r.batch_seq < 0) == slices), None)

    def of_slices(self, wanted: bool) -> Trend:
        """What it came to in slices of backfills alone, or without them."""
        return replace(self, results=[r for r in self.results if (r.batch_seq < 0) == wanted])


def of_all() -> dict[str, list[Trend]]:
    """Per table its expectations, as far as they were judged within a week.

    Raises:
        CatalogUnavailableError: the catalog did not answer.
    """
    with availability.catalog_errors(), catalogs.load() as catalog:
        return _by_table(
            _results(catalog), resolve_topics.resolve(contract_folder.load(strict=False), catalog, None).tables
        )


def of_run(run_id: str) -> dict[str, list[Trend]]:
    """Per table its expectations, as a run judged them, however long ago; of a backfill its slices.

    Raises:
        CatalogUnavailableError: the catalog did not answer.
    """
    with availability.catalog_errors(), catalogs.load() as catalog:
        return _by_table(quality_table.of_run(catalog, None, run_id), {})


def _by_table(found: Sequence[quality_table.Result], known: Mapping[str, Contract]) -> dict[str, list[Trend]]:
    by_table: dict[str, list[quality_table.Result]] = {}
    for result in found:
        by_table.setdefault(result.table, []).append(result)
    return {table: of(found, known.get(table)) for table, found in by_table.items()}


def of_table(catalog: Catalog, table: str, contract: Contract) -> list[Trend]:
    """One table's expectations, as far as they were judged within a week."""
    return of(_results(catalog, table), contract)


def _results(catalog: Catalog, table: str | None = None) -> list[quality_table.Result]:
    return quality_table.since(catalog, datetime.now(UTC) - RESULTS_BACK, table and [table], of_each=BATCHES)


def of(judged: Sequence[quality_table.Result], contract: Contract | None = None) -> list[Trend]:
    """Results by expectation and topic, those last that are judged no longer.

    Args:
        contract: what it expects is judged now; without one, all is.
    """
    by_name: dict[tuple[str, str, str, str, str], list[quality_table.Result]] = {}
    for r in judged:
        by_name.setdefault((*r.name, r.topic), []).append(r)
    now = by_name.keys() if contract is None else {
        (*each.name, topic) for each in contract.expectations for topic in contract.topics
    }  # fmt: skip
    found = [
        Trend(*name[:3], each[-BATCHES:], name in now, parameters=name[3], topic=name[4])
        for name, each in sorted(by_name.items())
    ]
    return sorted(found, key=lambda trend: not trend.judged)
