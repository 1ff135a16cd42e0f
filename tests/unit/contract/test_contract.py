"""One contract: its fields, their defaults, and the rules between them."""

import pickle
import time
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from sluice.contract.contract import Contract
from sluice.contract.groups import GroupSettings
from sluice.contract.validation_messages import describe_errors

pytestmark = pytest.mark.unit

BASE = {
    "table": "ns.t",
    "topic": "events",
    "group": "g",
    "owner": "me",
    "columns": [{"name": "id", "type": "long"}, {"name": "at", "type": "timestamptz"}, {"name": "n", "type": "int"}],
}
UPSERT = {**BASE, "mode": "upsert", "identifier": ["id"]}


def contract(base=BASE, **fields):
    return Contract.model_validate({**base, **fields})


def flaws(base=BASE, **fields):
    """The messages of a contract that is wrong, by field."""
    data = {**base, **fields}
    with pytest.raises(ValidationError) as error:
        Contract.model_validate(data)
    return {".".join(map(str, at)): message for at, message in describe_errors(error.value, Contract, data)}


def columns(*given):
    return [dict(zip(("name", "type", "source"), each, strict=False)) for each in given]


def test_defaults():
    c = contract()
    assert (c.mode, c.key.format, c.value.format, c.start) == ("append", "string", "json", "earliest")
    assert (c.limits.records_per_batch, c.limits.seconds_per_run, c.limits.batches_per_run) == (1_000_000, 240, 20)
    assert (c.errors.tolerance, c.errors.max_ratio) == ("quarantine", 0.01)
    assert (c.deletes, c.order, c.identifier, c.partition_by, c.properties) == ("tombstone", (), (), (), {})
    assert (c.format_version, c.transactional, c.freshness) == (2, False, None)
    assert [x.source for x in c.columns] == ["id", "at", "n"]
    assert not any(x.required for x in c.columns)
    assert (c.topics, c.namespace, c.name, c.upsert) == (("events",), ("ns",), "t", False)


def test_thousands_of_columns_take_no_time_that_grows_with_their_square():
    """Each parse of a DAG file checks all contracts."""
    wide = columns(*((f"c{i}", "long") for i in range(5_000)), ("C0", "long"), ("last", "int", "c1"))
    began = time.process_time()
    found = flaws(columns=wide)
    assert time.process_time() - began < 5
    assert list(found) == ["columns.5000.name", "columns.5000.source", "columns.5001.source"]


def test_identifier_columns_are_required_whatever_they_say():
    c = contract(UPSERT)
    assert {x.name: x.required for x in c.columns} == {"id": True, "at": False, "n": False}
    with pytest.raises(KeyError):
        c.column("nope")


def test_a_contract_is_frozen_and_survives_pickle_and_json():
    c = contract(UPSERT, start="2024-01-01T00:00:00Z", freshness="2h", partition_by=["bucket(4, id)"])
    with pytest.raises(ValidationError):
        c.table = "x.y"
    assert pickle.loads(pickle.dumps(c)) == c
    assert Contract.model_validate(c.model_dump(mode="json")) == c
    assert Contract.model_validate(c.model_dump()) == c


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86400), ("1w", 604800), ("3 h", 10800)]
)
def test_durations(text, seconds):
    assert contract(freshness=text).freshness == timedelta(seconds=seconds)


@pytest.mark.parametrize("value", ["15", 15, "0m", "m", "1.5h", "1y", "", "-1m", True])
def test_wrong_durations(value):
    assert "is not a duration" in flaws(freshness=value)["freshness"]


def test_a_duration_that_no_calendar_has():
    assert "is longer than 36500d" in flaws(freshness="999999d")["freshness"]
    assert contract(freshness="36500d").freshness == timedelta(days=36500)


