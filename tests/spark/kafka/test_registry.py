"""A schema registry with TLS and a password: requests, retries, caching and error messages."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference
from pyspark.sql import SparkSession

from sluice.embedded.schema_registry import EmbeddedRegistry
from sluice.errors import ConfigError, SchemaIdReusedError
from sluice.formats.internal_columns import DETAIL, ERROR
from sluice.ingest import quarantine, run
from sluice.kafka import registry as registries
from sluice.kafka.registry import SchemaRegistry as Schemas
from sluice.ledger.slices import Origin
from sluice.status import readiness
from tests.spark.formats.test_formats import avro, framed, name, read, record
from tests.support import runbook
from tests.support.airflow_process import isolated_airflow_env
from tests.support.backfills import backfill_request, run_backfill
from tests.support.lake import Lake
from tests.support.services.registries import Answer, ScriptedRegistry, registry_client, scripted_registry
from tests.support.services.servers import HOST
from tests.support.services.tls_proxy import TlsProxy, make_ca

pytestmark = pytest.mark.spark

USER, PASSWORD, WRONG = "sluice", "p@ss:w/rd-of-the-registry", "another-that-is-wrong"
AIRFLOW = """
import json, logging, os, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, force=True)
from sluice_airflow.connections import export_registry_config
from sluice.kafka.registry import SchemaRegistry
said = []
for connection in json.loads(sys.argv[1]):
    os.environ["AIRFLOW_CONN_SLUICE_REGISTRY"] = json.dumps(connection)
    export_registry_config()
    try:
        said.append(SchemaRegistry().newest(sys.argv[2]).text)
    except Exception as error:
        logging.exception("as a task's log has it")
        said.append(f"{type(error).__name__}: {error}")
