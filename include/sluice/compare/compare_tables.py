"""Compares two tables in Spark: first hashes per bucket of keys, then the rows of those buckets that differ.

In: a request. Out: a `Comparison`. Both tables are read at one snapshot each, and only counts and a few examples are
collected, however much differs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from sluice.compare import columns
from sluice.compare.columns import ColumnPair, Pairing
from sluice.compare.request import CompareRequest
from sluice.compare.result import ComparedColumn, Comparison, Keys, Side
from sluice.compare.sides import OpenTable, open_other, open_own
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.errors import RefusedError, printable
from sluice.iceberg import table_names, tables
from sluice.iceberg.active_contract import ContractVersion, add_masks
from sluice.iceberg.sql_literals import sql_literal
from sluice.ingest.context import Context

BUCKETS = 8192
MAX_KEYS, MAX_VALUES, MAX_TEXT = 10, 5, 120
"""Examples per kind of difference, examples per column, and characters of a value."""
MAX_COLUMNS_WITH_EXAMPLES = 20
MASKED = "[masked]"
_OURS, _THEIRS = 1, -1


def compare(context: Context, contracts: Contracts, request: CompareRequest) -> Comparison:
    """Compare a table of Sluice with another table or view.

    Raises:
        RefusedError: the request does not fit the tables.
        ConfigError: no contract defines the table.
    """
    began = time.monotonic()
    contract = _active_contract(context, contracts.table(request.table))
    with context.session({}) as spark:  # settings for another catalog stay in it
        own = open_own(spark, context.catalog_name, request)
        other = open_other(spark, context.catalog_name, request)
    pairing = columns.pair_columns(request, contract, own.frame.schema, other.frame.schema)
    with _select(own, request, pairing, _OURS) as ours, _select(other, request, pairing, _THEIRS) as theirs:
        both = ours.unionAll(theirs)
        buckets = _compare_hashes(both)
        different = [row["bucket"] for row in buckets if row["ours"] != row["theirs"] or row["high"] or row["low"]]
        found = _compare_rows(both, different, pairing, len(buckets)) if different else _Differences(pairing)
        return Comparison(
            ours=Side(name=own.name, snapshot_id=own.snapshot_id, rows=_total(buckets, "ours"), commits=own.commits),
            theirs=Side(
                name=other.name, snapshot_id=other.snapshot_id, rows=_total(buckets, "theirs"), commits=other.commits
            ),
            run_id=context.run_id,
            at=datetime.now(UTC),
            key=tuple(pair.name for pair in pairing.key),
            window=request.window,
            columns=found.columns,
            only_ours=found.only_ours,
            only_theirs=found.only_theirs,
            duplicates=found.duplicates,
            different=found.different,
            not_compared=pairing.not_compared,
            notes=pairing.notes,
            buckets=(len(different), len(buckets)),
            seconds=time.monotonic() - began,
        )


def _active_contract(context: Context, file: Contract) -> Contract:
    """The contract that the table has, and the masks that the file adds."""
    table = tables.load(context.catalog, table_names.typed(file))
    if table is None:
        raise RefusedError(f"{file.table} does not exist yet.", next_step="Let its group run first.")
    version = ContractVersion.from_table(table)
    return add_masks(version.to_contract(file), file) if version else file


class _Differences:
    """What the second step found; nothing, to begin with."""

    def __init__(self, pairing: Pairing) -> None:
        self.only_ours = self.only_theirs = self.duplicates = Keys()
        self.different = 0
        self.columns = tuple(
            ComparedColumn(name=pair.name, tolerance=None if pair.tolerance is None else str(pair.tolerance))
            for pair in pairing.values
        )


@contextmanager
def _select(table: OpenTable, request: CompareRequest, pairing: Pairing, sign: int) -> Iterator[DataFrame]:
    """The rows to compare: `k0`, … the key, `v0`, … the values, `hash`, `bucket`, and the sign of the table."""

    def read(pair: ColumnPair) -> Column:
        name, source = (pair.name, pair.ours) if sign == _OURS else (pair.other, pair.theirs)
        return columns.read_column(name, source, pair.kind)

    chosen = table.frame.filter(_window(table, request))
    keys = [read(pair).alias(f"k{n}") for n, pair in enumerate(pairing.key)]
    values = [read(pair).alias(f"v{n}") for n, pair in enumerate(pairing.values)]
    rows = chosen.select(*keys, *values)
    if table.snapshot_id is None:
        rows = rows.persist(StorageLevel.DISK_ONLY)  # read twice, what changes meanwhile would be a difference
    key = [each for n, p in enumerate(pairing.key) for each in columns.hash_inputs(F.col(f"k{n}"), p)]
    value = [each for n, p in enumerate(pairing.values) for each in columns.hash_inputs(F.col(f"v{n}"), p)]
    yield rows.select(
        "*",
        F.xxhash64(*key, *value).alias("hash"),
        F.pmod(F.xxhash64(*key), F.lit(BUCKETS)).alias("bucket"),
        F.lit(sign).alias("sign"),
    )
    rows.unpersist()


def _window(table: OpenTable, request: CompareRequest) -> Column:
    """Which rows are compared."""
    conditions = [F.lit(True)]
    if request.since or request.until:
        when = table.column(request.time_column)
        if not table.has_time(request.time_column):
            raise RefusedError(f"Column {request.time_column!r} of {table.name} is no timestamp.")
        conditions += [when >= F.expr(sql_literal(request.since))] if request.since else []
        conditions += [when < F.expr(sql_literal(request.until))] if request.until else []
    if request.offsets:
        partition, offset = table.column("_kafka_partition"), table.column("_kafka_offset")
        ranges = [
            (partition == F.lit(p)) & (offset >= F.lit(start)) & (offset < F.lit(end))
            for p, (start, end) in request.offsets.items()
        ]
        any_range = ranges[0]
        for each in ranges[1:]:
            any_range = any_range | each
        conditions.append(any_range)
    wanted = conditions[0]
    for each in conditions[1:]:
        wanted = wanted & each
    return wanted


def _compare_hashes(both: DataFrame) -> Sequence[Row]:
    """Count the rows of each bucket, and add up their hashes, those of the other table with a minus.

    The sum is 0 if both tables have the same rows in any order. Its halves have sums of their own: none can overflow.
    """
    sign, hashed = F.col("sign"), F.col("hash")
    return (
        both.select("bucket", "sign", "hash")
        .groupBy("bucket")
        .agg(
            F.count_if(sign == _OURS).alias("ours"),
            F.count_if(sign == _THEIRS).alias("theirs"),
            F.sum(sign * F.shiftright(hashed, 32)).alias("high"),
            F.sum(sign * hashed.bitwiseAND(F.lit(0xFFFFFFFF))).alias("low"),
        )
        .collect()
    )


def _total(buckets: Sequence[Row], name: str) -> int:
    return sum(row[name] for row in buckets)


@dataclass(frozen=True)
class _Keyed:
    """The keys that may differ, one row each, and how to read them."""

    rows: DataFrame
    pairing: Pairing

    def text(self, value: Column, pair: ColumnPair) -> Column:
        if pair.masked:
            return F.when(value.isNotNull(), F.lit(MASKED))
        return F.substring(columns.text_of(value, pair), 1, MAX_TEXT)

    @property
    def key(self) -> list[Column]:
        return [self.text(F.col(f"k{n}"), pair) for n, pair in enumerate(self.pairing.key)]

    def examples(self, which: Column, most: int, *more: Column) -> list[tuple[str, Row]]:
        """The first keys as text, with more columns."""
        order = [F.col(f"k{n}") for n in range(len(self.pairing.key))]
        names = [f"t{n}" for n in range(len(order))]
        chosen = self.rows.filter(which).orderBy(*order).limit(most)
        shown = chosen.select(*(c.alias(name) for c, name in zip(self.key, names, strict=True)), *more).collect()
        return [(self._key_text([row[name] for name in names]), row) for row in shown]

    def _key_text(self, texts: Sequence[str | None]) -> str:
        parts = ["NULL" if text is None else printable(text) for text in texts]
        return ", ".join(f"{pair.name}={part}" for pair, part in zip(self.pairing.key, parts, strict=True))


def _compare_rows(both: DataFrame, buckets: Sequence[int], pairing: Pairing, total: int) -> _Differences:
    """Compare the rows of some buckets, key by key. What differs is kept on disk, and only counts are collected."""
    if len(buckets) < total / 2:
        both = both.filter(f"bucket IN ({','.join(map(str, buckets))})")
    keys = [f"k{n}" for n in range(len(pairing.key))]
    ours, values = F.col("sign") == _OURS, [f"v{n}" for n in range(len(pairing.values))]
    row = F.struct("hash", *values)
    by_key = both.groupBy(*keys).agg(
        F.count_if(ours).alias("ours"),
        F.count_if(~ours).alias("theirs"),
        F.first(F.when(ours, row), ignorenulls=True).alias("one"),
        F.first(F.when(~ours, row), ignorenulls=True).alias("another"),
        F.sum(F.col("sign") * F.shiftright("hash", 32)).alias("high"),
        F.sum(F.col("sign") * F.col("hash").bitwiseAND(F.lit(0xFFFFFFFF))).alias("low"),
    )
    single = (F.col("ours") == 1) & (F.col("theirs") == 1)
    # Which row of a key belongs to which is not known where it has several: they are the same, or they are duplicates.
    is_duplicate = ((F.col("ours") > 1) | (F.col("theirs") > 1)) & ~(
        (F.col("ours") == F.col("theirs")) & (F.col("high") == 0) & (F.col("low") == 0)
    )
    differs = [
        single & ~columns.same(F.col(f"one.{v}"), F.col(f"another.{v}"), pair)
        for v, pair in zip(values, pairing.values, strict=True)
    ]
    flags = {
        "only_ours": F.col("theirs") == 0,
        "only_theirs": F.col("ours") == 0,
        "duplicate": is_duplicate,
        **{f"d{n}": each for n, each in enumerate(differs)},
    }
    return _count(by_key, flags, pairing)


def _count(by_key: DataFrame, flags: dict[str, Column], pairing: Pairing) -> _Differences:
    found = _Differences(pairing)
    marked = by_key.select("*", *(each.alias(name) for name, each in flags.items()))
    kept = marked.filter(" OR ".join(flags)).persist(StorageLevel.DISK_ONLY)
    values = " OR ".join(name for name in flags if name.startswith("d") and name != "duplicate") or "false"
    try:
        counts = kept.agg(
            *(F.count_if(F.col(name)).alias(name) for name in flags), F.count_if(F.expr(values)).alias("different")
        ).collect()[0]
        keyed = _Keyed(kept, pairing)
        found.different = counts["different"]
        found.only_ours = _keys(keyed, "only_ours", counts)
        found.only_theirs = _keys(keyed, "only_theirs", counts)
        found.duplicates = _keys(keyed, "duplicate", counts)
        most = sorted(range(len(found.columns)), key=lambda n: -counts[f"d{n}"])[:MAX_COLUMNS_WITH_EXAMPLES]
        found.columns = tuple(
            column.model_copy(
                update={
                    "different": counts[f"d{n}"],
                    "examples": _values(keyed, n) if n in most and counts[f"d{n}"] else (),
                }
            )
            for n, column in enumerate(found.columns)
        )
    finally:
        kept.unpersist()
    return found


def _keys(keyed: _Keyed, flag: str, counts: Row) -> Keys:
    if not counts[flag]:
        return Keys()
    shown = keyed.examples(F.col(flag), MAX_KEYS, F.col("ours"), F.col("theirs"))
    times = flag == "duplicate"
    return Keys(
        count=counts[flag],
        examples=tuple(f"{key} ({row['ours']} and {row['theirs']} rows)" if times else key for key, row in shown),
    )


def _values(keyed: _Keyed, n: int) -> tuple[tuple[str, str | None, str | None], ...]:
    pair = keyed.pairing.values[n]
    one, another = (keyed.text(F.col(f"{side}.v{n}"), pair).alias(side) for side in ("one", "another"))
    rows = keyed.examples(F.col(f"d{n}"), MAX_VALUES, one, another)
    return tuple((key, _printable(row["one"]), _printable(row["another"])) for key, row in rows)


def _printable(text: str | None) -> str | None:
    return None if text is None else printable(text)