@pytest.mark.parametrize(
    ("value", "start"),
    [
        ("latest", "latest"),
        ("2024-01-01T01:00:00+01:00", datetime(2024, 1, 1, tzinfo=UTC)),
        ("2024-01-01T00:00:00Z", datetime(2024, 1, 1, tzinfo=UTC)),
        ({0: 5, 3: 0}, {0: 5, 3: 0}),
        ({2**31 - 1: 2**63 - 1}, {2**31 - 1: 2**63 - 1}),
    ],
)
def test_starts(value, start):
    assert contract(start=value).start == start


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("2024-01-01T00:00:00", "has no time zone"),
        ("2024-01-01", "has no time zone"),
        ("erliest", "not an ISO timestamp"),
        (7, "not an ISO timestamp"),
        ({}, "offsets are {partition: offset}"),
        ({"a": 1}, "offsets are {partition: offset}"),
        ({0: -1}, "offsets are {partition: offset}"),
        ({0: True}, "offsets are {partition: offset}"),
        ({0: 2**63}, "offsets up to 9223372036854775807"),
        ({2**31: 0}, "partitions up to 2147483647"),
    ],
)
def test_wrong_starts(value, message):
    assert message in flaws(start=value)["start"]


@pytest.mark.parametrize("name", ["t", "a.b c", "a..b", "a.b;drop", "1a.b", "a.`b`", "a.b\n", ".b", "a.é"])
def test_wrong_table_names(name):
    assert "is not namespace.table" in flaws(table=name)["table"]


def test_deeper_namespaces_and_own_namespaces():
    assert contract(table="a.b.c").namespace == ("a", "b")
    assert "Sluice's own" in flaws(table="sluice_staging.t")["table"]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", ".", "x" * 250, "a\n"])
def test_wrong_topics(name):
    assert "legal Kafka topic" in flaws(topic=name)["topic.0"]
    assert "legal Kafka topic" in flaws(topic=["ok", name])["topic.1"]


def test_several_topics():
    assert contract(topic=["a", "b.c-d_e"]).topics == ("a", "b.c-d_e")
    assert flaws(topic=[])["topic"] == "must not be empty"
    assert flaws(topic=["a", "a"])["topic.1"] == "'a' is a duplicate"
    assert "single topic" in flaws(topic=["a", "b"], start={0: 1})["start"]
    assert "offsets do not order" in flaws(UPSERT, topic=["a", "b"])["order"]
    assert contract(UPSERT, topic=["a", "b"], order=["_kafka_timestamp"]).order == ("_kafka_timestamp",)


@pytest.mark.parametrize("name", ["_kafka_offset", "_KAFKA_topic", "_kafka_new", "_partition", "_FILE", "_row_id"])
def test_reserved_columns(name):
    assert "is reserved" in flaws(columns=columns((name, "int")))["columns.0.name"]


def test_columns_stand_once_whatever_their_case():
    assert flaws(columns=columns(("a", "int"), ("a", "int")))["columns.1.name"] == "column 'a' is a duplicate"
    assert "names are not case-sensitive" in flaws(columns=columns(("a", "int"), ("A", "int")))["columns.1.name"]


def test_time_is_refused_with_a_way_out():
    for kind in ("time", "list<time>", "struct<a: map<string, time>>"):
        message = flaws(columns=columns(("a", kind)))["columns.0.type"]
        assert "Spark cannot open" in message
        assert "string, or long" in message


@pytest.mark.parametrize("source", ["a.b.c", "dep-delay", "@timestamp", "a b", "$key"])
def test_sources(source):
    kind = "string"
    assert contract(columns=columns(("x", kind, source))).columns[0].source == source


@pytest.mark.parametrize(
    "source", ["", ".", "a.", ".a", "a..b", "a\nb", " a", "`a", "``", "`a`b", "a.`b`c", "` a`", "`$key`", "`$value`.a"]
)
def test_wrong_sources(source):
    assert "is not a source" in flaws(columns=columns(("x", "int", source)))["columns.0.source"]


