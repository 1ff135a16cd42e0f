"""A contract becomes an Iceberg schema, partition spec and properties, with tables created in a local catalog."""

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import DecimalType, FixedType, ListType, MapType, StringType, StructType, TimestamptzType

from sluice.contract.contract import Contract
from sluice.contract.folder import load_contracts
from sluice.evolve import apply
from sluice.iceberg import schema, table_names, tables

pytestmark = pytest.mark.unit

TYPES = [
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "decimal(10, 2)",
    "date",
    "timestamp",
    "timestamptz",
    "string",
    "uuid",
    "fixed[4]",
    "binary",
    "list<list<long>>",
    "map<string, struct<a: int, b: list<date>>>",
    "struct<a: int, b: struct<c: decimal(9, 0)>>",
]
TRANSFORMS = [
    "v_boolean",
    "year(v_date)",
    "month(v_timestamp)",
    "hour(v_timestamptz)",
    "bucket(16, v_uuid)",
    "truncate(8, v_string)",
    "bucket(4, v_fixed)",
    "day(_kafka_timestamp)",
    "_kafka_topic",
]


@pytest.fixture
def catalog(tmp_path):
    made = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("ns")
    yield made
    made.close()


def contract(**fields):
    columns = [{"name": "id", "type": "long"}]
    columns += [{"name": f"v_{t.split('(')[0].split('[')[0].split('<')[0]}", "type": t} for t in TYPES]
    base = {"table": "ns.t", "topic": "t", "group": "g", "owner": "me", "columns": columns}
    return Contract.model_validate({**base, **fields})


def test_all_types_reach_a_table(catalog):
    c = contract(mode="upsert", identifier=["id"])
    made = catalog.create_table(("ns", "t"), schema.typed_schema(c)).schema()
    fields = {f.name: f for f in made.fields}
    assert list(fields) == [x.name for x in c.columns] + [
        "_kafka_topic",
        "_kafka_partition",
        "_kafka_offset",
        "_kafka_timestamp",
    ]
    for column in c.columns[1:14]:
        assert str(fields[column.name].field_type) == str(column.type)
    assert isinstance(fields["v_list"].field_type.element_type, ListType)
    assert isinstance(fields["v_map"].field_type, MapType)
    assert isinstance(fields["v_map"].field_type.value_type, StructType)
    assert fields["v_struct"].field_type.fields[1].field_type.fields[0].field_type == DecimalType(9, 0)
    assert fields["v_fixed"].field_type == FixedType(4)
    assert [f.name for f in made.fields if f.required] == ["id", "_kafka_topic", "_kafka_partition", "_kafka_offset"]
    assert made.identifier_field_names() == {"id"}


def test_field_ids_are_unique_at_every_depth():
    made = schema.typed_schema(contract())
    assert len(made.field_ids) == len(set(made.field_ids)) == 5 + 16 + 2 + 2 + 3 + 3


def test_all_transforms_reach_a_table(catalog):
    c = contract(partition_by=TRANSFORMS)
    wanted = schema.typed_schema(c)
    made = catalog.create_table(("ns", "t"), wanted, partition_spec=schema.partition_spec(c, wanted))
    spec = [(made.schema().find_column_name(f.source_id), str(f.transform), f.name) for f in made.spec().fields]
    assert spec == [
        ("v_boolean", "identity", "v_boolean"),
        ("v_date", "year", "v_date_year"),
        ("v_timestamp", "month", "v_timestamp_month"),
        ("v_timestamptz", "hour", "v_timestamptz_hour"),
        ("v_uuid", "bucket[16]", "v_uuid_bucket"),
        ("v_string", "truncate[8]", "v_string_trunc"),
        ("v_fixed", "bucket[4]", "v_fixed_bucket"),
        ("_kafka_timestamp", "day", "_kafka_timestamp_day"),
        ("_kafka_topic", "identity", "_kafka_topic"),
    ]
    for field in made.spec().fields:
        assert field.transform.can_transform(made.schema().find_type(field.source_id))


def test_docs_are_kept():
    c = contract(columns=[{"name": "id", "type": "long", "doc": "the id"}])
    assert schema.typed_schema(c).fields[0].doc == "the id"


