"""Drafts of contracts from sampled records: what is inferred, that it passes the checks, and that names stay data."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sluice.contract import folder as contract_folder
from sluice.contract.contract import Contract
from sluice.contract.document import read_document
from sluice.draft.draft import Wishes, make_draft
from sluice.draft.sample import Sample, SampledRecord
from sluice.draft.text import as_yaml, comment
from sluice.embedded.home import REPOSITORY
from sluice.errors import ConfigError
from sluice.kafka.registry import WriterSchema

pytestmark = pytest.mark.unit
EDITORS = Draft202012Validator(json.loads((REPOSITORY / "include/sluice/contract/schemas/contract.json").read_text()))
NO_REGISTRY: dict[int, WriterSchema | None] = {}
WISHES = Wishes("shop.orders", "shop", "me")
DEBEZIUM = REPOSITORY / "tests/data/debezium"


def record(value: Any, key: bytes | None = None, millis: int | None = None) -> SampledRecord:
    return SampledRecord(key, None if value is None else json.dumps(value).encode(), millis)


def sample(*values: Any, key: Any = None, compacted: bool = False) -> Sample:
    records = tuple(record(each, key(each) if key else None) for each in values)
    return Sample("shop.orders", records, compacted)


def draft(sampled: Sample, wishes: Wishes = WISHES, newest: WriterSchema | None = None) -> tuple[Contract, str]:
    """The contract, as the checks read it, and its text."""
    text = as_yaml(make_draft(sampled, wishes, lambda _: NO_REGISTRY, newest))
    return loaded(text), text


def loaded(text: str) -> Contract:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        file = Path(folder) / "t.yaml"
        file.write_text(text, encoding="utf-8")
        assert list(EDITORS.iter_errors(read_document(file, "t.yaml").data)) == []
        found = contract_folder.load_contracts(Path(folder))
        return next(iter(found.tables.values()))


def columns(contract: Contract) -> dict[str, str]:
    return {c.name: str(c.type) for c in contract.columns}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, None], "long"),
        ([2**63], "decimal(38, 0)"),
        ([10**40], "string"),
        ([1, 1.5], "double"),
        ([True, False], "boolean"),
        ([True, 1], "string"),
        (["a", 1], "string"),
        (["2024-01-31", "2024-02-29"], "date"),
        (["2024-01-31", "2024-02-30"], "string"),
        (["2024-01-31T10:00:00"], "timestamp"),
        (["2024-01-31T10:00:00Z", "2024-01-31T10:00:00.123456+01:00"], "timestamptz"),
        (["2024-01-31T10:00:00Z", ""], "string"),
        (["12.50", "0.99"], "decimal(18, 2)"),
        (["12345678901234567890.50"], "decimal(38, 2)"),
        (["01234", "12345"], "string"),
        (["123", "456"], "string"),
        ([None], "string"),
        ([[1, 2], []], "list<long>"),
        ([[]], "list<string>"),
        ([[{"a": 1, "b": "x"}]], "list<struct<a: long, b: string>>"),
        ([[{"a b": 1}]], "list<string>"),
        ([{}], "map<string, string>"),
        ([{f"k{i}": i} for i in range(50)], "map<string, long>"),
        (["bdf3a7a0-1f3c-4b1e-9a63-0e0e4c6a4f10"], "string"),
    ],
)
def test_types_of_json_without_a_schema(values: list[Any], kind: str):
    contract, _ = draft(sample(*({"v": each, "id": i} for i, each in enumerate(values))))
    assert columns(contract)["v"] == kind


@pytest.mark.parametrize(
    ("name", "value", "kind", "expression"),
    [
        ("created_at", 1_700_000_000, "timestamptz", None),
        ("createdAt", 1_700_000_000_000, "timestamptz", "timestamp_millis(createdAt_ms)"),
        ("ts", 1_700_000_000_000_000, "timestamptz", "timestamp_micros(ts_us)"),
        ("time", 1_700_000_000_000_000_000, "timestamptz", "timestamp_micros(time_ns div 1000)"),
        ("customer", 1_700_000_000_000, "long", None),
        ("created_at", 17, "long", None),
    ],
)
def test_whole_numbers_are_times_by_name_and_size(name: str, value: int, kind: str, expression: str | None):
    contract, _ = draft(sample({name: value}))
    assert (str(contract.column(name).type), contract.column(name).expression) == (kind, expression)


def test_objects_become_columns_or_structs():
    value = {"id": 1, "customer": {"id": 2, "address": {"city": "x"}}, "log.level": "info"}
    flat, _ = draft(sample(value))
    assert {c.name: c.source for c in flat.columns} == {
        "id": "id",
        "customer_id": "customer.id",
        "customer_address_city": "customer.address.city",
        "log_level": "`log.level`",
    }
    structs, _ = draft(sample(value), Wishes("shop.orders", "shop", "me", nested=True))
    assert columns(structs)["customer"] == "struct<id: long, address: struct<city: string>>"


def test_evidence_counts_and_shows_no_value():
    values = [{"email": f"u{i}@example.org", "note": "secret-note" if i else None} for i in range(10)]
    _, text = draft(sample(*values))
    assert "null or missing in 1 of 10 records" in text
    assert "10 of 10 values look like an e-mail address" in text
    assert "# - {name: email, type: string, mask: sha256}" in text
    assert "example.org" not in text and "secret-note" not in text


def uncommented(text: str, *lines: str) -> str:
    for line in lines:
        assert f"# {line}\n" in text
        text = text.replace(f"# {line}\n", f"{line}\n")
    return text


def test_a_commented_mask_is_valid_in_place_of_its_line():
    _, text = draft(sample({"email": "a@example.org", "id": 1}))
    masked = [line for line in text.splitlines(keepends=True) if not line.startswith("  - {name: email")]
    contract = loaded("".join(masked).replace("  # - {name: email", "  - {name: email"))
    assert contract.column("email").mask == "sha256"


def test_keys_without_deletes_are_an_offer_to_upsert():
    contract, text = draft(sample({"id": 7, "n": 1}, {"id": 8, "n": 1}, key=lambda v: str(v["id"]).encode()))
    assert contract.mode == "append"
    assert (contract.column("id").source, str(contract.column("id").type)) == ("$key", "long")
    offered = text.replace("mode: append", "# was").replace("partition_by", "# was")
    upsert = loaded(uncommented(offered, "mode: upsert", "identifier: [id]"))
    assert upsert.identifier == ("id",)
    assert "Remove partition_by then: a merge looks for its keys in all partitions" in text


@pytest.mark.parametrize(
    ("keys", "whole"),
    [(("1", "-20", "9223372036854775807"), True), (("1", "02"), False), (("1", "9223372036854775808"), False)],
)
def test_keys_that_are_whole_numbers_stay_text_and_say_so(keys: tuple[str, ...], whole: bool):
    records = tuple(record({"n": 1}, key.encode()) for key in keys)
    contract, text = draft(Sample("shop.orders", records, compacted=True))
    assert str(contract.column("key").type) == "string"
    line = next(line for line in text.splitlines() if "name: key" in line)
    assert (f"text; all {len(keys)} keys of the sample are whole numbers, so type: long would" in line) is whole
    assert str(loaded(text.replace("{name: key, type: string", "{name: key, type: long")).column("key").type) == "long"
    assert "Note: there is no partition_by: a merge looks for its keys in all partitions" in text


def test_times_without_a_zone_say_how_they_are_read():
    times = [{"plain": "2024-01-31T10:00:00", "some": f"2024-01-31T10:00:00{zone}"} for zone in ("", "Z")]
    contract, text = draft(sample(*times))
    assert {"plain": "timestamp", "some": "timestamptz"}.items() <= columns(contract).items()
    plain, some = (next(line for line in text.splitlines() if f"name: {name}," in line) for name in ("plain", "some"))
    assert "without a time zone; type: timestamptz reads them as UTC" in plain
    assert "those without a time zone are read as UTC" in some


@pytest.mark.parametrize("compacted", [True, False])
def test_tombstones_or_compaction_make_an_upsert(compacted: bool):
    values = [{"id": "a", "updated_at": "2024-01-31T10:00:00Z"}, {"id": "b", "updated_at": "2024-01-31T10:00:00Z"}]
    records = [record(each, each["id"].encode()) for each in values]
    if not compacted:
        records.append(record(None, b"a"))
    contract, text = draft(Sample("shop.orders", tuple(records), compacted))
    assert (contract.mode, contract.identifier, contract.column("id").source) == ("upsert", ("id",), "$key")
    assert contract.tombstone_column == "id"
    assert ("the topic is compacted" in text) is compacted


def test_objects_as_keys():
    records = (record({"n": 1}, b'{"a": 1, "b": "x"}'), record(None, b'{"a": 1, "b": "x"}'))
    contract, _ = draft(Sample("shop.orders", records))
    assert (contract.key.format, contract.identifier) == ("json", ("a", "b"))
    assert [contract.column(name).source for name in ("a", "b")] == ["$key.a", "$key.b"]


@pytest.mark.parametrize(
    ("key", "form", "kind"),
    [
        (b"\x00\x00\x00\x00\x00\x00\x00\x07", "long", "long"),
        (b"\x00\x00\x00\x07", "int", "int"),
        (b'"k"', "json", "string"),
    ],
)
def test_other_keys(key: bytes, form: str, kind: str):
    contract, _ = draft(Sample("shop.orders", (record({"n": 1}, key), record(None, key))))
    assert (contract.key.format, columns(contract)["key"]) == (form, kind)


@pytest.mark.parametrize(("raw", "form"), [(b"some text", "string"), (b"\xff\xfe\x00", "bytes"), (b"[1, 2]", "json")])
def test_values_without_fields(raw: bytes, form: str):
    contract, _ = draft(Sample("shop.orders", (SampledRecord(None, raw),)))
    assert (contract.value.format, contract.columns[0].source) == (form, "$value")


def test_an_empty_topic_without_a_schema_is_refused():
    with pytest.raises(ConfigError, match="no records with a value"):
        draft(Sample("shop.orders", ()))
    with pytest.raises(ConfigError, match="has a field that can become a column"):
        draft(sample({}))


def test_framed_values_need_a_registry():
    def lookup(_: list[int]) -> dict[int, WriterSchema | None]:
        raise ConfigError("no registry")

    with pytest.raises(ConfigError, match="no registry"):
        make_draft(Sample("t", (SampledRecord(None, b"\x00\x00\x00\x00\x01abc"),)), WISHES, lookup)


def debezium(file: str) -> Sample:
    lines = [json.loads(line) for line in (DEBEZIUM / file).read_text().splitlines()]
    records = (SampledRecord(*(r[part] and r[part].encode() for part in ("key", "value"))) for r in lines)
    return Sample("shop.public.parcel", tuple(records))


@pytest.mark.parametrize(
    ("file", "value_format", "cdc"),
    [
        ("envelope.jsonl", "json", "debezium"),
        ("envelope_with_schema.jsonl", "json_connect", "debezium"),
        ("unwrapped_both.jsonl", "json", "debezium_unwrapped"),
        ("unwrapped_tombstone.jsonl", "json", "debezium_unwrapped"),
    ],
)
def test_change_events_of_debezium(file: str, value_format: str, cdc: str):
    contract, _ = draft(debezium(file))
    assert contract.cdc is not None
    assert (contract.value.format, contract.cdc.format, contract.mode) == (value_format, cdc, "upsert")
    assert (contract.identifier, contract.order) == (("depot", "number"), ())
    kinds = columns(contract)
    assert (kinds["depot"], kinds["number"], kinds["sent"]) == ("string", "long", "timestamptz")


def test_change_events_of_mongodb():
    row = {"_id": {"$oid": "64b"}, "city": "x", "total": {"$numberLong": "5"}, "at": {"$date": 1_700_000_000_000}}
    event = {"before": None, "after": json.dumps(row), "source": {"connector": "mongodb"}, "op": "c"}
    contract, _ = draft(sample(event, key=lambda _: b'{"id": "{\\"$oid\\": \\"64b\\"}"}'))
    assert contract.cdc is not None
    assert (contract.cdc.format, contract.identifier) == ("debezium_mongodb", ("id",))
    assert contract.column("id").source == "$key.id"
    expressions = {c.name: c.expression for c in contract.columns if c.expression}
    assert expressions == {"total": "CAST(total_text AS BIGINT)", "at": "timestamp_millis(at_ms)"}


def test_a_compacted_topic_of_change_events_deletes_by_tombstones():
    found = debezium("envelope.jsonl")
    contract, _ = draft(Sample(found.topic, found.records, compacted=True))
    assert contract.cdc is not None
    assert contract.cdc.tombstones == "delete"
    assert contract.key_names_rows


def test_connect_schemas_give_the_types():
    fields = [
        {"type": "int64", "optional": False, "field": "id"},
        {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2"},
            "field": "price",
        },
        {"type": "int32", "name": "org.apache.kafka.connect.data.Date", "field": "day"},
        {"type": "array", "items": {"type": "string"}, "field": "tags"},
        {"type": "struct", "fields": [{"type": "int32", "field": "n"}], "field": "inner"},
    ]
    payload = {"id": 1, "price": "BNI=", "day": 19000, "tags": ["a"], "inner": {"n": 1}}
    contract, _ = draft(sample({"schema": {"type": "struct", "fields": fields}, "payload": payload}))
    assert contract.value.format == "json_connect"
    assert columns(contract) == {
        "id": "long", "price": "decimal(38, 2)", "day": "date", "tags": "list<string>", "inner": "struct<n: int>",
    }  # fmt: skip


def test_numbers_that_count_time_have_units():
    names = {"opens": "io.debezium.time.Time", "ends": "io.debezium.time.MicroTime"}
    kinds = {"opens": ("int", "int32"), "ends": ("long", "int64")}
    avro = [{"name": n, "type": {"type": kinds[n][0], "connect.name": name}} for n, name in names.items()]
    row = {"type": "record", "name": "Row", "fields": [*avro, {"name": "n", "type": "long"}]}
    parts = [{"name": "op", "type": "string"}, {"name": "source", "type": {**row, "name": "S"}}]
    event = {"type": "record", "name": "E", "fields": [*parts, {"name": "after", "type": ["null", row]}]}
    for schema in (row, event):
        contract, _ = draft(Sample("shop.orders", ()), newest=WriterSchema(1, "AVRO", json.dumps(schema)))
        assert {c.name: c.unit for c in contract.columns if c.unit} == {"opens": "millis", "ends": "micros"}

    embedded = [{"type": kinds[n][1], "name": name, "field": n} for n, name in names.items()]
    whole = {"schema": {"type": "struct", "fields": embedded}, "payload": {"opens": 5, "ends": 5000}}
    contract, _ = draft(sample(whole, key=lambda _: json.dumps(whole).encode()))
    assert (contract.key.format, contract.value.format) == ("json_connect", "json_connect")
    assert {c.source: c.unit for c in contract.columns} == {"$key.opens": "millis", "$key.ends": "micros"}


def test_cloud_events():
    event = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.created"}
    event |= {"time": "2024-01-31T10:00:00Z", "data": {"order_id": 1, "note": None}}
    contract, text = draft(sample(event, {**event, "type": "order.paid"}))
    assert (contract.column("ce_type").source, contract.column("ce_time").source) == ("type", "time")
    assert contract.column("data_order_id").source == "data.order_id"
    assert str(contract.column("ce_specversion").type) == "string"
    assert "2 types of events" in text and contract.partition_by == ("day(ce_time)",)


def test_cloud_events_in_headers_are_named():
    records = (SampledRecord(None, b'{"n": 1}', headers=("ce_id", "ce_type", "ce_source")),)
    assert "CloudEvents in binary mode" in draft(Sample("shop.orders", records))[1]


def test_a_registered_schema_gives_its_columns_without_records():
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "odd", "type": ["int", "string"]}],
    }
    contract, text = draft(Sample("shop.orders", ()), newest=WriterSchema(1, "AVRO", json.dumps(schema)))
    assert (contract.value.format, columns(contract)) == ("avro", {"id": "long"})
    assert "the field odd is left out: it" in text
    auto = text.replace("columns:\n  - {name: id, type: long}\n", "")
    assert loaded(uncommented(auto, "columns: [auto]")).auto is not None


HOSTILE = [
    "a: b", "- x", "# c", "'", '"', "{a}", "[x", "&a", "*a", "!!python/object:os.system", "null", "08", "1e5", "~", "%",
    "@", "`", "\u2028x", "x\ny: 1", "\x85z", "\ufeff", "é" * 5, "no", "=",
]  # fmt: skip


def test_hostile_names_stay_data():
    contract, text = draft(sample({**dict.fromkeys(HOSTILE, 1), "nested": {f"{each}.z": 1 for each in HOSTILE}}))
    assert contract.table == "shop.orders" and contract.owner == "me"
    read = {c.source for c in contract.columns}
    assert {"08", "1e5", "null", "no", "a: b", "# c"} <= read
    assert yaml.safe_load(text).keys() <= {
        "table",
        "topic",
        "group",
        "owner",
        "mode",
        "value",
        "columns",
        "partition_by",
        "inputs",
    }


@given(st.text())
def test_no_text_ends_its_comment(text: str):
    assert len(comment(text).splitlines()) == 1
    assert yaml.safe_load(f"a: 1  {comment(text)}\nb: 2\n") == {"a": 1, "b": 2}


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**50), 10**50),
    st.floats(allow_nan=False),
    st.text(max_size=12),
    st.sampled_from([*HOSTILE, "2024-01-31", "2024-01-31T10:00:00Z", "12.50", "a@b.de", "007", ""]),
    st.datetimes().map(lambda each: each.isoformat()),
    st.decimals(allow_nan=False, allow_infinity=False).map(lambda each: format(each, "f")[:60]),
)
NAMES = st.one_of(
    st.sampled_from([*HOSTILE, "id", "ID", "a.b", "_deleted", "_kafka_offset", "$key", "created_at"]),
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(NAMES, each, max_size=4), max_leaves=12
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=6)
KEYS = st.one_of(
    st.none(),
    st.binary(max_size=9),
    st.text(max_size=5).map(str.encode),
    OBJECTS.map(lambda each: json.dumps(each).encode()),
)
RECORDS = st.tuples(KEYS, st.one_of(st.none(), OBJECTS, st.sampled_from(["text", [1]])))


@settings(max_examples=150, deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=8), st.booleans(), st.booleans())
def test_whatever_is_sampled_the_contract_passes_the_checks(
    found: list[tuple[Any, Any]], compacted: bool, nested: bool
):
    records = tuple(record(value, key, int(math.pow(2, i))) for i, (key, value) in enumerate(found))
    wishes = Wishes("shop.orders", "shop", "me", nested=nested)
    with suppress(ConfigError):  # no record has a value, or a field: tested by themselves
        contract, _ = draft(Sample("shop.orders", records, compacted), wishes)
        assert contract.table == "shop.orders"