@pytest.mark.parametrize(
    ("source", "path", "written"),
    [
        ("a.b", ("a", "b"), "a.b"),
        ("`a.b`", ("a.b",), "`a.b`"),
        ("`a`.`b.c`.d", ("a", "b.c", "d"), "a.`b.c`.d"),
        ("`$id`.`$oid`", ("$id", "$oid"), "`$id`.`$oid`"),
        ("`a``.b`", ("a`.b",), "`a``.b`"),
        ("a`b.it's", ("a`b", "it's"), "a`b.it's"),
        ("größe.x y", ("größe", "x y"), "größe.x y"),
    ],
)
def test_a_name_with_a_dot_is_written_in_backticks_as_in_spark(source, path, written):
    column = contract(columns=columns(("x", "int", source))).columns[0]
    assert (column.path, column.source, column.from_envelope) == (path, written, False)
    column = contract(key={"format": "json"}, columns=columns(("x", "int", f"$key.{source}"))).columns[0]
    assert (column.key_path, column.source) == (path, f"$key.{written}")


def test_the_key_source_is_the_only_one_with_a_dollar():
    assert "did you mean '$key'?" in flaws(columns=columns(("x", "string", "$kye")))["columns.0.source"]


def test_one_field_has_one_type():
    two = contract(columns=columns(("x", "int", "a"), ("y", "int", "a"), ("z", "int", "b.c"), ("w", "int", "b.d")))
    assert two.columns[2].path == ("b", "c")
    assert "use one type" in flaws(columns=columns(("x", "int", "a"), ("y", "long", "a")))["columns.1.source"]
    assert (
        "one contains the other" in flaws(columns=columns(("x", "int", "a"), ("y", "int", "a.b")))["columns.1.source"]
    )
    assert "only by case" in flaws(columns=columns(("x", "int", "a"), ("y", "int", "A")))["columns.1.source"]


MICROS = {"name": "t", "type": "long", "unit": "micros"}
CONNECT = {"value": {"format": "json_connect"}}


def test_a_field_that_counts_time_has_one_unit():
    by_input = [{"name": "s", "type": "long", "expression": "t_in div 1000000"}]
    both = contract(columns=[MICROS, *by_input], inputs=[{**MICROS, "name": "t_in", "source": "t"}], **CONNECT)
    assert (both.column("t").unit, both.inputs[0].unit) == ("micros", "micros")
    assert contract(columns=[{**MICROS, "type": "int", "unit": "millis"}], **CONNECT).columns[0].unit == "millis"
    keyed = contract(columns=[{**MICROS, "source": "$key.t"}], key={"format": "avro"})
    assert keyed.columns[0].unit == "micros"
    for unit in ("millis", None):
        other = {**MICROS, "unit": unit, "name": "t_in", "source": "t"}
        message = "is read as long of micros by another column"
        assert message in flaws(columns=[MICROS, *by_input], inputs=[other], **CONNECT)["inputs.0.source"]
        assert message in flaws(columns=[MICROS, {**other, "name": "u"}], **CONNECT)["columns.1.source"]
    found = flaws(columns=[{**MICROS, "unit": None}, {**MICROS, "name": "u", "source": "t"}], **CONNECT)
    assert "is read as long by another column; use one type and unit" in found["columns.1.source"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"columns": [{**MICROS, "type": "int"}], **CONNECT}, "micros needs type long, not int"),
        ({"columns": [{**MICROS, "unit": "millis", "type": "string"}], **CONNECT}, "needs type int or long, not str"),
        ({"columns": [{**MICROS, "unit": "seconds"}], **CONNECT}, "'seconds' is not 'millis', 'micros' or 'nanos'"),
        ({"columns": [{**MICROS, "expression": "1"}], **CONNECT}, "give an expression's inputs their units"),
        ({"columns": [MICROS]}, "needs a value whose schema names units, of format avro, json_schema, json_connect"),
        ({"columns": [MICROS], "value": {"format": "protobuf"}}, "json_connect, not protobuf"),
        ({"columns": [{**MICROS, "source": "$key"}], **CONNECT}, "needs a key whose schema names units"),
        ({"columns": [MICROS], "cdc": {"format": "debezium_mongodb"}, **CONNECT}, "documents of MongoDB, which have"),
    ],
)
def test_where_a_unit_has_no_meaning(fields, message):
    assert message in flaws(**fields)["columns.0.unit"]


