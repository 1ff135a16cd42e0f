"""Schema, partition spec and properties of Sluice's tables. In: a contract. Out: PyIceberg types; no catalog, no JVM.

Used to create tables and to compare a table with its contract.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyiceberg.types import IcebergType as PyIcebergType

from sluice.contract import partitioning
from sluice.contract.contract import Contract
from sluice.contract.types import Decimal, Fixed, IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.contract.values import KAFKA_COLUMNS
from sluice.errors import ContractError

# Parquet's writer checks its buffer after 100 records, then after up to 10,000 more: with records of 10 MB that is more
# than the memory there is. Checking this often costs nothing measurable with records of 100 bytes.
LARGE_RECORDS = {
    "write.parquet.row-group-check-min-record-count": "1",
    "write.parquet.row-group-check-max-record-count": "20",
}
"""Properties of every table of records; existing tables get them as well."""
DEFAULT_PROPERTIES = {
    **LARGE_RECORDS,
    "write.format.default": "parquet",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "commit.manifest-merge.enabled": "true",
}
"""Properties of a typed table, unless the contract sets them."""
UNPARTITIONED_PROPERTIES = {
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
}
"""An unpartitioned table needs no distribution: a MERGE writes without a further shuffle or sort."""

MEASURED_COLUMNS = 100
"""Iceberg keeps bounds of the first so many columns by default."""
_DEFAULT_METRICS, _COLUMN_METRICS = "write.metadata.metrics.default", "write.metadata.metrics.column."

_PRIMITIVES: dict[str, PrimitiveType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "date": DateType(),
    "time": TimeType(),
    "timestamp": TimestampType(),
    "timestamptz": TimestamptzType(),
    "string": StringType(),
    "uuid": UUIDType(),
    "binary": BinaryType(),
}
_HEADERS = ListOf(Struct((("key", Primitive("string")), ("value", Primitive("binary")))))
_TIMESTAMP_MS_DOC = "Kafka's timestamp where it is no time of the years 1 to 9999; -1: none"
_SPEC_IDS_FROM = 1000


class _FieldIds:
    """Makes fields with ids from 1, in the order of the calls."""

    def __init__(self) -> None:
        self._next = count(1)

    def field(self, name: str, kind: PyIcebergType, *, required: bool = False, doc: str | None = None) -> NestedField:
        return NestedField(field_id=next(self._next), name=name, field_type=kind, required=required, doc=doc)

    def type(self, kind: IcebergType) -> PyIcebergType:
        match kind:
            case Primitive(name):
                return _PRIMITIVES[name]
            case Decimal(precision, scale):
                return DecimalType(precision, scale)
            case Fixed(length):
                return FixedType(length)
            case ListOf(element):
                return ListType(element_id=next(self._next), element=self.type(element), element_required=False)
            case MapOf(key, value):
                key_id, value_id = next(self._next), next(self._next)
                return MapType(key_id, self.type(key), value_id, self.type(value), value_required=False)
            case Struct(fields):
                return StructType(*(self.field(name, self.type(inner)) for name, inner in fields))

    def coordinates(self) -> list[NestedField]:
        return [
            self.field("_kafka_topic", StringType(), required=True, doc="Kafka topic of the record"),
            self.field("_kafka_partition", IntegerType(), required=True, doc="Kafka partition of the record"),
            self.field("_kafka_offset", LongType(), required=True, doc="Kafka offset of the record"),
            self.field("_kafka_timestamp", TimestamptzType(), doc="Kafka timestamp of the record"),
        ]


def typed_schema(contract: Contract) -> Schema:
    """Return the typed table's schema: the contract's columns in their order, then the record's Kafka coordinates."""
    ids = _FieldIds()
    columns = [ids.field(c.name, ids.type(c.type), required=c.required, doc=c.doc) for c in contract.columns]
    # In history mode no column is unique.
    keys = [field.field_id for field in columns if contract.upsert and field.name in contract.identifier]
    return Schema(*columns, *ids.coordinates(), identifier_field_ids=keys)


def iceberg_type(kind: IcebergType) -> PyIcebergType:
    """Return PyIceberg's type of `kind`; the table that it is added to assigns new field ids."""
    return _FieldIds().type(kind)


def contract_type(kind: PyIcebergType) -> IcebergType:
    """Return the contract's type of a column of an existing table: the inverse of `iceberg_type`.

    Raises:
        ContractError: contracts have no such type.
    """
    match kind:
        case DecimalType():
            return Decimal(kind.precision, kind.scale)
        case FixedType():
            return Fixed(len(kind))
        case ListType():
            return ListOf(contract_type(kind.element_type))
        case MapType():
            return MapOf(contract_type(kind.key_type), contract_type(kind.value_type))
        case StructType():
            return Struct(tuple((f.name, contract_type(f.field_type)) for f in kind.fields))
    for name, known in _PRIMITIVES.items():
        if kind == known:
            return Primitive(name)
    raise ContractError(f"Contracts have no type {kind}.")


