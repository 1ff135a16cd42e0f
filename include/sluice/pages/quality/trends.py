"""The results of each expectation over the last batches, for the table page and the Data quality page."""

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

MAX_BATCHES = 50
MAX_RESULT_AGE = timedelta(days=7)


@dataclass(frozen=True)
class Trend:
    """One expectation over the last batches of one topic, oldest first.

    Attributes:
        judged: whether the contract still has it with this severity and these parameters.
        parameters: as in `ExpectationResult`; empty in results written before parameters were recorded.
    """

    expectation: str
    column: str
    severity: str
    results: Sequence[quality_table.ExpectationResult]
    judged: bool = True
    parameters: str = ""
    topic: str = ""

    @property
    def name(self) -> tuple[str, ...]:
        """Identifies the expectation within its table, over all topics."""
        return tuple(getattr(self, each) for each in quality_table.EXPECTATION_KEY)

    @property
    def last(self) -> quality_table.ExpectationResult:
        """The result in the newest batch."""
        return self.results[-1]

    def newest(self, slices: bool) -> quality_table.ExpectationResult | None:
        """The newest result of a backfill slice, or of a batch."""
        return next((r for r in reversed(self.results) if (r.batch_seq < 0) == slices), None)

    def filter_slices(self, slices: bool) -> Trend:
        """The results of backfill slices only, or of batches only."""
        return replace(self, results=[r for r in self.results if (r.batch_seq < 0) == slices])


def read_all_trends() -> dict[str, list[Trend]]:
    """Read the expectations evaluated within a week, by table.

    Raises:
        CatalogUnavailableError: The catalog did not answer.
    """
    with availability.translate_catalog_errors(), catalogs.load() as catalog:
        return _group_by_table(
            _read_results(catalog),
            resolve_topics.resolve(contract_folder.load_contracts(strict=False), catalog, None).tables,
        )


def read_run_trends(run_id: str) -> dict[str, list[Trend]]:
    """Read the expectations that a run evaluated, by table; of a backfill, those of its slices.

    Raises:
        CatalogUnavailableError: The catalog did not answer.
    """
    with availability.translate_catalog_errors(), catalogs.load() as catalog:
        return _group_by_table(quality_table.read_run_results(catalog, None, run_id), {})


def _group_by_table(
    found: Sequence[quality_table.ExpectationResult], known: Mapping[str, Contract]
) -> dict[str, list[Trend]]:
    by_table: dict[str, list[quality_table.ExpectationResult]] = {}
    for result in found:
        by_table.setdefault(result.table, []).append(result)
    return {table: group_results(found, known.get(table)) for table, found in by_table.items()}


def read_table_trends(catalog: Catalog, table: str, contract: Contract) -> list[Trend]:
    """Read one table's expectations that were evaluated within a week."""
    return group_results(_read_results(catalog, table), contract)


def _read_results(catalog: Catalog, table: str | None = None) -> list[quality_table.ExpectationResult]:
    return quality_table.read_results_since(
        catalog, datetime.now(UTC) - MAX_RESULT_AGE, table and [table], of_each=MAX_BATCHES
    )


def group_results(results: Sequence[quality_table.ExpectationResult], contract: Contract | None = None) -> list[Trend]:
    """Group results by expectation and topic; removed expectations come last.

    Args:
        results: oldest first.
        contract: its expectations are current; without a contract all are.
    """
    by_name: dict[tuple[str, str, str, str, str], list[quality_table.ExpectationResult]] = {}
    for r in results:
        by_name.setdefault((*r.name, r.topic), []).append(r)
    current = by_name.keys() if contract is None else {
        (*each.name, topic) for each in contract.expectations for topic in contract.topics
    }  # fmt: skip
    found = [
        Trend(*name[:3], each[-MAX_BATCHES:], name in current, parameters=name[3], topic=name[4])
        for name, each in sorted(by_name.items())
    ]
    return sorted(found, key=lambda trend: not trend.judged)
