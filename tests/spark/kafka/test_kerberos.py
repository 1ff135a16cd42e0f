"""Kerberos: a real realm, and a broker whose only listener for readers demands its tickets.

Spark's side runs on any confluent-kafka. Planning needs one that was built with libsasl2, which `make test-infra`
builds: docs/dev/testing.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sluice.batch import Batch
from sluice.embedded.kafka_broker import EmbeddedBroker
from sluice.embedded.ports import HOST, free_port
from sluice.errors import BrokerRefusedError
from sluice.ingest.stage import read_from_kafka
from sluice.kafka import broker as brokers
from sluice.kafka import java_settings, kerberos, login
from tests.support.lake import Lake, record
from tests.support.services.kerberos import REALM, Kdc, complete_java
from tests.support.services.tls_proxy import make_ca

pytestmark = [pytest.mark.infra, pytest.mark.timeout(600)]

SERVICE = "broker"
"""Not `kafka`, which is the default."""


@pytest.fixture(scope="session", autouse=True)
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    """A realm for this process and all that it starts; before Spark, because a JVM reads `krb5.conf` at its start."""
    patch = pytest.MonkeyPatch()
    with Kdc(tmp_path_factory.mktemp("kerberos") / "kdc") as running:
        for name, value in {**running.environment, "JAVA_HOME": str(complete_java())}.items():
            patch.setenv(name, value)
        yield running
    patch.undo()


class Kerberised(NamedTuple):
    """A broker's listener without log-in, and the settings of a reader for the one with Kerberos."""

    plain: str
    reader: dict[str, Any]


@pytest.fixture(scope="session")
def kerberised(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kerberised]:
    folder = tmp_path_factory.mktemp("broker")
    ca, certificate = make_ca(folder, "broker")
    own, reader = kdc.keytab(f"{SERVICE}/localhost"), kdc.keytab("reader")
    module = f'{kerberos.LOGIN_MODULE} required useKeyTab="true" storeKey="true" keyTab="{own}"'
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,KERBEROS:SASL_SSL",
        "listener.name.kerberos.sasl.enabled.mechanisms": "GSSAPI",
        "listener.name.kerberos.gssapi.sasl.jaas.config": f'{module} principal="{SERVICE}/localhost@{REALM}";',
        "sasl.kerberos.service.name": SERVICE,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificate),
    }
    port = free_port()
    with EmbeddedBroker(folder, settings=settings, listeners={"KERBEROS": port}) as running:
        config = {
            "bootstrap.servers": f"{HOST}:{port}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.pem": ca.read_text(),
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": SERVICE,
            "sasl.kerberos.principal": f"reader@{REALM}",
            "sasl.kerberos.keytab": str(reader),
        }
        yield Kerberised(running.bootstrap, config)


@pytest.fixture
def client(kerberised: Kerberised) -> dict[str, Any]:
    """The reader's settings for librdkafka; skips the test if it was built without Kerberos."""
    if not kerberos.client_has_gssapi():
        pytest.skip("confluent-kafka has no GSSAPI here, so only Spark's side of Kerberos was tried: make test-infra")
    return kerberised.reader


@pytest.fixture
def plain(lake: Callable[..., Lake], kerberised: Kerberised) -> Lake:
    """A topic with thirty records, sent and planned without log-in."""
    made = lake()
    it = Lake(made.spark, made.catalog, kerberised.plain, made.folder)
    it.create_topic(2)
    it.send((n % 2, f"k{n}", record(n)) for n in range(30))
    return it


def read_with_spark(it: Lake, settings: dict[str, Any]) -> list[dict[str, Any]]:
    state = brokers.describe_topics(it.admin, [it.topic])[it.topic]
    assert isinstance(state, brokers.TopicState)
    ends = {p: marks.end for p, marks in state.watermarks.items()}
    batch = Batch(it.topic, state.topic_id, 1, state.watermarks, ends)
    rows = read_from_kafka(it.spark, java_settings.spark_options(settings), batch).collect()
    return [json.loads(row["value"]) for row in rows]


WRONG = [
    ({"sasl.kerberos.principal": f"stranger@{REALM}"}, "password", "No credentials were supplied"),
    ({"sasl.kerberos.service.name": "nobody"}, "not found in Kerberos database", "nobody/localhost@.* not found"),
]


def test_spark_reads_by_a_keytab(plain: Lake, kerberised: Kerberised) -> None:
    found = read_with_spark(plain, kerberised.reader)
    assert sorted(row["n"] for row in found) == list(range(30))


@pytest.mark.parametrize(("wrong", "said"), [each[:2] for each in WRONG])
def test_spark_is_not_let_in(plain: Lake, kerberised: Kerberised, wrong: dict[str, str], said: str) -> None:
    with pytest.raises((PySparkException, Py4JError)) as failed:
        read_with_spark(plain, {**kerberised.reader, **wrong})
    found = login.login_error_from_spark(failed.value)
    assert isinstance(found, BrokerRefusedError) and said in found.message


def test_a_group_is_ingested_by_kerberos_alone(lake: Callable[..., Lake], client: dict[str, Any]) -> None:
    """One of the records has a timestamp that Spark's source can't read, so executors read by librdkafka too."""

    class ByKerberos(Lake):
        @property
        def kafka(self) -> dict[str, Any]:
            return client

    made = lake()
    it = ByKerberos(made.spark, made.catalog, "", made.folder)
    it.create_topic(2, message_timestamp_after_max_ms=str(2**62))
    table, upsert = it.contract(), it.contract(mode="upsert")
    it.send((n % 2, f"k{n}", record(n)) for n in range(30))
    assert {o["state"] for o in it.run().values()} == {"published"}
    it.send([(0, "k0", record(30))], timestamp_ms=1_700_000_000_000_000_000)
    assert {o["state"] for o in it.run().values()} == {"published"}
    it.assert_appended(table)
    it.assert_folded(upsert)


@pytest.mark.parametrize(("wrong", "said"), [(each[0], each[2]) for each in WRONG])
def test_planning_is_not_let_in(
    client: dict[str, Any], wrong: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "GRACE_S", 1.0)
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/tickets")  # without those of other tests
    began = time.monotonic()
    with pytest.raises(BrokerRefusedError, match=f"Login to Kafka failed: .*{said}"):
        brokers.list_topic_names(brokers.make_admin_client({**client, **wrong}))
    assert time.monotonic() - began < 20
