"""TODO docstring of sluice.ingest.quarantine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.batch import Batch, joined
from sluice.contract.contract import Contract
from sluice.contract.values import KAFKA_COLUMNS
from sluice.errors import RejectedDifferError
from sluice.evolve.rejected_change import Refused
from sluice.formats.decode import failed_field
from sluice.formats.internal_columns import DETAIL, ERROR, FIELD, STAGED
from sluice.iceberg import range_scan, table_names, tables
from sluice.iceberg.filters import And, BooleanExpression, at_most, equal, one_of
from sluice.ingest import decoded_rows, merge
from sluice.ingest.decoded_rows import SEQ
from sluice.ingest.landing import Context
from sluice.ledger import slices
from sluice.ledger.offsets_table import Ledger

RAW = ("key", "value", "headers")


def quarantine(
    context: Context,
    contract: Contract,
    batches: Sequence[Batch],
    decode: Callable[[], DataFrame],
    rejected: int,
    refused: Sequence[Refused] = (),
) -> None:
    """Overwrite the batches' own rows of the quarantine: run twice, it leaves one copy; repaired ones leave none.

    After a rollback a batch is published again whose records a slice of a backfill has set apart meanwhile. What
    becomes of them is decided anew, so the slice's rows go.

    Raises:
        RejectedDifferError: it does not hold as many of them as were rejected while they were merged.
    """
    whole = joined(batches)
    table = tables.load(context.catalog, table_names.quarantine(contract))
    mine = And(one_of("batch_seq", [b.seq for b in batches]), equal("_kafka_topic", whole.topic))
    name = table_names.spark_name(context.catalog_name, table_names.quarantine(contract))
    if rejected or (table and tables.files(table, mine)):
        there = tables.ensure_quarantine(context.catalog, contract)
        rows = bad(decode(), contract, refused)
        rows.writeTo(name).overwrite(decoded_rows.of_batches(batches) & (F.col("_kafka_topic") == whole.topic))
        _all_there(there.refresh(), mine, contract, batches, rejected)
    if table and (numbers := _slices_before(context, table, whole)):
        merge.release(decode().select(*KAFKA_COLUMNS[:3]), name, whole, numbers)


def _all_there(
    quarantine: Table, mine: BooleanExpression, contract: Contract, batches: Sequence[Batch], rejected: int
) -> None:
    """Decoded once more, records may have been judged otherwise: those would be in no table. Partitions are counted."""
    held = quarantine.scan(row_filter=mine, selected_fields=("batch_seq",)).count()
    if held != rejected:
        raise RejectedDifferError(
            f"{rejected} records were rejected, and {held} came into quarantine.",
            table=contract.table,
            topic=batches[-1].topic,
            batches=[b.seq for b in batches],
        )


def _slices_before(context: Context, quarantine: Table, whole: Batch) -> list[int]:
    """The slices with rows among the batch's offsets, by number; not those of a topic that had the name before."""
    of_slices = at_most("batch_seq", -1)
    if not (there := range_scan.files(quarantine, whole, of_slices)):
        return []
    found = range_scan.rows(quarantine, whole, ("batch_seq",), also=of_slices, within=there)["batch_seq"].unique()
    told = slices.planned(slices.rows(Ledger(context.catalog), whole.topic))
    return [n for n in found.to_pylist() if n in told and told[n].topic_id == whole.topic_id]


def bad(decoded: DataFrame, contract: Contract, refused: Sequence[Refused] = ()) -> DataFrame:
    """The rejected records as rows of the quarantine.

    Args:
        refused: changes of the contract that were rejected: the errors of their fields say so.
    """
    raw = [F.col(STAGED[name]).alias(name) for name in RAW]
    if contract.drops_raw:
        raw = [F.lit(None).cast(decoded.schema[STAGED[name]].dataType).alias(name) for name in RAW]
        # Empty, not null: replayed, a record whose value is gone must not pass for one that deletes.
        raw[1] = F.when(F.col(STAGED["value"]).isNotNull(), F.lit(b"")).alias("value")
    about = _about(contract)
    why = [F.when(about.rlike(each.fields), F.lit(each.text)) for each in refused]
    error = F.nullif(F.concat_ws("; ", F.col(DETAIL), *why), F.lit("")) if why else F.col(DETAIL)
    return decoded_rows.sifted(decoded, F.col(ERROR).isNotNull()).select(
        F.col(SEQ).alias("batch_seq"),
        *KAFKA_COLUMNS,
        *raw,
        F.col(ERROR).alias("error_class"),
        error.alias("error"),
        about.alias("field"),
        F.current_timestamp().alias("quarantined_at"),
    )


def has_raw() -> Column:
    """Whether a row of the quarantine has its raw record: see `bad`."""
    return F.expr("key IS NOT NULL OR headers IS NOT NULL OR length(value) > 0")


def _about(contract: Contract) -> Column:
    """The field that the error of a record is about."""
    return F.when(F.col(ERROR) == "malformed", failed_field(contract)).otherwise(F.col(FIELD))


def bad_in(decoded: DataFrame, contract: Contract, fields: str) -> dict[int, int]:
    """How many records were rejected for these fields (a regular expression), by batch number."""
    rows = (
        decoded_rows.sifted(decoded, F.col(ERROR).isNotNull())
        .where(_about(contract).rlike(fields))
        .groupBy(SEQ)
        .count()
    )
    return {row[SEQ]: row["count"] for row in rows.collect()}
