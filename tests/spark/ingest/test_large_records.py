"""Records of 10 MB, if Kafka accepts them, are staged and published by a driver with 2 GB of memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import functions as F

from sluice.iceberg import table_names, tables
from sluice.ingest import stage, staged_batches
from tests.support.lake import Lake

pytestmark = pytest.mark.spark

EACH, SIZE = 130, 10_000_000
"""Records of one task: more than Parquet's writer gathers by default before it looks at their size."""


def test_large_records_are_staged_and_read_in_a_small_heap(lake: Callable[..., Lake]) -> None:
    it = lake()
    tables.ensure_staging(it.catalog, it.topic)
    name = table_names.spark_name(table_names.catalog_name(), table_names.staging(it.topic))
    value = F.repeat(F.sha2(F.col("id").cast("string"), 256), F.lit(SIZE // 64))
    rows = it.spark.range(0, 2 * EACH, 1, 2).select(
        F.lit(1).cast("bigint").alias("batch_seq"),
        F.floor(F.col("id") / EACH).cast("int").alias("_kafka_partition"),
        F.col("id").alias("_kafka_offset"),
        F.current_timestamp().alias("_kafka_timestamp"),
        F.lit(0).alias("_kafka_timestamp_type"),
        F.lit(None).cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        F.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers"),
    )
    stage._write(rows, name)
    how = staged_batches.read_options(it.catalog.load_table(table_names.staging(it.topic)))
    found = it.spark.read.options(**how).table(name).agg(F.count("*"), F.sum(F.length("value"))).collect()[0]
    assert tuple(found) == (2 * EACH, 2 * EACH * SIZE)


def test_records_are_read_one_by_one_where_they_are_large_or_nobody_knows() -> None:
    assert staged_batches.batch_options(40.0) == {"batch-size": "200", "vectorization-enabled": "true"}
    for mean in (5_000.0, None):
        assert staged_batches.batch_options(mean)["vectorization-enabled"] == "false"