@pytest.mark.parametrize(
    ("key", "kind", "fits"),
    [
        ("string", "string", True),
        ("string", "long", True),
        ("string", "uuid", True),
        ("string", "binary", False),
        ("string", "list<int>", False),
        ("bytes", "binary", True),
        ("bytes", "fixed[4]", True),
        ("bytes", "string", False),
    ],
)
def test_what_a_key_can_be_read_as(key, kind, fits):
    fields = {"key": {"format": key}, "columns": columns(("k", kind, "$key"))}
    if fits:
        assert contract(**fields).columns[0].from_key
    else:
        assert f"a key of format {key} needs" in flaws(**fields)["columns.0.type"]


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("$headers.a", "string", ""),
        ("$headers.`a.b`", "list<binary>", ""),
        ("$headers.a", "decimal(9, 2)", ""),
        ("$headers.a", "list<int>", "a header needs a primitive type, list<string> or list<binary>, not list<int>"),
        ("$headers.a.b", "string", "a header's name that has a dot is written in backticks"),
        ("$headers", "string", "is not a source"),
        ("$header.a", "string", "is not a source"),
    ],
)
def test_what_a_header_can_be_read_as(source, kind, message):
    fields = {"columns": columns(("h", kind, source))}
    if message:
        assert any(message in each for each in flaws(**fields).values())
    else:
        assert contract(**fields).columns[0].header and not contract(**fields).columns[0].path
    keyed = {"mode": "upsert", "identifier": ["h"], "columns": columns(("h", "string", "$headers.a"))}
    assert "set deletes: ignore" in flaws(**keyed)["identifier.0"]
    assert contract(**keyed, deletes="ignore").identifier == ("h",)


@pytest.mark.parametrize(
    ("fields", "at", "message"),
    [
        ({"columns": columns(("d", "date"))}, None, ""),
        ({"columns": columns(("d", "string"))}, "retention.column", "needs type date, timestamp or timestamptz"),
        ({"columns": columns(("e", "date"))}, "retention.column", "there is no column 'd'"),
        (
            {"columns": columns(("d", "date")), "retention": {"column": "d", "keep": "5h"}},
            "retention.keep",
            "must be 1d",
        ),
    ],
)
def test_retention_rules(fields, at, message):
    fields = {"retention": {"column": "d", "keep": "400d"}, **fields}
    if at:
        assert message in flaws(**fields)[at]
        return
    kept = contract(**fields)
    fields.pop("retention")
    assert contract(**fields, retention=kept.retention.model_dump(mode="json")) == kept
    now = datetime(2026, 11, 29, 23, tzinfo=UTC)
    by = {"": "2025-10-25", "day(d)": "2025-10-25", "month(d)": "2025-10-01", "year(d)": "2025-01-01"}
    for transform, day in by.items():
        by_time = {"partition_by": [transform]} if transform else {}
        found = contract(**fields, retention=kept.retention, **by_time).retention_cutoff(now)
        assert str(found) == day


def test_identifier_rules():
    assert "upsert needs identifier" in flaws(mode="upsert")["identifier"]
    assert "append has no identifier" in flaws(identifier=["id"])["identifier"]
    assert flaws(UPSERT, identifier=["ID"])["identifier.0"] == "there is no column 'ID' (did you mean 'id'?)"
    assert flaws(UPSERT, identifier=["id", "id"])["identifier.1"] == "'id' is a duplicate"
    for kind in ("float", "double", "list<int>", "struct<a: int>"):
        assert "cannot be a key" in flaws(UPSERT, columns=columns(("id", kind)))["identifier.0"]


def test_deletes_and_the_column_a_tombstone_names():
    assert contract(UPSERT).tombstone_column == "id"
    assert contract(UPSERT, deletes="ignore").tombstone_column is None
    assert contract(UPSERT, identifier=["id", "n"]).tombstone_column is None
    assert contract().tombstone_column is None
    assert "append never deletes" in flaws(deletes="ignore")["deletes"]
    assert "only the record's key" in flaws(UPSERT, identifier=["id", "n"], deletes="tombstone")["deletes"]
    assert "format bytes" in flaws(UPSERT, key={"format": "bytes"}, deletes="tombstone")["deletes"]


