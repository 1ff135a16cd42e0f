"""TODO docstring of sluice.ingest.merge_in."""

from __future__ import annotations

from functools import partial

from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sluice.batch import Batch
from sluice.contract.contract import Contract
from sluice.errors import OrderUnknownError
from sluice.formats.internal_columns import DELETE, ERROR, OP
from sluice.iceberg import deletes_table, own_table, schema, snapshots, table_names
from sluice.ingest import decoded_rows, merge, merge_history
from sluice.ingest.landing import Attempt, Context


def merge_in(
    context: Context,
    attempt: Attempt,
    contract: Contract,
    batch: Batch,
    decoded: DataFrame,
    watched: DataFrame,
    *,
    fresh: bool,
    replay: bool,
) -> None:
    """Bring the batch's good rows onto the branch.

    Args:
        decoded: the batch, to take key bounds from; in the session whose commits carry the offsets, as all here.
        watched: the same rows, counted as they pass.
        fresh: the table can't hold any of the batch's offsets; the fence makes sure that it stays so.
        replay: the batch is applied once more, after later ones.

    Raises:
        OrderUnknownError: a key was met in two partitions, and the contract does not say which comes later.
    """
    session, target = decoded.sparkSession, attempt.spark_branch
    if not batch.span:
        # Nothing to merge, but the offsets must be carried on.
        session.table(target).limit(0).writeTo(target).append()
        return
    rows = watched.where(decoded_rows.is_good()).select(*merge.columns(contract), OP)
    if not contract.keyed:
        rows = rows.drop(OP)
        if fresh:
            rows.writeTo(target).append()
        else:
            merge.append(rows, target, contract, batch)
        return
    others, memory = [target], _memory(context, contract, attempt.base)
    if memory:
        others.append(memory)
    bounds = merge.key_bounds(decoded, contract, batch.span) if snapshots.rows(attempt.base) or memory else []
    if contract.upsert:
        rows = merge.latest(rows, contract)
        if memory:
            rows = merge.without_deleted(rows, contract, session.table(memory), bounds, live=not replay)
        write = partial(merge.upsert, rows, target, contract, bounds)
    else:
        there = merge_history.of_keys(
            session, target, contract, decoded_rows.sifted(decoded, decoded_rows.is_good()), bounds
        )
        write = partial(merge_history.merge, rows.drop(OP), there, target, contract, bounds, fresh=fresh)
    try:
        write()
    except Exception as error:
        if merge.ORDER_RAISED not in str(error):
            raise
        raise OrderUnknownError(
            "A key was met in two partitions.",
            table=contract.table,
            topic=batch.topic,
            batch=batch.seq,
            places=merge.places_apart(decoded_rows.sifted(decoded, decoded_rows.is_good()), others, contract),
        ) from error


def _memory(context: Context, contract: Contract, base: Table) -> str | None:
    """The name by which Spark reads the table's memory of deletes; None where nothing was deleted yet."""
    memory = deletes_table.known_deletes(context.catalog, contract, base) if contract.upsert else None
    if memory is None:
        return None
    own_table.widened(memory, schema.deletes_schema(contract))  # the contract's order may be newer than the memory
    return table_names.spark_name(context.catalog_name, table_names.deletes(contract))


def remember_deletes(context: Context, contract: Contract, base: Table, decoded: DataFrame) -> None:
    """Keep what a replay of older records needs to know: which keys were deleted after them."""
    deletes_table.ensure_deletes(context.catalog, contract, base)
    rows = decoded_rows.sifted(decoded, (F.col(OP) == DELETE) & F.col(ERROR).isNull()).select(
        *merge.columns(contract), OP
    )
    deleted = merge.latest(rows, contract)
    merge.remember_deletes(
        deleted, table_names.spark_name(context.catalog_name, table_names.deletes(contract)), contract
    )