def test_the_contracts_properties_override_the_defaults():
    made = schema.table_properties(contract(properties={"write.merge.mode": "copy-on-write", "x": 1}))
    assert made["write.merge.mode"] == "copy-on-write"
    assert made["write.update.mode"] == "merge-on-read"
    assert (made["x"], made["format-version"]) == ("1", "2")


@pytest.mark.parametrize(
    ("make", "partitions"),
    [(schema.staging_schema, ["batch_seq"]), (schema.quarantine_schema, ["_kafka_topic", "batch_seq"])],
)
def test_raw_tables(catalog, make, partitions):
    wanted, spec = make()
    made = catalog.create_table(("ns", "raw"), wanted, partition_spec=spec)
    assert [f.name for f in made.spec().fields] == partitions
    assert made.schema().find_field("batch_seq").required
    header = made.schema().find_field("headers").field_type
    assert not header.element_required
    assert [f.name for f in header.element_type.fields] == ["key", "value"]
    for name in ("key", "value", "headers", "_kafka_timestamp"):
        assert not made.schema().find_field(name).required
    assert made.schema().find_type("_kafka_timestamp") == TimestamptzType()


def test_deletes_hold_the_key_and_where_it_was_deleted():
    made = schema.deletes_schema(load_contracts().table("aviation.planes"))
    assert [f.name for f in made.fields][:2] == ["tailnum", "_kafka_topic"]
    assert made.find_type("tailnum") == StringType()
    assert made.identifier_field_names() == {"tailnum"}


def test_a_wide_table_keeps_the_metrics_that_it_is_pruned_by():
    def made(count, **fields):
        kinds = ("long", "string")
        columns = [{"name": f"c{i}", "type": kinds[i % 2], "required": i == 96} for i in range(count)]
        return schema.table_properties(contract(columns=columns, **fields))

    assert made(96, mode="upsert", identifier=["c1"]) == made(5, mode="upsert", identifier=["c1"])
    wide = made(97, mode="upsert", identifier=["c95"], order=["c96"], deletes="ignore")
    stem = "write.metadata.metrics.column."
    assert {name.removeprefix(stem): how for name, how in wide.items() if name.startswith(stem)} == {
        "c95": "truncate(16)",
        "c96": "full",
        "_kafka_topic": "truncate(16)",
        "_kafka_partition": "full",
        "_kafka_offset": "full",
        "_kafka_timestamp": "full",
    }
    assert made(97, properties={f"{stem}_kafka_offset": "none"})[f"{stem}_kafka_offset"] == "none"
    assert not any(name.startswith(stem) for name in made(97, properties={"write.metadata.metrics.default": "full"}))
    nested = {"name": "s", "type": f"struct<{', '.join(f'f{i}: long' for i in range(100))}>"}
    assert f"{stem}_kafka_offset" in schema.table_properties(contract(columns=[nested]))


def test_tables_from_before_are_made_ready_for_large_records(catalog):
    c = contract()
    known = {n: v for n, v in schema.LARGE_RECORDS.items() if "min" not in n} | {"x": "1"}
    for identifier, made in (
        (table_names.staging("t"), schema.staging_schema),
        (table_names.quarantine(c), schema.quarantine_schema),
    ):
        tables.ensure_table(
            catalog, identifier, *made(), {**known, "write.parquet.row-group-check-max-record-count": "7"}
        )
    typed = schema.typed_schema(c)
    tables.ensure_table(catalog, table_names.typed(c), typed, properties={"x": "1"})
    tables.ensure_staging(catalog, "t")
    tables.ensure_quarantine(catalog, c)
    apply.describe_table(catalog.load_table(table_names.typed(c)), c, 1)
    wanted = {**schema.LARGE_RECORDS, "x": "1"}
    own = {**wanted, "write.parquet.row-group-check-max-record-count": "7"}  # which somebody has set
    for identifier, all_of in (
        (table_names.staging("t"), own),
        (table_names.quarantine(c), own),
        (table_names.typed(c), wanted),
    ):
        assert all_of.items() <= catalog.load_table(identifier).properties.items()
    before = catalog.load_table(table_names.staging("t")).metadata_location
    assert tables.ensure_staging(catalog, "t").metadata_location == before
