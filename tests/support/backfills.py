"""Runs backfills through their real steps (plan, slices, outcome), and damages tables that they repair."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sluice import batch
from sluice.backfill import backfill_outcome, backfill_plan, slice_run
from sluice.backfill.backfill_plan import BackfillPlan
from sluice.backfill.ranges import Request
from sluice.batch import CURSOR_TAG
from sluice.iceberg import cursor, snapshots, table_names
from sluice.plan.model import PlanInputs
from tests.support.lake import Lake

WHY = "a hole was found"


def backfill_request(table: str, ranges: Mapping[int, Sequence[int]] | None = None, **more: Any) -> Request:
    return Request(table, ranges or {}, **{"why": WHY, **more})


def plan_backfill(it: Lake, request: Request, run_id: str = "by hand") -> BackfillPlan:
    return backfill_plan.write_backfill(
        request, PlanInputs(it.contracts, it.catalog, it.admin), who="ann", run_id=run_id
    )


def run_slices(it: Lake, found: BackfillPlan, *numbers: int, run_id: str = "by hand") -> None:
    for seq in numbers or found.to_xcom()["slices"]:
        task = slice_run.SliceTask(found.table, found.topic, seq, found.origin)
        slice_run.run_slice(it.context(run_id), it.contracts, it.admin, task)


def read_outcome(it: Lake, found: BackfillPlan) -> list[dict[str, Any]]:
    return backfill_outcome.collect_outcome(it.contracts, it.catalog, found.to_xcom())


def run_backfill(it: Lake, request: Request, run_id: str = "by hand") -> list[dict[str, Any]]:
    """Plan a backfill, run its slices and return its outcome."""
    found = plan_backfill(it, request, run_id)
    run_slices(it, found, run_id=run_id)
    return read_outcome(it, found)


def run_sql(it: Lake, table: str, statement: str) -> None:
    """Run a SQL statement on a table (`{}` in the statement), as a user would."""
    name = table_names.spark_name(it.context().catalog_name, tuple(table.split(".")))
    it.spark.sql(statement.format(name))


def delete_rows(it: Lake, table: str, where: str) -> None:
    run_sql(it, table, f"DELETE FROM {{}} WHERE {where}")


def delete_by_equality(it: Lake, table: str, key: str, partition: str = "", column: str = "key") -> None:
    """Delete rows with an equality delete file, as Flink writes them; Spark cannot, so Iceberg's Java API does it."""
    jvm = it.spark._jvm
    name = f"{it.context().catalog_name}.{table}"
    found = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(it.spark._jsparkSession, name)
    ids = it.spark.sparkContext._gateway.new_array(jvm.int, 1)
    ids[0] = found.schema().findField(column).fieldId()
    chosen = found.schema().select([column])
    parquet = jvm.org.apache.iceberg.FileFormat.PARQUET
    factory = jvm.org.apache.iceberg.data.GenericFileWriterFactory.Builder(found)
    factory = factory.dataFileFormat(parquet).deleteFileFormat(parquet)
    factory = factory.equalityFieldIds(ids).equalityDeleteRowSchema(chosen).build()
    location = found.locationProvider().newDataLocation(f"{uuid.uuid4()}.parquet")
    output = jvm.org.apache.iceberg.encryption.EncryptedFiles.plainAsEncryptedOutput(found.io().newOutputFile(location))
    where = jvm.org.apache.iceberg.DataFiles.data(found.spec(), partition) if partition else None
    writer = factory.newEqualityDeleteWriter(output, found.spec(), where)
    row = jvm.org.apache.iceberg.data.GenericRecord.create(chosen)
    is_binary = chosen.findField(column).type().toString() == "binary"
    row.setField(column, jvm.java.nio.ByteBuffer.wrap(key.encode()) if is_binary else key)
    writer.write(row)
    writer.close()
    found.newRowDelta().addDeletes(writer.toDeleteFile()).commit()


def read_checked_cursor(it: Lake, table: str) -> Any:
    """Return the table's cursor; assert that the cursor tag has the same offsets."""
    found = it.catalog.load_table(table)
    through = cursor.read_table_cursor(found)
    tagged = found.metadata.snapshot_by_id(found.metadata.refs[CURSOR_TAG].snapshot_id)
    assert tagged is not None
    assert batch.decode_published_through(snapshots.summary(tagged)["sluice.published-through"]) == through
    return through