def test_order_rules():
    required = [{"name": "v", "type": "long", "required": True}, *UPSERT["columns"], {"name": "l", "type": "list<int>"}]
    upsert = {**UPSERT, "columns": required, "deletes": "ignore"}
    assert contract(upsert, order=["v", "_kafka_timestamp"]).order == ("v", "_kafka_timestamp")
    assert "no versions to order" in flaws(order=["n"])["order"]
    assert "tombstone has no 'v'" in flaws({**upsert, "deletes": "tombstone"}, order=["v"])["order.0"]
    assert "must be required" in flaws(upsert, order=["n"])["order.0"]
    assert "can't order them" in flaws(upsert, order=["id"])["order.0"]
    assert "has no order" in flaws(upsert, order=["l"])["order.0"]
    assert "(did you mean '_kafka_timestamp'?)" in flaws(upsert, order=["_kafka_timestmp"])["order.0"]
    assert flaws(upsert, order=["v", "v"])["order.1"] == "'v' is a duplicate"


def test_partition_rules():
    good = ["day(at)", "bucket(4, id)", "n", "_kafka_partition"]
    assert list(map(str, contract(partition_by=good).partitioning)) == good
    assert "did you mean 'at'?" in flaws(partition_by=["day(att)"])["partition_by.0"]
    assert "hour does not apply to long" in flaws(partition_by=["n", "hour(id)"])["partition_by.1"]
    assert "are redundant" in flaws(partition_by=["year(at)", "day(at)"])["partition_by.1"]
    assert "are redundant" in flaws(partition_by=["bucket(4, id)", "bucket(8, id)"])["partition_by.1"]
    assert "unknown transform" in flaws(partition_by=["dayz(at)"])["partition_by.0"]
    clash = columns(("at", "date"), ("at_day", "int"))
    assert "which is a column" in flaws(columns=clash, partition_by=["day(at)"])["partition_by.0"]


def test_properties_become_text_and_keep_the_invariants():
    c = contract(properties={"write.parquet.compression-level": 3, "gc.enabled": True, "x": "y"})
    assert c.properties == {"write.parquet.compression-level": "3", "gc.enabled": "true", "x": "y"}
    assert contract(properties={"write.merge.isolation-level": "serializable"}).properties
    for key, value, message in (
        ("write.merge.isolation-level", "snapshot", "must be serializable"),
        ("write.format.default", "orc", "must be parquet"),
        ("write.wap.enabled", True, "must be false"),
        ("format-version", 3, "format_version"),
        ("history.expire.max-ref-age-ms", 1, "expire the tag"),
        ("history.expire.max-snapshot-age-ms", 1, "use maintenance.snapshot_age"),
        ("history.expire.min-snapshots-to-keep", 5, "use maintenance.min_snapshots"),
        ("uuid", "x", "set by Iceberg"),
        ("sluice.topic", "x", "set by Sluice"),
    ):
        assert message in flaws(properties={key: value})[f"properties.{key}"]