print(json.dumps(said))
"""


@pytest.fixture
def cas(tmp_path: Path) -> dict[str, tuple[Path, Path]]:
    return {each: make_ca(tmp_path, each) for each in ("known", "unknown")}


def test_tls_and_a_password(
    spark: SparkSession,
    registry: EmbeddedRegistry,
    cas: dict[str, tuple[Path, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By variables, by user and password in the URL, by the Airflow connection; never with a secret in a log."""
    client = registry_client(registry)
    value = avro(client, record(n="long"), {"n": 7})
    subject, text = name(), json.dumps(record(n="long"))
    client.register_schema(subject, Schema(text, "AVRO"))
    caplog.set_level(logging.DEBUG)
    ca, certificate = cas["known"]
    with TlsProxy(registry.port, certificate, USER, PASSWORD) as front:
        url = f"https://{HOST}:{front.port}/apis/ccompat/v7"
        monkeypatch.setenv("SCHEMA_REGISTRY_URL", url)
        monkeypatch.setenv("SCHEMA_REGISTRY_SSL_CA_LOCATION", str(ca))
        monkeypatch.setenv("SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO", f"{USER}:{PASSWORD}")
        assert [row["n"] for row in read(spark, [(None, value)], [{"name": "n", "type": "long"}], value="avro")] == [7]
        assert front.asked, "it was this registry that answered"

        quoted = PASSWORD.replace("@", "%40").replace("/", "%2F").replace(":", "%3A")
        within = Schemas({"url": url.replace("//", f"//{USER}:{quoted}@"), "ssl.ca.location": str(ca)})
        newest = within.newest(subject)
        assert newest and json.loads(newest.text) == json.loads(text)

        failures: dict[str, dict[str, Any]] = {
            r"rejects the login \(HTTP 401\).*password.*sluice_registry": {"basic.auth.user.info": f"{USER}:{WRONG}"},
            r"not trusted: .*issuer.*ssl.ca.location.*sluice_registry": {"ssl.ca.location": str(cas["unknown"][0])},
            r"unusable: a certificate.*sluice_registry": {"ssl.ca.location": str(tmp_path / "none.pem")},
            r"set twice": {"url": url.replace("//", f"//{USER}:{WRONG}@")},
        }
        whole = {"url": url, "ssl.ca.location": str(ca), "basic.auth.user.info": f"{USER}:{PASSWORD}"}
        for words, wrong in failures.items():
            with pytest.raises(ConfigError, match=words) as error:
                Schemas({**whole, **wrong}).newest(subject)
            caplog.handler.handle(logging.makeLogRecord({"msg": "", "exc_info": error._excinfo}))

        place = {"conn_type": "http", "schema": "https", "host": f"{HOST}/apis/ccompat/v7", "port": front.port}
        good = {**place, "login": USER, "password": PASSWORD, "extra": {"ssl.ca.location": str(ca)}}
        tried = [good, {**good, "password": WRONG}, {**good, "extra": {"ssl.ca.location": str(cas["unknown"][0])}}]
        done = subprocess.run(
            [sys.executable, "-c", AIRFLOW, json.dumps(tried), subject],
            env=isolated_airflow_env(tmp_path),
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    schema, refused, untrusted = json.loads(done.stdout.splitlines()[-1])
    assert json.loads(schema) == json.loads(text)
    assert refused.startswith("ConfigError: The schema registry rejects the login (HTTP 401)"), refused
    assert "not trusted" in untrusted and "sluice_registry" in untrusted, untrusted
    assert "HTTP Request: GET https" in caplog.text, "URLs are logged"
    for secret in (PASSWORD, quoted, WRONG):
        assert secret not in done.stdout + done.stderr + caplog.text


def test_the_newest_schema_is_asked_for_again_and_an_id_never(
    registry: EmbeddedRegistry, cas: dict[str, tuple[Path, Path]]
) -> None:
    client = registry_client(registry)
    subject = name()
    first = client.register_schema(subject, Schema(json.dumps(record(a=["null", "int"])), "AVRO"))
    ca, certificate = cas["known"]
    with TlsProxy(registry.port, certificate, USER, PASSWORD) as front:
        settings = {
            "url": f"https://{HOST}:{front.port}/apis/ccompat/v7",
            "ssl.ca.location": str(ca),
            "basic.auth.user.info": f"{USER}:{PASSWORD}",
            "cache.latest.ttl.sec": 1,
        }

        def newest() -> int | None:
            found = Schemas(settings).newest(subject)  # another object, as another table has it
            return found and found.id

        began = time.monotonic()
        assert newest() == first
        second = client.register_schema(subject, Schema(json.dumps(record(b=["null", "int"])), "AVRO"))
        again = newest()
        assert again == first or time.monotonic() - began > 1
        asked = len(front.asked)
        time.sleep(max(0.0, began + 1.1 - time.monotonic()))
        while newest() != second:
            assert time.monotonic() - began < 10
            time.sleep(0.1)
        assert len(front.asked) > asked

        unknown = 900_000 + int(time.time()) % 90_000
        for _ in range(2):
            before = len(front.asked)
            assert Schemas(settings).schemas([first, unknown])[unknown] is None
            assert any(str(unknown) in path for path in front.asked[before:]), "what is not there may come"
        assert sum(path.split("?")[0].endswith(f"/schemas/ids/{first}") for path in front.asked) == 1


def test_what_a_schema_refers_to_may_be_deleted(spark: SparkSession, registry: EmbeddedRegistry) -> None:
    """By soft deletion, of a version and of a whole subject, after the schemas that refer to it; the records remain."""
    client = registry_client(registry)

    def deleted(kind: str, part: str, whole: str, called: str, *, later: str = "") -> int:
        """The id of a schema after it was deleted, and then what it refers to: but for a later version."""
        inner, outer = name(), name()
        client.register_schema(inner, Schema(part, kind))
        if later:
            client.register_schema(inner, Schema(later, kind))
        number = client.register_schema(outer, Schema(whole, kind, [SchemaReference(called, inner, 1)]))
        client.delete_version(outer, 1)
        client.delete_version(inner, 1)
        return number

    types = [json.dumps({**record(n="long", **more), "name": "Part"}) for more in ({}, {"m": ["null", "long"]})]
    avro_schema = json.dumps(record(p="t.Part"))
    texts = [f'syntax = "proto3"; package t; message Part {{ int64 n = 1; {more} }}' for more in ("", "int64 m = 2;")]
    protobuf_schema = 'syntax = "proto3"; package t; import "part.proto"; message R { Part p = 1; }'
    tried = [
        ("avro", b"\x0e", "AVRO", types, avro_schema, "t.Part"),
        ("protobuf", b"\0\n\2\b\7", "PROTOBUF", texts, protobuf_schema, "part.proto"),
    ]
    for form, payload, kind, (part, later), whole, called in tried:
        version = deleted(kind, part, whole, called, later=later)
        subject = deleted(kind, part, whole, called)
        written = [(None, framed(number, payload)) for number in (version, subject)]
        rows = read(spark, written, [{"name": "n", "type": "long", "source": "p.n"}], value=form)
        assert (rows[0]["n"], rows[0][DETAIL]) == (7, None)
        if form == "avro":  # which the registry gives with what was deleted in it
            assert (rows[1]["n"], rows[1][DETAIL]) == (7, None)
        else:
            assert rows[1][ERROR] == "malformed"
            assert re.search(f"schema {subject}: .* version 1 of subject 's-.*no longer has", rows[1][DETAIL])


def test_the_scorecard_tells_what_new_schemas_are_held_against(
    lake: Callable[..., Lake], registry: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    it.create_topic(1)
    table = it.contract(value={"format": "avro"})
    plain = it.contract()
    client, subject = registry_client(registry), f"{it.topic}-value"
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", registry.url)

    def told(name: str = table) -> readiness.ReadinessCheck | None:
        lines = readiness.check_table(it.contract_of(name), it.contracts, it.catalog)
        return next((line for line in lines if line.subject == "Compatibility"), None)

    assert told(plain) is None
    line = told()
    assert line and line.ready is None and line.evidence == "no schema is registered"
    client.register_schema(subject, Schema(json.dumps(record(n="long")), "AVRO"))
    client.set_compatibility(subject, "BACKWARD")
    line = told()
    assert line and line.ready and line.evidence == f"{subject}: BACKWARD" and not line.step
    client.set_compatibility(subject, "NONE")
    line = told()
    assert line and line.ready is False and line.evidence == f"{subject}: NONE" and line.step
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", "http://127.0.0.1:9/apis")
    line = told()
    assert line and line.ready is None and "did not answer" in line.evidence


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ScriptedRegistry]:
    """A registry that knows schema 1, and comes to know schema 2: see `lags`."""
    monkeypatch.setenv("SLUICE_SCHEMAS", str(tmp_path / "kept"))
    with scripted_registry() as given:
        monkeypatch.setenv("SCHEMA_REGISTRY_URL", given.url)
        given.schemas[1] = {"schema": json.dumps(record(n="long"))}
        yield given


def lags(behind: ScriptedRegistry) -> None:
    """From now on schema 2 is unknown when it is asked for, and known when it is asked for again."""
    known = {"schema": json.dumps(record(n="long", x=["null", "int"]))}

    def otherwise(path: str) -> Answer | None:
        if path == "/schemas/ids/2" and 2 not in behind.schemas:
            behind.schemas[2] = known
            return 404, {"error_code": 40403}, {}
        return None

    behind.otherwise = otherwise


ODD = {"columns": [{"name": "id", "type": "string", "source": "$key"}, {"name": "n", "type": "long"}],
       "value": {"format": "avro"}, "errors": {"max_ratio": 0.9}}  # fmt: skip
BOTH = [(0, "old", framed(1, b"\x02")), (0, "late", framed(2, b"\x04\x00"))]


def held_of(it: Lake, table: str) -> tuple[list[str], list[bytes]]:
    """The keys in the table and those in its quarantine."""
    return sorted(row["id"] for row in it.rows(table)), [row["key"] for row in it.quarantined(table)]


def test_a_schema_that_the_registry_comes_to_know_loses_no_record(
    lake: Callable[..., Lake], behind: ScriptedRegistry
) -> None:
    """While a batch is published, and while a slice is read from quarantine: in the table, or set apart."""
    it = lake()
    it.create_topic(1)
    table = it.contract(**ODD)
    it.send(BOTH)
    lags(behind)
    assert (it.run()[table]["rejected"], held_of(it, table)) == (1, (["old"], [b"late"]))
    del behind.schemas[2]
    run_backfill(it, backfill_request(table, origin=Origin.QUARANTINE), "first")
    assert held_of(it, table) == (["old"], [b"late"])
    run_backfill(it, backfill_request(table, origin=Origin.QUARANTINE), "second")
    assert held_of(it, table) == (["late", "old"], [])


def test_a_record_that_is_judged_otherwise_for_quarantine_keeps_the_batch_back(
    lake: Callable[..., Lake], behind: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    it.create_topic(1)
    table = it.contract(**ODD)
    it.send(BOTH)
    plain = quarantine.rejected_rows
    with monkeypatch.context() as patch:
        patch.setattr(quarantine, "rejected_rows", lambda *given: plain(*given).limit(0))
        patch.setattr(run.retry_step, "__defaults__", (1,))
        outcome = it.run()[table]
    assert (outcome["state"], it.rows(table)) == ("failed", [])
    assert f"1 records had to be quarantined, but 0 were. [table {table}, topic {it.topic}" in outcome["error"]
    it.drain(table)
    assert held_of(it, table) == (["old"], [b"late"])


def test_an_id_that_a_rebuilt_registry_reuses_stops_the_table_until_it_is_accepted(
    lake: Callable[..., Lake], behind: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also on a machine that has never seen the old schema: publishing, and replays of what was published before."""
    it = lake()
    it.create_topic(1)
    table = it.contract(**ODD)
    it.send(BOTH[:1])
    it.drain(table)
    behind.schemas[1] = {"schema": json.dumps(record(m="long", n="long"))}
    it.send([(0, "new", framed(1, b"\x04\x0e"))])

    def on_another_machine(name: str) -> None:
        monkeypatch.setenv("SLUICE_SCHEMAS", str(tmp_path / name))
        for cache in ("_fetched", "_clients"):
            monkeypatch.setattr(registries, cache, {})

    statement = f"DELETE FROM sluice.writer_schemas WHERE topic = '{it.topic}' AND schema_id = 1"
    for machine in ("kept", "another"):
        on_another_machine(machine)
        outcome = it.run()[table]
        assert (outcome["state"], held_of(it, table)) == ("failed", (["old"], [])), machine
        assert "returns another schema for id 1" in outcome["error"] and statement in outcome["error"]
        assert ("on this machine" in outcome["error"]) == (machine == "kept")
        with pytest.raises(SchemaIdReusedError, match=f"topic {it.topic}.*{statement}"):
            run_backfill(it, backfill_request(table, {0: (0, 1)}, origin=Origin.STAGING), machine)
    runbook.run_sql(it, "DELETE FROM sluice.writer_schemas", topic=it.topic, id=1)
    it.drain(table)
    assert {row["id"]: row["n"] for row in it.rows(table)} == {"old": 1, "new": 7}
