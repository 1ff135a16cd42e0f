"""Avro schemas are rewritten for Spark's Avro reader; tests/spark/formats/test_formats.py reads with them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from sluice.formats.avro_schema import NamedTypes, SchemaBuilder, parse_schema
from sluice.kafka.registry import WriterSchema

pytestmark = pytest.mark.unit

TYPES, FIELDS = 12, 4


def tree(number: int, met: set[int]) -> dict[str, Any]:
    """A record that refers to others, which are defined where they are met first, and refer to it."""
    met.add(number)
    fields = []
    for at in range(FIELDS):
        inner = (number * 7 + at + 1) % TYPES
        kind = f"T{inner}" if inner in met else tree(inner, met)
        fields.append({"name": f"f{at}", "type": ["null", kind]})
    return {"type": "record", "name": f"T{number}", "fields": fields}


def test_whether_a_type_holds_itself_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time it takes a walk along all types: of 80 that refer to one another those added up to a minute."""
    walks, original = Counter[str](), NamedTypes._reachable

    def reachable(names: NamedTypes, name: str) -> set[str]:
        walks[name] += 1
        return original(names, name)

    monkeypatch.setattr(NamedTypes, "_reachable", reachable)
    leaf = {"type": "record", "name": "Leaf", "fields": [{"name": "n", "type": "int"}]}
    fields = [{"name": "leaf", "type": leaf}, {"name": "tree", "type": tree(0, set())}]
    root, names = parse_schema(
        WriterSchema(1, "AVRO", json.dumps({"type": "record", "name": "Root", "fields": fields}))
    )
    assert SchemaBuilder(names).build(root)
    assert set(walks.values()) == {1}
    assert [each for each in names.types if not names.is_recursive(each)] == ["Root", "Leaf"]


def test_a_type_that_comes_later_may_close_a_loop() -> None:
    names = NamedTypes()
    names.add({"type": "record", "name": "A", "fields": [{"name": "b", "type": "B"}]})
    assert not names.is_recursive("A")
    names.add({"type": "record", "name": "B", "fields": [{"name": "a", "type": ["null", "A"]}]})
    assert names.is_recursive("A")