@pytest.mark.parametrize(
    ("fields", "at", "message"),
    [
        ({"mode": "upsrt"}, "mode", "'upsrt' is not 'append', 'upsert' or 'history' (did you mean 'upsert'?)"),
        ({"format_version": 1}, "format_version", "1 is not 2 or 3"),
        ({"owner": 5}, "owner", "must be text, not 5: put it in quotes"),
        ({"owner": ""}, "owner", "must not be empty"),
        ({"columns": []}, "columns", "must not be empty"),
        ({"columns": None}, "columns", "must be a list, not None"),
        ({"columns": ["x"]}, "columns.0", "must be a map (name: value), not 'x'"),
        ({"columns": [{"name": "x", "typ": "int"}]}, "columns.0.typ", "unknown field (did you mean 'type'?)"),
        ({"columns": [{"name": "x"}]}, "columns.0.type", "is required"),
        ({"columns": [{"name": "x", "type": 5}]}, "columns.0.type", "a type is text such as 'long', not 5"),
        ({"columns": [{"name": "x", "type": "int", "required": "yes"}]}, "columns.0.required", "must be true or false"),
        ({"limits": {"records_per_bach": 5}}, "limits.records_per_bach", "did you mean 'records_per_batch'?"),
        ({"limits": {"records_per_batch": "5"}}, "limits.records_per_batch", "must be a whole number, not '5'"),
        ({"limits": {"records_per_batch": 0}}, "limits.records_per_batch", "greater than or equal to 1"),
        ({"errors": {"max_ratio": 2}}, "errors.max_ratio", "less than or equal to 1"),
        ({"errors": {"max_ratio": "x"}}, "errors.max_ratio", "must be a number"),
        ({"value": {"format": "yaml"}}, "value.format", "'yaml' is not 'json'"),
        (
            {"value": {"format": "json", "types": ["x"]}},
            "value.types",
            "format (avro, protobuf, json_schema), not json",
        ),
        ({"value": {"format": "avro", "types": [""]}}, "value.types.0", "must not be empty"),
        ({"value": {"format": "avro", "types": ["x"]}, "columns": "auto"}, "columns.auto", "name the subject"),
        ({"tabel": "x.y"}, "tabel", "unknown field (did you mean 'table'?)"),
        ({"zzzzzz": 1}, "zzzzzz", "unknown field (known: table, topic,"),
        ({"group": "defaults"}, "group", "is not a group name"),
        ({"group": "alerts"}, "group", "is not a group name"),
        ({"transactional": 1}, "transactional", "must be true or false, not 1"),
        ({"properties": {"a": [1]}}, "properties.a", "must be text, not [1]"),
        ({"properties": {"a": None}}, "properties.a", "must be text, not None"),
    ],
)
def test_messages(fields, at, message):
    assert message in flaws(**fields)[at]


def test_every_flaw_is_named_at_once():
    found = flaws(UPSERT, identifier=["x"], partition_by=["y"], properties={"uuid": "z"}, order=["w"])
    assert set(found) == {"identifier.0", "partition_by.0", "properties.uuid", "order.0"}


def test_group_defaults():
    g = GroupSettings()
    assert (g.schedule, g.start_date, g.retries, g.pool, g.tags) == ("*/5 * * * *", None, 2, "sluice_spark", ())
    assert (g.retry_delay, g.timeout, g.maintenance_seconds) == (timedelta(minutes=1), timedelta(hours=1), 240)
    # The application ends by itself, also where it may not take long.
    assert [GroupSettings(timeout=timeout).maintenance_seconds for timeout in ("3m", "1s")] == [90, 1]
    assert (g.spark.connection, g.spark.driver_memory, g.spark.executor_memory) == ("spark_default", "2g", None)


@pytest.mark.parametrize(
    "schedule", [None, "@hourly", "0 5 * * MON-FRI", "*/15 0-6 1,15 * ?", "0 0 29 2 *", "0 0 L * *"]
)
def test_schedules(schedule):
    assert GroupSettings(schedule=schedule).schedule == schedule


@pytest.mark.parametrize(
    ("settings", "at", "message"),
    [
        ({"schedule": "every day"}, ("schedule",), "neither five cron fields"),
        ({"schedule": "99 99 99 99 99"}, ("schedule",), "out of range"),
        ({"schedule": "H * * * *"}, ("schedule",), "is not a cron expression"),
        ({"schedule": "0 0 31 2 *"}, ("schedule",), "matches no date"),
        ({"retries": -1}, ("retries",), "greater than or equal to 0"),
        ({"timeout": "60"}, ("timeout",), "is not a duration"),
        ({"start_date": "2024-01-01"}, ("start_date",), "has no time zone"),
        ({"spark": {"driver_memory": "2 GB"}}, ("spark", "driver_memory"), "pattern"),
        ({"spark": {"conf": {"sparkx": "1"}}}, ("spark", "conf", "sparkx"), "must start with 'spark.'"),
        *(
            ({"spark": {"conf": {name: "1"}}}, ("spark", "conf", name), "is not the name of a setting")
            for name in ("spark.driver.memory=9g #", "spark.a\nspark.driver.memory", "spark.a b", "spark.a:b")
        ),
        ({"spark": {"conf": {"spark.driver.memory": "1"}}}, ("spark", "conf", "spark.driver.memory"), "driver_memory"),
        (
            {"spark": {"conf": {"spark.sql.ansi.enabled": "false"}}},
            ("spark", "conf", "spark.sql.ansi.enabled"),
            "the values of rows depend on it",
        ),
        (
            {"spark": {"conf": {"spark.sql.catalog.lake.uri": "1"}}},
            ("spark", "conf", "spark.sql.catalog.lake.uri"),
            "configured once",
        ),
        (
            {"spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": "1"}}},
            ("spark", "conf", "spark.hadoop.fs.s3a.secret.key"),
            "looks like a secret",
        ),
    ],
)
def test_wrong_group_settings(settings, at, message):
    with pytest.raises(ValidationError) as error:
        GroupSettings.model_validate(settings)
    [(where, text)] = describe_errors(error.value, GroupSettings, settings)
    assert where == at
    assert message in text


