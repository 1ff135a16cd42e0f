"""Merge a batch's good rows into a branch, by the contract's mode: append, upsert or history.

In: decoded records and the branch. Out: one commit on the branch. Deletes are recorded in the table's deletes table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.update import SetPropertiesUpdate
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.batch import RUN_ID, Batch, deletes_properties
from sluice.contract.contract import Contract
from sluice.errors import ConfigError, OrderUnknownError
from sluice.formats import masks
from sluice.formats.internal_columns import DELETE, ERROR, OP
from sluice.iceberg import deletes_table, own_table, refs, schema, snapshots, table_names
from sluice.ingest import check, merge, merge_history
from sluice.ingest.branch_write import BranchWrite

MASK_KEY = "sluice.mask-key"
"""Property of a typed table: the fingerprint of the key that its masked values are hashed with."""


@dataclass(frozen=True)
class MergeInput:
    """The records of a batch for one table.

    Attributes:
        batch: the offset ranges of the records.
        decoded: the records, to find key bounds in, in the session whose commits carry the offsets.
        observed: the same records with the columns of the typed table, counted as they pass.
        fresh: the table can't hold any of the batch's offsets.
        replay: later batches may have been applied before.
    """

    contract: Contract
    batch: Batch
    decoded: DataFrame
    observed: DataFrame
    fresh: bool = False
    replay: bool = False

    def good(self) -> DataFrame:
        """The decoded records that the typed table takes, deletes among them."""
        return check.filter_decoded(self.decoded, check.is_good())


def merge_batch(write: BranchWrite, given: MergeInput) -> None:
    """Commit the good records to the branch.

    Raises:
        ConfigError: the table's values are hashed with another masking key.
        OrderUnknownError: a key occurs in two partitions, and the contract does not say which version is newer.
    """
    contract, batch, target = given.contract, given.batch, write.spark_branch
    check_mask_key(write.context.catalog, write.base, contract)
    if not batch.span:  # an empty commit carries the offsets on
        given.decoded.sparkSession.table(target).limit(0).writeTo(target).append()
        return
    rows = given.observed.where(check.is_good()).select(*merge.typed_columns(contract), OP)
    if contract.keyed:
        _merge_by_key(write, given, rows)
    elif given.fresh:
        rows.drop(OP).writeTo(target).append()
    else:
        merge.insert_missing(rows.drop(OP), target, contract, batch)


def check_mask_key(catalog: Catalog, table: Table, contract: Contract) -> None:
    """Compare the driver's masking key with the one of the table's rows; the first one is recorded.

    With another key the same value would get another hash in silence: an upsert table would double its rows, and
    deletes would miss them.

    Args:
        catalog: where the table is.
        table: the typed table, before rows of the contract are written to it.
        contract: the one that they are read by.

    Raises:
        ConfigError: the key is another one, missing, or too short.
    """
    if not masks.needs_key(contract):
        return
    mine = masks.key_fingerprint(contract)
    if MASK_KEY not in table.properties:  # another writer may have recorded its own since
        table = catalog.load_table(table.name())
    known = table.properties.get(MASK_KEY)
    if known is None:
        refs.commit(catalog, table, (), (SetPropertiesUpdate(updates={MASK_KEY: mine}),))
    elif known != mine:
        raise ConfigError(
            f"The masking key {masks.KEY_VARIABLE} is not the one that the table's values are hashed with: the same "
            "value would get another hash.",
            table=contract.table,
            next_step=f"Set {masks.KEY_VARIABLE} to the earlier secret where the Spark driver runs. If the hashes are "
            "not compared with earlier ones (the table has no such key, and is not joined by them): ALTER TABLE "
            f"{contract.table} UNSET TBLPROPERTIES ('{MASK_KEY}').",
        )


def _merge_by_key(write: BranchWrite, given: MergeInput, rows: DataFrame) -> None:
    contract, batch, target = given.contract, given.batch, write.spark_branch
    session = given.decoded.sparkSession
    deletes = _deletes_name(write, contract)
    bounds = (
        merge.find_key_bounds(given.decoded, contract, batch.span)
        if snapshots.count_rows(write.base) or deletes
        else []
    )
    if contract.upsert:
        rows = merge.keep_latest(rows, contract)
        if deletes:
            rows = merge.drop_deleted(rows, contract, session.table(deletes), bounds, live=not given.replay)
        commit = partial(merge.upsert, rows, target, contract, bounds)
    else:
        existing = merge_history.versions_of_keys(session, target, contract, given.good(), bounds)
        if not given.fresh:
            rows = merge_history.drop_existing(rows, existing)
        commit = partial(merge_history.merge_versions, rows.drop(OP), existing, target, contract, bounds)
    try:
        commit()
    except Exception as error:
        if merge.ORDER_RAISED not in str(error):
            raise
        raise OrderUnknownError(
            "A key was met in two partitions.",
            table=contract.table,
            topic=batch.topic,
            batch=batch.seq,
            places=merge.find_conflicts(given.good(), [target, *([deletes] if deletes else [])], contract),
        ) from error


def _deletes_name(write: BranchWrite, contract: Contract) -> str | None:
    """Spark's name of the deletes table; None if nothing was deleted yet."""
    catalog = write.context.catalog
    table = deletes_table.load_deletes_table(catalog, contract, write.base) if contract.upsert else None
    if table is None:
        return None
    # The contract's order may have got columns since the deletes table was created.
    own_table.add_missing_columns(table, schema.deletes_schema(contract))
    return table_names.spark_name(write.context.catalog_name, table_names.deletes(contract))


def record_deletes(
    write: BranchWrite, contract: Contract, batches: Sequence[Batch], decode: Callable[[SparkSession], DataFrame]
) -> None:
    """Record which keys were deleted, so that a later replay of older records does not bring them back.

    The commit names the batches and the head that the write began from: by these a rollback finds what it must undo.

    Args:
        batches: those of the publish, or the slice.
        decode: reads their records in a session, which must not carry the publish commit's properties.
    """
    context = write.context
    deletes_table.ensure_deletes_table(context.catalog, contract, write.base)
    name = table_names.spark_name(context.catalog_name, table_names.deletes(contract))
    with context.session({RUN_ID: context.run_id, **deletes_properties(batches, write.head)}) as session:
        deleted = check.filter_decoded(decode(session), (F.col(OP) == DELETE) & F.col(ERROR).isNull())
        latest = merge.keep_latest(deleted.select(*merge.typed_columns(contract), OP), contract)
        merge.upsert_deletes(latest, name, contract)
