"""A table's backlog is right when another engine has written to the table or to staging."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from sluice.batch import Batch, PublishedOffsets
from sluice.errors import BatchOrderError, LedgerError, SchemaChangeError, TopicRecreatedError
from sluice.iceberg import tables
from sluice.iceberg.filters import above
from sluice.ingest import publish, stage
from sluice.ledger import backlog
from sluice.offsets import OffsetRange
from tests.unit.maintain.test_assess import append, batch, filled, promise

pytestmark = pytest.mark.unit


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "warehouse").mkdir()
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")


def test_a_batch_of_a_topic_that_was_made_anew_is_not_taken_for_the_old_ones(tmp_path: Path) -> None:
    done = PublishedOffsets(1, "id", {0: 1})
    anew = replace(batch(3), topic_id="another")
    assert backlog.find_pending_batches("shop.orders", {2: batch(2)}, batch(2), done) == (batch(2),)
    with pytest.raises(TopicRecreatedError, match=r"not the one that the table was filled from.*batch 3, was id"):
        backlog.find_pending_batches("shop.orders", {2: batch(2), 3: anew}, anew, done)
    # Below the table's offsets no check of continuity would miss anything.
    contract = promise(tmp_path).table("shop.orders")
    with pytest.raises(TopicRecreatedError):
        publish._check_next(contract, replace(batch(1), seq=2, topic_id="another"), done)


@pytest.mark.parametrize(
    ("ranges", "ends", "at"),
    [
        # Partition 0 is not read by the batch, and what came before it in 0 is not published.
        ({1: (1, 4)}, {0: 3, 1: 4}, {0: 1, 1: 1}),
        # The same of a partition that was added since, read by the batch or not.
        ({1: (1, 4)}, {0: 1, 1: 4, 2: 5}, {0: 1, 1: 1}),
        ({2: (5, 9)}, {0: 1, 1: 1, 2: 9}, {0: 1, 1: 1}),
    ],
)
def test_a_batch_follows_on_in_every_partition(
    tmp_path: Path, ranges: dict[int, tuple[int, int]], ends: dict[int, int], at: dict[int, int]
) -> None:
    contract = promise(tmp_path).table("shop.orders")
    later = Batch("orders", "id", 3, {p: OffsetRange(*r) for p, r in ranges.items()}, ends)
    behind, reached = PublishedOffsets(1, "id", at), PublishedOffsets(2, "id", later.start_offsets)
    publish._check_next(contract, later, reached)
    stage._check_next(later, replace(later, seq=2, ranges={}, next_offsets=later.start_offsets))
    assert backlog.find_pending_batches("shop.orders", {3: later}, later, reached) == (later,)
    with pytest.raises(BatchOrderError, match=r"not published yet.*No action if the table was rolled back"):
        publish._check_next(contract, later, behind)
    with pytest.raises(BatchOrderError, match="does not begin at the topic's cursor"):
        stage._check_next(later, replace(later, seq=2, ranges={}, next_offsets=at))
    with pytest.raises(LedgerError, match="would be skipped"):
        backlog.find_pending_batches("shop.orders", {3: later}, later, behind)


def test_a_number_that_was_given_out_twice_does_not_count_as_published() -> None:
    staged = Batch("orders", "id", 6, {0: OffsetRange(60, 400)}, {0: 400, 1: 50})
    with pytest.raises(LedgerError, match=r"holds batch 7, .*\{0: \(100, 400\)\}.*Roll the table back"):
        backlog.find_pending_batches("shop.orders", {6: staged}, staged, PublishedOffsets(7, "id", {0: 100, 1: 50}))
    assert (
        backlog.find_pending_batches("shop.orders", {6: staged}, staged, PublishedOffsets(7, "id", {0: 400, 1: 90}))
        == ()
    )


def test_how_much_staging_holds_of_a_batch_is_told_by_its_partition_alone(tmp_path: Path, catalog: Catalog) -> None:
    _, staging = filled(catalog, promise(tmp_path), 1)
    with staging.update_spec() as spec:
        spec.add_identity("_kafka_partition")
        spec.remove_field("batch_seq")
    append(staging, 2, {})
    with pytest.raises(SchemaChangeError, match=r"sluice_staging\.orders is not partitioned by batch_seq any more"):
        backlog.count_staged_rows(staging, [batch(1), batch(2)], None)
    with staging.update_spec() as spec:
        spec.add_identity("batch_seq")
    # As the error says, its files are then written anew.
    rows = staging.scan().to_arrow()
    staging.overwrite(rows)
    assert backlog.count_rows_by_batch(staging, above("batch_seq", 0)) == {1: 1, 2: 1}


def test_what_a_table_can_have_none_of_goes_by_its_cursor_and_by_who_wrote_to_it(
    tmp_path: Path, catalog: Catalog
) -> None:
    promises = promise(tmp_path)
    typed = tables.ensure_typed(catalog, promises.table("shop.orders"))
    typed.append(typed.schema().as_arrow().empty_table())
    assert publish._is_fresh(typed, batch(1), None)
    typed, _ = filled(catalog, promises, 2)
    at = PublishedOffsets(2, "id", {0: 2})
    assert not publish._is_fresh(typed, batch(1), None)
    assert publish._is_fresh(typed, batch(3), at)
    assert not publish._is_fresh(typed, batch(2), at)
    # Of what others bring nobody knows which offsets it has.
    append(typed, 3, {})
    assert not publish._is_fresh(typed, batch(3), at)