def test_maintenance_has_defaults():
    m = contract().maintenance
    assert (m.target_file_size, m.min_input_files, m.delete_ratio, m.min_snapshots) == (134_217_728, 5, 0.3, 10)
    assert (m.snapshot_age, m.staging_retention, m.orphan_age) == (timedelta(days=5), None, timedelta(days=3))
    assert contract(maintenance={"orphan_age": "24h"}).maintenance.orphan_age == timedelta(days=1)
    assert (m.strategy, m.sort_by, m.rewrite_after, m.rewrite_bytes) == ("binpack", (), timedelta(hours=1), 1 << 34)


def test_what_a_rewrite_can_sort_by():
    many = columns(("id", "long"), ("order", "string"), ("price", "decimal(9, 2)"), ("tags", "list<string>"))

    def settings(**given):
        return {"columns": many, "partition_by": ["order"], "maintenance": given}

    found = contract(**settings(strategy="sort", sort_by=["price", "_kafka_timestamp"])).maintenance
    assert found.sort_by == ("price", "_kafka_timestamp")
    contract(**settings(strategy="zorder", sort_by=["id", "_kafka_timestamp"]))
    found = flaws(**settings(strategy="sort", sort_by=["ID", "tags", "order", "id", "id"]))
    assert found == {
        "maintenance.sort_by.0": "there is no column 'ID' (did you mean 'id'?)",
        "maintenance.sort_by.1": "list<string> has no order",
        "maintenance.sort_by.2": "'order' is the same in all rows of a partition, so sorting by it has no effect",
        "maintenance.sort_by.4": "'id' is a duplicate",
    }
    assert "zorder does not support decimal(9, 2)" in str(flaws(**settings(strategy="zorder", sort_by=["id", "price"])))


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ({"orphan_age": "23h"}, "orphan_age", "must be 1d or more"),
        ({"orphan_age": "86399s"}, "orphan_age", "must be 1d or more"),
        ({"snapshot_age": "8d", "staging_retention": "7d"}, "staging_retention", "at least snapshot_age"),
        ({"snapshot_age": 5}, "snapshot_age", "is not a duration"),
        ({"target_file_size": 1000}, "target_file_size", "1048576"),
        ({"min_input_files": 1}, "min_input_files", "2"),
        ({"delete_ratio": 0}, "delete_ratio", "0"),
        ({"min_snapshots": 0}, "min_snapshots", "1"),
        ({"orphan_days": 3}, "orphan_days", "did you mean 'orphan_age'"),
        ({"strategy": "z-order"}, "strategy", "zorder"),
        ({"sort_by": ["id"]}, "sort_by", "strategy binpack does not sort"),
        ({"strategy": "sort"}, "sort_by", "needs the columns to sort by"),
        ({"strategy": "zorder", "sort_by": ["id"]}, "sort_by", "needs at least two columns"),
        ({"strategy": "sort", "sort_by": ["id desc"]}, "sort_by.0", "is not a name"),
        ({"rewrite_after": 0}, "rewrite_after", "is not a duration"),
    ],
)
def test_maintenance_that_would_harm_is_refused(given, field, says):
    found = flaws(maintenance=given)
    assert says in found[f"maintenance.{field}"]
