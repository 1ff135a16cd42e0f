"""Caching of registry answers; tests/spark/kafka/test_registry.py has a real registry."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from sluice.contract.contract import Contract
from sluice.errors import ConfigError, RegistryUnavailableError, SchemaIdReusedError
from sluice.kafka import registry, registry_errors
from sluice.kafka.registry import SchemaRegistry
from sluice.plan import warnings, writer_schema_warnings
from tests.support.services.registries import Answer, ScriptedRegistry, scripted_registry

pytestmark = pytest.mark.unit

AVRO = {"schema": json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ScriptedRegistry]:
    monkeypatch.setenv("SLUICE_SCHEMAS", str(tmp_path))
    monkeypatch.delenv("SLUICE_REGISTRY_CONFIG", raising=False)
    with scripted_registry() as given:
        monkeypatch.setenv("SCHEMA_REGISTRY_URL", given.url)
        yield given


def known(number: int) -> bool:
    found = SchemaRegistry().schemas([number])[number]
    return found is not None and not found.missing


def test_within_an_attempt_an_id_has_one_answer(answers: ScriptedRegistry) -> None:
    """Also where it is that there is none, or that what it refers to is lacking; whoever else asks, asks anew."""
    part = {"name": "t.P", "subject": "part", "version": 1}
    answers.schemas[2] = {"schemaType": "JSON", "schema": "{}", "references": [part]}
    with registry.pinned_answers():
        assert [known(1), known(2)] == [False, False]
        answers.schemas[1] = AVRO
        answers.subjects["part"] = {"subject": "part", "version": 1, "id": 3, **AVRO}
        with ThreadPoolExecutor(1) as another:
            assert [another.submit(known, each).result() for each in (1, 2)] == [True, True]
        assert [known(1), known(2)] == [False, False]
    with registry.pinned_answers():
        assert [known(1), known(2)] == [True, True]


def test_without_an_attempt_what_is_not_there_is_asked_for_each_time(answers: ScriptedRegistry) -> None:
    assert [known(1), known(1), answers.count("/schemas/ids/1")] == [False, False, 2]
    answers.schemas[1] = AVRO
    assert [known(1), known(1), answers.count("/schemas/ids/1")] == [True, True, 3]


def always(status: int, body: Any = "", **headers: str) -> Any:
    def answer(_: str) -> Answer:
        return status, body, headers

    return answer


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in another process: on disk alone schemas are still there."""
    for owner, name in ((registry, "_fetched"), (registry, "_clients"), (registry_errors, "_outages")):
        monkeypatch.setattr(owner, name, {})


SECRET = "token-of-the-sign-in"
NO_ANSWERS = ["", f"<html>{SECRET}</html>", [], "null", {}, {"status": SECRET}, {"schema": ""}, {"schema": {}}, 7]


