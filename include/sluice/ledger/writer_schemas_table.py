"""Table `sluice.writer_schemas`: by which schema the records of a topic with a schema id were read first. No JVM.

An id whose schema differs from that one stops the table, on whatever machine: the registry has reused the id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StringType, TimestamptzType

from sluice.iceberg import own_table, table_names, tables
from sluice.iceberg.filters import And, equal, one_of
from sluice.kafka.registry import SchemaRegistry, WriterSchema
from sluice.kafka.schema_fingerprint import SchemaFingerprint, reused_id_error

log = logging.getLogger(__name__)

SCHEMA = Schema(
    NestedField(1, "at", TimestamptzType(), required=True, doc="when the id was first used"),
    NestedField(2, "run_id", StringType(), required=True),
    NestedField(3, "topic", StringType(), required=True),
    NestedField(4, "schema_id", IntegerType(), required=True),
    NestedField(5, "registry", StringType(), required=True, doc="its address"),
    NestedField(6, "fingerprint", StringType(), required=True, doc="of the schema, without its formatting"),
    NestedField(7, "references", StringType(), doc="fingerprint of what it references; null if that was deleted"),
)


def check_and_record(catalog: Catalog, topic: str, used: Iterable[WriterSchema], *, run_id: str) -> None:
    """Compare the schemas that a topic's records are read with to those of earlier batches, and record new ids.

    The registry's address may change: the records of a topic keep their ids.

    Raises:
        SchemaIdReusedError: an id had another schema before.
    """
    schemas = {each.id: each for each in used}
    if not schemas:
        return
    registry = SchemaRegistry().address
    known = _read(catalog, topic, schemas)
    for number, fingerprint in known:
        if fingerprint.differs_from(schemas[number].fingerprint):
            raise reused_id_error(registry, number, topic=topic)
    new = schemas.keys() - {number for number, _ in known}
    if not new:
        return
    now = datetime.now(UTC)
    rows = [
        {"at": now, "run_id": run_id, "topic": topic, "schema_id": number, "registry": registry,
         "fingerprint": schemas[number].fingerprint.text, "references": schemas[number].fingerprint.references}
        for number in sorted(new)
    ]  # fmt: skip
    table = tables.ensure_table(catalog, table_names.WRITER_SCHEMAS, SCHEMA)
    # Two writers may record one id. If their schemas differ, whoever reads it next is stopped.
    own_table.append(table, pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    log.info("%s: schema ids %s were recorded in sluice.writer_schemas", topic, ", ".join(map(str, sorted(new))))


def _read(catalog: Catalog, topic: str, ids: Iterable[int]) -> list[tuple[int, SchemaFingerprint]]:
    """The recorded fingerprints of a topic's ids."""
    table = tables.load(catalog, table_names.WRITER_SCHEMAS)
    if table is None:
        return []
    wanted = And(equal("topic", topic), one_of("schema_id", ids))
    columns = ("schema_id", "fingerprint", "references")
    rows = table.scan(row_filter=wanted, selected_fields=columns).to_arrow().to_pylist()
    return [(row["schema_id"], SchemaFingerprint(row["fingerprint"], row["references"])) for row in rows]
