"""Records that a draft was made of are read by it: none is quarantined."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.cli.contract import sample_test
from sluice.contract import folder as contract_folder
from sluice.draft.draft import Wishes, make_draft
from sluice.draft.sample import Sample, SampledRecord
from sluice.draft.text import as_yaml
from sluice.embedded.home import REPOSITORY
from tests.support.thorough import usual

DEBEZIUM = REPOSITORY / "tests/data/debezium"
TYPES = {
    "id": 1, "big": 2**63, "huge": 10**45, "mixed": [1, "a", {"b": 1.5}], "ratio": 0.1, "whole_or_not": 1, "flag": True,
    "day": "2024-02-29", "at": "2024-01-31T10:00:00.123456789+01:00", "local": "2024-01-31 10:00", "price": "12.50",
    "zip": "01234", "created_at": 1_700_000_000_000, "sent_ts": 1_700_000_000, "n": None, "empty": [], "none": {},
    "lines": [{"sku": "a", "qty": 1, "price": 1.5, "tags": ["x", None]}, {"sku": None, "more": {"a": [1]}}],
    "customer": {"id": "c", "address": {"zip": "1", "geo": [1.5, 2]}}, "log.level": "info", "host": {"cpu.load": 0.5},
    "odd name": 1, "größe": "l", "_deleted": 1, "2fa": False, "with`tick": 1, "quote\"'": 1, "a,b": {"c:d": 1},
    "weird_list": [{"a b": 1}, {"a b": None}], "deep": [[[1], []], None], "date": "2024-01-31", "group": "x",
    "attributes": {f"k{i}": i for i in range(30)}, "nan": "NaN", "text": "2024-01-31T10:00:00Z or so",
}  # fmt: skip
OTHER = {
    "id": 2, "big": -1, "huge": 1, "mixed": "text", "ratio": 5, "whole_or_not": 1.25e10, "day": None, "price": "0.05",
    "at": "2024-01-31T10:00Z", "local": "0001-01-01T00:00:00", "lines": [], "customer": None, "created_at": None,
    "attributes": {"other": 5}, "deep": [], "none": {}, "host": {},
}  # fmt: skip


def results(
    records: list[tuple[bytes | None, bytes | None]], spark: SparkSession, folder: Path, nested: bool = False
) -> Any:
    sampled = tuple(SampledRecord(key, value, 1_700_000_000_000 + i) for i, (key, value) in enumerate(records))
    text = as_yaml(make_draft(Sample("shop.t", sampled), Wishes("shop.t", "shop", "me", nested=nested), lambda _: {}))
    (folder / "t.yaml").write_text(text, encoding="utf-8")
    contract = contract_folder.load_contracts(folder).tables["shop.t"]
    raw = [sample_test._raw(0, i, 1_700_000_000_000 + i, *each, []) for i, each in enumerate(records)]
    found, _ = sample_test.evaluate_sample(contract, "shop.t", raw, spark)
    return contract, found


@pytest.mark.parametrize(
    ("nested", "tombstone"),
    usual([(False, True), (True, False)], [(nested, tomb) for nested in (False, True) for tomb in (False, True)]),
)
def test_json_of_every_type_is_read(spark: SparkSession, tmp_path: Path, nested: bool, tombstone: bool):
    values = [TYPES, OTHER, {**TYPES, "id": 3, "attributes": {f"x{i}": None for i in range(30)}}, {"id": 4}]
    records: list[tuple[bytes | None, bytes | None]] = [(str(v["id"]).encode(), json.dumps(v).encode()) for v in values]
    _, found = results(records + [(b"1", None)] * tombstone, spark, tmp_path, nested)
    assert [str(each) for each in found if each.error] == []
    assert [each.outcome for each in found] == ["row"] * 4 + ["deleted"] * tombstone
    row = json.loads(found[0].row)
    assert (row["id"], row["price"], row["created_at"]) == (1, 12.50, "2023-11-14T22:13:20.000000Z")
    assert row["sent_ts"] == "2023-11-14T22:13:20.000000Z"
    assert row["at"] == "2024-01-31T09:00:00.123456Z"
    assert row["mixed"] == '[1,"a",{"b":1.5}]'
    assert (row["customer"]["address"]["zip"] if nested else row["customer_address_zip"]) == "1"
    assert (row["log_level"], row["field_deleted"], row["field_2fa"]) == ("info", 1, False)
    assert row["lines"][1]["more"]["a"] == [1]


def random_field(chosen: random.Random) -> Callable[[], Any]:
    """A function that makes values as one field of a topic may have them."""
    scalars: list[Callable[[], Any]] = [
        lambda: chosen.randint(-(2**63), 2**63 - 1),
        lambda: chosen.randint(0, 10**37),
        lambda: chosen.uniform(-1e300, 1e300),
        lambda: round(chosen.uniform(0, 100), 2),
        lambda: chosen.choice([1, 2.5, 1e3, -0.0, 2**53 + 1]),
        lambda: chosen.random() < 0.5,
        lambda: f"{chosen.randint(1, 9999):04}-{chosen.randint(1, 12):02}-{chosen.randint(1, 28):02}",
        lambda: f"20{chosen.randint(10, 99)}-03-04T05:06:07.{chosen.randint(0, 10**9 - 1):09}+05:30",
        lambda: chosen.choice(["2024-01-31T10:00Z", "2024-01-31 10:00:00", "2024-01-31", "0001-01-02T00:00:00-18:00"]),
        lambda: f"{chosen.randint(-(10**9), 10**9)}.{chosen.randint(0, 99):02}",
        lambda: chosen.choice(["", "x", "NaN", "1e5", "null", "\u2028", "'", '"', "\\", "ü" * 20]),
        lambda: chosen.choice([1, "a", None, [], {}, [1], {"a": 1}, 1.5, True]),
        lambda: None,
    ]
    inner = chosen.choice(scalars)
    nested: list[Callable[[], Any]] = [
        lambda: [inner() for _ in range(chosen.randint(0, 3))],
        lambda: {"a": inner(), **({"b": [inner()]} if chosen.random() < 0.5 else {})},
        lambda: [{"a": inner(), "b c": 1}, None],
        lambda: [{"a": {"x": inner()}, "b": None} for _ in range(2)],
        lambda: {f"k{chosen.randint(0, 999)}": inner() for _ in range(3)},
    ]
    return chosen.choice([*scalars, *nested])


@pytest.mark.parametrize("seed", usual([1], [1, 2]))
def test_random_json_is_read(seed: int, spark: SparkSession, tmp_path: Path):
    chosen = random.Random(seed)
    fields = {f"f{i}": random_field(chosen) for i in range(60)}
    rows = [{name: make() for name, make in fields.items() if chosen.random() < 0.9} for _ in range(30)]
    _, found = results([(None, json.dumps(row).encode()) for row in rows], spark, tmp_path)
    assert [str(each)[:300] for each in found if each.error] == []


@pytest.mark.parametrize("file", sorted(each.stem for each in DEBEZIUM.glob("*.jsonl") if "avro" not in each.stem))
def test_change_events_are_read(file: str, spark: SparkSession, tmp_path: Path):
    lines = [json.loads(line) for line in (DEBEZIUM / f"{file}.jsonl").read_text().splitlines()]
    records = [tuple(line[part] and line[part].encode() for part in ("key", "value")) for line in lines]
    contract, found = results(records, spark, tmp_path)
    assert contract.mode == "upsert"
    # What the source did not send, and a truncate, are errors of the event, whatever the contract.
    assert {each.error for each in found} <= {None, "unavailable", "truncate"}
    assert {"row", "deleted"} <= {each.outcome for each in found}