@pytest.mark.parametrize("body", NO_ANSWERS, ids=str)
def test_what_is_no_answer_of_a_registry_is_never_kept(
    answers: ScriptedRegistry, body: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers.otherwise = always(200, body)
    for ask in (
        lambda: known(1),
        lambda: SchemaRegistry().newest("t-value"),
        lambda: SchemaRegistry().compatibility("t-value"),
    ):
        with pytest.raises(RegistryUnavailableError, match=f"at {answers.url} answered HTTP 200 without") as error:
            ask()
        assert SECRET not in str(error.value) and error.value.__cause__ is None
    assert list(tmp_path.rglob("*.json")) == []
    answers.otherwise, answers.schemas[1] = ScriptedRegistry().otherwise, AVRO
    assert known(1)
    forget(monkeypatch)
    answers.otherwise = always(200, body)
    assert known(1), "as it was fetched before"


def test_what_a_schema_refers_to_is_no_answer_either(answers: ScriptedRegistry) -> None:
    part = {"name": "t.P", "subject": "part", "version": 1}
    answers.schemas[2] = {"schemaType": "JSON", "schema": "{}", "references": [part]}
    answers.subjects["part"] = {"id": 3, "status": "maintenance"}
    with pytest.raises(RegistryUnavailableError, match="answered HTTP 200 without"):
        known(2)


def test_an_empty_text_that_was_kept_is_no_schema(answers: ScriptedRegistry, tmp_path: Path) -> None:
    answers.schemas[1] = AVRO
    assert known(1)
    (kept,) = tmp_path.rglob("1.json")
    kept.write_text(kept.read_text().replace(json.dumps(AVRO["schema"]), '""'))
    assert SchemaRegistry()._read_cached(1) is None


def test_an_answer_that_is_nested_too_deeply_is_no_answer_of_a_registry(answers: ScriptedRegistry) -> None:
    answers.otherwise = lambda _: (200, '{"schema": ' + "[" * 100_000, {"Content-Type": "application/json"})
    with pytest.raises(RegistryUnavailableError, match="without a registry's JSON"):
        SchemaRegistry().schemas([77])


def test_schemas_that_refer_to_each_other_are_followed_once(answers: ScriptedRegistry) -> None:
    part = {"name": "t.P", "subject": "part", "version": 1}
    answers.schemas[78] = {"schemaType": "JSON", "schema": "{}", "references": [part]}
    answers.subjects["part"] = {"subject": "part", "version": 1, "id": 3, **answers.schemas[78]}
    found = SchemaRegistry().schemas([78])[78]
    assert found is not None
    assert found.references == (("t.P", "{}"),)


def test_a_look_that_fails_stops_no_plan(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fails(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(writer_schema_warnings, "find_schema_risks", fails)
    about = {"table": "db.t", "topic": "t", "group": "g", "owner": "me", "columns": [{"name": "n", "type": "long"}]}
    assert warnings._schema_risks(Contract.model_validate(about), writer_schema_warnings.SubjectCache()) == []
    assert "db.t: the newest registered schema was not checked" in caplog.text


@pytest.mark.parametrize(
    ("status", "headers", "error", "said", "others"),
    [
        (
            301,
            {"Location": "https://sso.example/in?token=t"},
            ConfigError,
            "HTTP 301 .redirect to sso.example. when asked for",
            True,
        ),
        (302, {"Location": "/login"}, ConfigError, "HTTP 302 when asked for", True),
        (400, {}, ConfigError, "HTTP 400 when asked for", True),
        (422, {}, ConfigError, "HTTP 422 when asked for", True),
        (404, {}, ConfigError, "is not a schema registry", True),
        (403, {}, ConfigError, "rejects the login .HTTP 403", True),
        (500, {}, RegistryUnavailableError, "HTTP 500 when asked for", True),
        (200, {}, RegistryUnavailableError, "HTTP 200 without", True),
        (429, {}, RegistryUnavailableError, "HTTP 429 when asked for", False),
        (503, {}, RegistryUnavailableError, "HTTP 503 when asked for", False),
    ],
)
def test_an_error_about_one_subject_stops_no_other(
    answers: ScriptedRegistry,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    headers: Any,
    error: Any,
    said: str,
    others: bool,
) -> None:
    """But where whoever asks would hear the same."""
    monkeypatch.setattr(registry, "RETRIES", 0)
    answers.subjects["good-value"] = {"subject": "good-value", "version": 1, "id": 5, **AVRO}
    answers.otherwise = lambda path: (status, "", headers) if "bad" in path else None
    with pytest.raises(error, match=said) as told:
        SchemaRegistry().newest("bad-value")
    assert "subject bad-value" in str(told.value) or status in (403, 404)
    assert "token=t" not in str(told.value)
    if others:
        assert SchemaRegistry().newest("good-value")
        return
    before = len(answers.asked)
    with pytest.raises(RegistryUnavailableError, match=f"HTTP {status} less than .* of subject good-value yet"):
        SchemaRegistry().newest("good-value")
    assert len(answers.asked) == before
    monkeypatch.setattr(registry_errors, "RETRY_INTERVAL_S", 0)
    assert SchemaRegistry().newest("good-value")


def test_a_registry_that_is_silent_is_waited_for_once(
    answers: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schemas that were fetched before come from disk meanwhile, others fail at once; then it is asked again."""
    answers.schemas = dict.fromkeys(range(1, 6), AVRO)
    assert all(map(known, range(1, 5)))
    forget(monkeypatch)
    monkeypatch.setattr(registry, "RETRIES", 0)
    monkeypatch.setattr(registry, "TIMEOUT_S", 0.2)
    answers.otherwise = lambda _: time.sleep(0.6)  # type: ignore[func-returns-value]
    before = len(answers.asked)
    assert all(map(known, range(1, 5)))
    assert len(answers.asked) == before + 1
    answers.otherwise = lambda _: None
    with pytest.raises(
        RegistryUnavailableError, match="did not answer less than 30 s ago; Sluice does not ask it for schema 5 yet"
    ):
        known(5)
    with pytest.raises(RegistryUnavailableError, match="did not answer less than 30 s ago"):
        SchemaRegistry().newest("t-value")
    assert len(answers.asked) == before + 1
    monkeypatch.setattr(registry_errors, "RETRY_INTERVAL_S", 0)
    assert known(5)


def test_one_that_is_overloaded_is_asked_for_the_next_id(
    answers: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "RETRIES", 0)
    answers.schemas[2] = AVRO
    answers.otherwise = lambda path: (503, "", {}) if path.endswith("/1") else None
    with pytest.raises(RegistryUnavailableError, match="HTTP 503"):
        known(1)
    assert known(2)


@pytest.mark.parametrize(
    ("status", "body", "served"),
    [
        (404, "<html>no such page</html>", True),
        (404, {}, True),
        (302, "", True),
        (404, {"error_code": 404, "message": "HTTP 404 Not Found"}, False),
        (403, "", False),
    ],
)
def test_what_is_not_the_registrys_own_refusal_is_no_word_about_a_schema(
    answers: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch, status: int, body: Any, served: bool
) -> None:
    """As a proxy answers while the registry behind it is made anew: what is kept goes on, the rest is as it was."""
    answers.schemas[1] = AVRO
    assert known(1)
    forget(monkeypatch)
    answers.otherwise = always(status, body)
    for number, goes_on in ((1, served), (2, False)):
        with nullcontext() if goes_on else pytest.raises(ConfigError):
            assert known(number)


OTHER = {"schema": json.dumps({"type": "record", "name": "R", "fields": [{"name": "m", "type": "long"}]})}


def test_an_id_that_a_rebuilt_registry_reuses_is_refused(
    answers: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The old schema then serves no new records while the registry is away, and the restored registry is accepted."""
    answers.schemas[1] = AVRO
    assert known(1)
    answers.schemas[1] = {"schema": json.dumps(json.loads(AVRO["schema"]), indent=3)}
    forget(monkeypatch)
    assert known(1), "formatted otherwise"
    answers.schemas[1] = OTHER
    for _ in range(2):
        forget(monkeypatch)
        with pytest.raises(SchemaIdReusedError, match=f"registry at {answers.url} returns another") as error:
            known(1)
        (kept,) = tmp_path.rglob("*.json")
        assert f"delete {kept} on this machine" in error.value.next_step
        assert "DELETE FROM sluice.writer_schemas WHERE topic = '<topic>' AND schema_id = 1" in error.value.next_step
        assert error.value.fields == {"schema_id": 1, "topic": None}
    forget(monkeypatch)
    answers.otherwise = always(500)
    monkeypatch.setattr(registry, "RETRIES", 0)
    with pytest.raises(RegistryUnavailableError):
        known(1)
    answers.otherwise, answers.schemas[1] = ScriptedRegistry().otherwise, AVRO
    assert known(1)
    forget(monkeypatch)
    answers.otherwise = always(500)
    assert known(1), "restored"


def test_a_reused_id_is_accepted_by_deleting_the_kept_schema(
    answers: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers.schemas[1] = AVRO
    assert known(1)
    answers.schemas[1] = OTHER
    forget(monkeypatch)
    with pytest.raises(SchemaIdReusedError):
        known(1)
    (kept,) = tmp_path.rglob("*.json")
    kept.unlink()
    assert SchemaRegistry().schemas([1])[1].text == OTHER["schema"]  # type: ignore[union-attr]


def test_a_reference_that_was_reused_is_refused(answers: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    part = {"name": "t.P", "subject": "part", "version": 1}
    answers.schemas[2] = {"schemaType": "JSON", "schema": "{}", "references": [part]}
    answers.subjects["part"] = {"subject": "part", "version": 1, "id": 3, "schema": '{"type": "string"}'}
    assert known(2)
    answers.subjects["part"]["schema"] = '{"type": "integer"}'
    forget(monkeypatch)
    with pytest.raises(SchemaIdReusedError):
        known(2)


def test_references_that_were_deleted_and_inlined_are_no_reuse(
    answers: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In either direction: Apicurio inlines them once they are deleted, and they may be registered again."""
    part = {"name": "t.P", "subject": "part", "version": 1}
    answers.schemas[2] = {"schema": '{"type": "t.P"}', "references": [part]}
    there = {"subject": "part", "version": 1, "id": 3, "schema": '"long"'}
    plain = SchemaRegistry._ask

    def ask(self: SchemaRegistry, what: str, absent: Any, call: Any) -> Any:
        found = plain(self, what, absent, call)
        inlines = what == "schema 2" and not isinstance(found, registry.WriterSchema)
        return type(found)('{"type": "long"}', "AVRO") if inlines else found

    monkeypatch.setattr(SchemaRegistry, "_ask", ask)
    for subjects, text in (({"part": there}, "t.P"), ({}, "long"), ({}, "long"), ({"part": there}, "t.P")):
        answers.subjects = subjects
        forget(monkeypatch)
        found = SchemaRegistry().schemas([2])[2]
        assert found and json.loads(found.text) == {"type": text} and not found.missing


def test_the_pinned_schemas_are_those_of_the_attempt(answers: ScriptedRegistry) -> None:
    assert registry.pinned_schemas() == []
    answers.schemas[1] = AVRO
    known(1)
    part = {"name": "t.P", "subject": "part", "version": 1}
    answers.schemas[2] = {"schemaType": "JSON", "schema": "{}", "references": [part]}
    with registry.pinned_answers():
        assert registry.pinned_schemas() == []
        assert [known(1), known(2), known(3)] == [True, False, False]
        assert [each.id for each in registry.pinned_schemas()] == [1], "nothing is read with the others"
