"""What is remembered of the registry's answers; through a real registry in tests/spark/test_registry.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice import registry
from sluice.registry import Registry
from tests.support.registries import Scripted, scripted

pytestmark = pytest.mark.unit

AVRO = {"schema": json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Scripted]:
    monkeypatch.setenv("SLUICE_SCHEMAS", str(tmp_path))
    monkeypatch.delenv("SLUICE_REGISTRY_CONFIG", raising=False)
    with scripted() as given:
        monkeypatch.setenv("SCHEMA_REGISTRY_URL", given.url)
        yield given


def known(number: int) -> bool:
    found = Registry().schemas([number])[number]
    return found is not None and not found.lacking


def test_within_an_attempt_an_id_has_one_answer(answers: Scripted) -> None:
    """Also where it is that there is none, or that what it refers to is lacking; whoever else asks, asks anew."""
    part = {"name": "t.P", "subject": "part", "version": 1}
    answers.schemas[2] = {"schemaType": "JSON", "schema": "{}", "references": [part]}
    with registry.held():
        assert [known(1), known(2)] == [False, False]
        answers.schemas[1] = AVRO
        answers.subjects["part"] = {"subject": "part", "version": 1, "id": 3, **AVRO}
        with ThreadPoolExecutor(1) as another:
            assert [another.submit(known, each).result() for each in (1, 2)] == [True, True]
        assert [known(1), known(2)] == [False, False]
    with registry.held():
        assert [known(1), known(2)] == [True, True]


def test_without_an_attempt_what_is_not_there_is_asked_for_each_time(answers: Scripted) -> None:
    assert [known(1), known(1), answers.count("/schemas/ids/1")] == [False, False, 2]
    answers.schemas[1] = AVRO
    assert [known(1), known(1), answers.count("/schemas/ids/1")] == [True, True, 3]