def partition_fields(spec: PartitionSpec, schema: Schema) -> list[partitioning.PartitionField]:
    """Return how an existing table is partitioned, as a contract has it: the inverse of `partition_spec`."""
    found = []
    for each in spec.fields:
        transform, _, argument = str(each.transform).rstrip("]").partition("[")
        if transform != "void":
            column = schema.find_column_name(each.source_id) or ""
            found.append(partitioning.PartitionField(column, transform, int(argument) if argument else None))
    return found


def partition_spec(contract: Contract, schema: Schema) -> PartitionSpec:
    """Return the typed table's partition spec over the fields of `schema`."""
    return _spec(contract.partitioning, schema)


def table_properties(contract: Contract) -> dict[str, str]:
    """Return the typed table's properties: the defaults, overridden by the contract's own."""
    version = {"format-version": str(contract.format_version)}
    return {**DEFAULT_PROPERTIES, **layout_properties(contract), **contract.properties, **version}


def layout_properties(contract: Contract) -> dict[str, str]:
    """Return the default properties that depend on the table's partitions and columns."""
    return {**({} if contract.partitioning else UNPARTITIONED_PROPERTIES), **_metrics(contract)}


def _metrics(contract: Contract) -> dict[str, str]:
    """Return metrics modes of the columns that a MERGE prunes by, if some of them are behind the first 100."""
    columns = typed_schema(contract)
    # Nested fields have ids and count as well. A default in the contract applies to all columns.
    if columns.highest_field_id <= MEASURED_COLUMNS or _DEFAULT_METRICS in contract.properties:
        return {}
    modes = {}
    for name in (*contract.identifier, *contract.order, *KAFKA_COLUMNS):
        is_long = isinstance(columns.find_type(name), StringType | BinaryType)
        modes[f"{_COLUMN_METRICS}{name}"] = "truncate(16)" if is_long else "full"
    return modes


def staging_schema() -> tuple[Schema, PartitionSpec]:
    """Return schema and spec of a topic's staging table: the records as they are in Kafka, one partition per batch."""
    ids = _FieldIds()
    schema = Schema(
        ids.field("batch_seq", LongType(), required=True, doc="number of the batch that read the record"),
        ids.field("_kafka_partition", IntegerType(), required=True),
        ids.field("_kafka_offset", LongType(), required=True),
        ids.field("_kafka_timestamp", TimestamptzType()),
        ids.field("_kafka_timestamp_type", IntegerType(), doc="0 set by the producer, 1 by the broker, -1 none"),
        *_payload(ids),
        ids.field("_kafka_timestamp_ms", LongType(), doc=_TIMESTAMP_MS_DOC),
    )
    return schema, _spec((partitioning.PartitionField("batch_seq"),), schema)


def quarantine_schema() -> tuple[Schema, PartitionSpec]:
    """Return schema and spec of a table's quarantine: the whole record, and its error."""
    ids = _FieldIds()
    schema = Schema(
        ids.field("batch_seq", LongType(), required=True, doc="number of the batch that read the record"),
        *ids.coordinates(),
        *_payload(ids),
        ids.field("error_class", StringType(), required=True, doc="kind of error, for counting"),
        ids.field("error", StringType(), doc="what is wrong with the record"),
        ids.field("field", StringType(), doc="column that the error is about"),
        ids.field("quarantined_at", TimestamptzType(), required=True),
        ids.field("_kafka_timestamp_ms", LongType(), doc=_TIMESTAMP_MS_DOC),
    )
    by = (partitioning.PartitionField("_kafka_topic"), partitioning.PartitionField("batch_seq"))
    return schema, _spec(by, schema)


def deletes_schema(contract: Contract) -> Schema:
    """Return the schema of an upsert table's deletes table: the key, and the position of the delete."""
    ids = _FieldIds()
    keys = [ids.field(name, ids.type(contract.column(name).type), required=True) for name in contract.identifier]
    coordinates = ids.coordinates()
    # Optional: rows from before the contract had this order lack it.
    order = [ids.field(n, ids.type(contract.column(n).type)) for n in contract.order if n not in KAFKA_COLUMNS]
    return Schema(*keys, *coordinates, *order, identifier_field_ids=[field.field_id for field in keys])


def _payload(ids: _FieldIds) -> list[NestedField]:
    return [
        ids.field("key", BinaryType()),
        ids.field("value", BinaryType(), doc="null is a tombstone"),
        ids.field("headers", ids.type(_HEADERS)),
    ]


def _spec(fields: tuple[partitioning.PartitionField, ...], schema: Schema) -> PartitionSpec:
    return PartitionSpec(
        *(
            PartitionField(
                source_id=schema.find_field(each.column).field_id,
                field_id=_SPEC_IDS_FROM + index,
                transform=_transform(each),
                name=each.name,
            )
            for index, each in enumerate(fields)
        )
    )


def _transform(field: partitioning.PartitionField) -> Transform[Any, Any]:
    plain: dict[str, Transform[Any, Any]] = {
        "identity": IdentityTransform(),
        "year": YearTransform(),
        "month": MonthTransform(),
        "day": DayTransform(),
        "hour": HourTransform(),
    }
    if field.transform in plain:
        return plain[field.transform]
    number = field.argument or 1
    return BucketTransform(number) if field.transform == "bucket" else TruncateTransform(number)
