"""Check: good rows apart from bad, counted in the same pass that publishes them; quarantine; the verdict.

The counts are observed while the MERGE into the branch runs, so that a batch is decoded once. The verdict falls before
main moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from sluice import merge, slices, spans, tables
from sluice.commit import Context
from sluice.contract import KAFKA_COLUMNS, Contract
from sluice.decode import DELETE, DETAIL, ERROR, FIELD, IGNORE, OP, UPSERT, failed_field
from sluice.errors import BlockedError, RejectedDifferError
from sluice.evolve_refused import Refused
from sluice.fields import STAGED
from sluice.filters import And, BooleanExpression, at_most, equal, one_of
from sluice.ledger import Ledger
from sluice.model import Batch, joined

RAW = ("key", "value", "headers")
SEQ = STAGED["batch_seq"]


@dataclass(frozen=True)
class Counts:
    """What batches held for one table: records, those rejected, those that delete, those passed over."""

    records: int
    rejected: int
    deleted: int = 0
    ignored: int = 0


def of_batches(batches: Sequence[Batch]) -> Column:
    """The condition that a record of the topic belongs to these batches."""
    return F.col("batch_seq").isin([b.seq for b in batches])


def _measures() -> list[Column]:
    bad = F.col(ERROR).isNotNull()
    conditions = (F.lit(True), bad, (F.col(OP) == DELETE) & ~bad, (F.col(OP) == IGNORE) & ~bad)
    return [F.count_if(c).alias(name) for name, c in zip(Counts.__match_args__, conditions, strict=True)]


def sifted(decoded: DataFrame, condition: Column) -> DataFrame:
    """The decoded records that a condition takes, which is about what was found of them.

    Spark takes a plain filter below the reading, with a copy of that for each time it names the outcome: to find a
    batch's rejected records would cost up to four times as much as to publish it (Spark 4.2 is to know better:
    SPARK-47672). It takes none below an observation.
    """
    return decoded.observe(f"sluice_{uuid4().hex}", F.count(F.lit(1))).where(condition)


def is_good() -> Column:
    """Whether a decoded record is one that the typed table takes, deletes among them."""
    return F.col(ERROR).isNull() & F.col(OP).isin(UPSERT, DELETE)


def observed(decoded: DataFrame, more: Sequence[Column] = ()) -> tuple[DataFrame, Observation]:
    """The frame, with counts taken as it passes.

    Args:
        more: further aggregates.
    """
    observation = Observation()
    return decoded.observe(observation, *_measures(), *more), observation


def seen(observation: Observation, expected: int) -> Mapping[str, Any] | None:
    """What was observed; None where the plan left nothing to observe, or tasks ran twice.

    Args:
        expected: how many records were staged. Of none there may be no observation, and waiting for it has no end.
    """
    try:
        row = observation.get if expected else None
    except Exception:  # noqa: BLE001 - an empty relation was folded away together with the observation
        return None
    return row if row and row["records"] == expected else None


def counts(row: Mapping[str, Any] | None, decoded: DataFrame, expected: int) -> Counts:
    """The counts that were `seen`; else they are counted anew."""
    if expected == 0:
        return Counts(0, 0)
    return counted(decoded) if row is None else _counts(row)


def counted(decoded: DataFrame) -> Counts:
    """The counts, in a pass of their own."""
    return _counts(decoded.agg(*_measures()).collect()[0].asDict())


def _counts(row: Mapping[str, int]) -> Counts:
    return Counts(**{name: int(row[name]) for name in Counts.__match_args__})


def by_batch(
    decoded: DataFrame, batches: Sequence[Batch], total: Counts, staged: Mapping[int, int]
) -> dict[int, Counts]:
    """What each of several batches held, without the deletes; the records are decoded once more only to find bad ones.

    Args:
        staged: records by batch number.
    """
    if len(batches) == 1:
        return {batches[0].seq: total}
    bad: dict[int, int] = {}
    if total.rejected:
        rows = sifted(decoded, F.col(ERROR).isNotNull()).groupBy(SEQ).count().collect()
        bad = {row[SEQ]: row["count"] for row in rows}
    return {b.seq: Counts(staged[b.seq], bad.get(b.seq, 0)) for b in batches}


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
    table = tables.load(context.catalog, tables.quarantine(contract))
    mine = And(one_of("batch_seq", [b.seq for b in batches]), equal("_kafka_topic", whole.topic))
    name = tables.spark_name(context.catalog_name, tables.quarantine(contract))
    if rejected or (table and tables.files(table, mine)):
        there = tables.ensure_quarantine(context.catalog, contract)
        rows = bad(decode(), contract, refused)
        rows.writeTo(name).overwrite(of_batches(batches) & (F.col("_kafka_topic") == whole.topic))
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
    if not (there := spans.files(quarantine, whole, of_slices)):
        return []
    found = spans.rows(quarantine, whole, ("batch_seq",), also=of_slices, within=there)["batch_seq"].unique()
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
    return sifted(decoded, F.col(ERROR).isNotNull()).select(
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
    rows = sifted(decoded, F.col(ERROR).isNotNull()).where(_about(contract).rlike(fields)).groupBy(SEQ).count()
    return {row[SEQ]: row["count"] for row in rows.collect()}


def verdict(
    contract: Contract,
    batches: Sequence[Batch],
    found: Mapping[int, Counts],
    excused: Callable[[], Mapping[int, int]] = dict,
) -> None:
    """Refuse a batch with more bad records than the contract tolerates.

    Args:
        excused: how many of the bad ones, by batch number, wait for a person's answer, or have got it; asked where a
            batch would be refused.

    Raises:
        BlockedError: with the counts; the batch stays in staging.
    """
    errors = contract.errors
    share, count = (0.0, 0) if errors.tolerance == "none" else (errors.max_ratio, errors.max_count)

    def too_many(number: int, others: Mapping[int, int]) -> bool:
        known = others.get(number, 0)
        return found[number].rejected - known > max(share * (found[number].records - known), count)

    others: Mapping[int, int] = {}
    if errors.tolerance != "none" and any(too_many(batch.seq, others) for batch in batches):
        others = excused()
    for batch in batches:
        here = found[batch.seq]
        if too_many(batch.seq, others):
            tolerated = f"{share:.2%}{f' or {count}' if count else ''}"
            raise BlockedError(
                f"{here.rejected} of {here.records} records don't fit the contract, which tolerates {tolerated}.",
                table=contract.table,
                topic=batch.topic,
                batch=batch.seq,
                quarantine=".".join(tables.quarantine(contract)),
            )
