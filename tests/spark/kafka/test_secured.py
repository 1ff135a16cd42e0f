"""One Kafka connection authenticates both planning (librdkafka) and reading (Spark) on a secured broker."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from pyspark.sql import SparkSession

from sluice.batch import Batch
from sluice.cli.contract import sample_test
from sluice.doctor import sources
from sluice.embedded.home import REPOSITORY
from sluice.embedded.kafka_broker import EmbeddedBroker
from sluice.embedded.ports import HOST, free_port
from sluice.errors import BrokerRefusedError, ConfigError, TopicForbiddenError
from sluice.iceberg import catalog as iceberg_catalog
from sluice.iceberg import table_names
from sluice.ingest import librdkafka_source
from sluice.ingest.context import Context
from sluice.ingest.stage import read_from_kafka, stage, to_staging_rows
from sluice.kafka import broker as brokers
from sluice.kafka import java_settings, kerberos, login
from sluice.offsets import OffsetRange
from tests.support.services.oidc import AUDIENCE, ISSUER, TokenProvider
from tests.support.services.tls_proxy import make_ca
from tests.support.thorough import usual

# What an operator may well have chosen: it must pass through JAAS and Spark's options as it is.
PASSWORD = "a\"b\\c 's3cr3t;$é"
COUNT = 30


@dataclass
class Secured:
    """A broker with listeners for client certificates, for passwords and for tokens, and who may read what."""

    folder: Path
    ca: Path
    provider: TokenProvider
    mtls: int
    sasl: int
    oauth: int
    allowed: str
    forbidden: str
    described: str

    def by_certificate(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": f"{HOST}:{self.mtls}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.ca),
            "ssl.endpoint.identification.algorithm": "none",
            **more,
        }

    def by_password(self, mechanism: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": f"{HOST}:{self.sasl}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": "reader",
            "sasl.password": PASSWORD,
            "ssl.ca.pem": self.ca.read_text(),
        }

    def by_token(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": f"{HOST}:{self.oauth}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.pem": self.ca.read_text(),
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "sluice",
            "sasl.oauthbearer.client.secret": PASSWORD,
            "sasl.oauthbearer.scope": "kafka api://broker/.default",
            "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-1",
            "sasl.oauthbearer.token.endpoint.url": self.provider.tokens,
            "https.ca.location": str(self.folder / "provider-ca.pem"),
            **more,
        }


def forms_of(own: Path) -> None:
    """The reader's certificate and key, which are in one file, apart; the key as old files have it; both as PKCS#12."""
    folder, text = own.parent, own.read_bytes()
    certificate, key = x509.load_pem_x509_certificate(text), serialization.load_pem_private_key(text, None)
    secret = serialization.BestAvailableEncryption(b"secret")
    pem = serialization.Encoding.PEM
    forms = {
        "reader.crt": certificate.public_bytes(pem),
        "reader.key": key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        "old.key": key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, secret),
        "reader.p12": pkcs12.serialize_key_and_certificates(b"reader", key, certificate, None, secret),
    }
    for name, content in forms.items():
        (folder / name).write_bytes(content)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    own_ca, own = make_ca(folder, "broker")
    reader_ca, reader = make_ca(folder, "reader")
    forms_of(reader)
    provider = TokenProvider(make_ca(folder, "provider")[1], "sluice", PASSWORD, "reader")
    ports: list[int] = []
    for _ in range(3):
        ports.append(free_port(set(ports)))
    it = Secured(folder, own_ca, provider, *ports, *(f"{kind}-{uuid.uuid4().hex[:8]}" for kind in "afd"))
    escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    plain = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_reader="{escaped}";'
    settings = {
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,OAUTH:SASL_SSL"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(own),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(reader_ca),
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": r"RULE:^CN=(.*?)$/$1/",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": plain,
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        "listener.name.oauth.oauthbearer.sasl.jaas.config": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker" ssl.truststore.type="PEM" '
            f'ssl.truststore.location="{folder}/provider-ca.pem";'
        ),
        "sasl.oauthbearer.jwks.endpoint.url": provider.keys,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.keys}"
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {allowed}")
    listeners = {"SSL": it.mtls, "SASL_SSL": it.sasl, "OAUTH": it.oauth}
    with provider, EmbeddedBroker(folder / "broker", settings=settings, listeners=listeners) as running:
        monkeypatch.undo()
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        for future in admin.create_topics(
            [NewTopic(t, 2, 1) for t in (it.allowed, it.forbidden, it.described)]
        ).values():
            future.result(30)
        rights = [
            AclBinding(
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.LITERAL,
                "User:reader",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for topic, operations in (
                (it.allowed, (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)),
                (it.described, (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)),
            )
            for operation in operations
        ]
        for future in admin.create_acls(rights).values():
            future.result(30)
        told = UserScramCredentialUpsertion(
            "reader", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), PASSWORD.encode()
        )
        for future in admin.alter_user_scram_credentials([told]).values():
            future.result(30)
        producer = Producer({"bootstrap.servers": running.bootstrap})
        for n in range(COUNT):
            producer.produce(it.allowed, str(n), key=f"k{n}", partition=n % 2)
        assert producer.flush(30) == 0
        yield it


@pytest.fixture
def drivers_log(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """What a driver writes into its log, with the settings that jobs/ run with, and all that Spark says of Kafka."""
    log = tmp_path / "spark.log"
    settings = (REPOSITORY / "jobs" / "log4j2.properties").read_text()
    copy = tmp_path / "log4j2.properties"
    settings = settings.replace("${env:SLUICE_SPARK_LOG:-spark.log}", str(log))
    chatty = ("org.apache.spark.kafka010", "org.apache.spark.sql.kafka010")
    more = "".join(f"logger.k{n}.name = {name}\nlogger.k{n}.level = trace\n" for n, name in enumerate(chatty))
    copy.write_text(settings + more)
    jvm: Any = spark.sparkContext._jvm
    context = jvm.org.apache.logging.log4j.LogManager.getContext(False)
    before = context.getConfiguration()
    jvm.org.apache.logging.log4j.core.config.Configurator.reconfigure(jvm.java.net.URI(copy.as_uri()))
    yield log
    context.setConfiguration(before)


def test_doctor_names_the_right_that_a_user_lacks(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_KAFKA_CONFIG", json.dumps(secured.by_password("PLAIN")))
    monkeypatch.setenv("SLUICE_CONTRACTS", str(tmp_path))

    def read(topic: str) -> None:
        body = f"topic: {topic}\ngroup: g\nowner: me\ncolumns: [{{name: n, type: long}}]\n"
        (tmp_path / "t.yaml").write_text(f"table: a.b\n{body}")

    read(secured.allowed)
    assert "1 topic can be described and read" in sources.check_kafka(10)
    read(secured.described)
    with pytest.raises(ConfigError, match=f"too few rights on topics: {secured.described} lacks READ\\."):
        sources.check_kafka(10)
    read(secured.forbidden)
    with pytest.raises(TopicForbiddenError, match=secured.forbidden):
        sources.check_kafka(10)
    monkeypatch.setenv("SLUICE_KAFKA_CONFIG", json.dumps({**secured.by_password("PLAIN"), "sasl.password": "wrong"}))
    with pytest.raises(BrokerRefusedError, match="Login to Kafka failed"):
        sources.check_kafka(10)


WAYS = ["PEM", "old key with a password", "PKCS12", "PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"]


@pytest.mark.parametrize("way", usual(["PEM", "PKCS12", "SCRAM-SHA-512", "OAUTHBEARER"], WAYS))
def test_planning_and_spark_read_as_the_same_user(
    secured: Secured, spark: SparkSession, way: str, drivers_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = secured.folder
    mine = {"ssl.certificate.location": str(at / "reader.crt")}
    config = {
        "PEM": lambda: secured.by_certificate(**mine, **{"ssl.key.location": str(at / "reader.key")}),
        "old key with a password": lambda: secured.by_certificate(
            **mine, **{"ssl.key.location": str(at / "old.key"), "ssl.key.password": "secret"}
        ),
        "PKCS12": lambda: secured.by_certificate(
            **{"ssl.keystore.location": str(at / "reader.p12"), "ssl.keystore.password": "secret"}
        ),
        "OAUTHBEARER": secured.by_token,
    }.get(way, lambda: secured.by_password(way))()
    client = brokers.make_admin_client(config)
    assert brokers.list_topic_names(client) == {secured.allowed, secured.described}
    found = brokers.describe_topics(client, [secured.allowed, secured.forbidden])
    state = found[secured.allowed]
    assert isinstance(state, brokers.TopicState), state
    # One topic that may not be seen hides no other.
    assert isinstance(found[secured.forbidden], TopicForbiddenError)
    ends = {p: marks.end for p, marks in state.watermarks.items()}
    assert ends == {0: COUNT // 2, 1: COUNT // 2}
    batch = Batch(secured.allowed, state.topic_id, 1, state.watermarks, ends)
    options = java_settings.spark_options(config)
    rows = read_from_kafka(spark, options, batch).collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(COUNT))
    # So does what stands in for Spark's source, on executors that have none of these files.
    assert not [value for value in java_settings.inline_certificates(config).values() if str(at) in str(value)]
    again = to_staging_rows(librdkafka_source.read_batch(spark, config, batch), batch).collect()
    assert sorted(again) == sorted(rows)
    # Nor does a sample need a right to a group.
    monkeypatch.setenv("SLUICE_KAFKA_CONFIG", json.dumps(config))
    sampled = sample_test.read_topic(secured.allowed, COUNT, patience=10.0)
    assert sorted(int(value) for *_, value, _, _ in sampled) == list(range(COUNT))
    told = drivers_log.read_text()
    assert secured.allowed in told, "the log tells nothing of the reading"
    key = options.get("kafka.ssl.keystore.key", "").splitlines()[1:-1]
    for secret in ("s3cr3t", *key, *secured.provider.granted):
        assert secret not in told
    if way == "OAUTHBEARER":
        asked = {"grant_type": ["client_credentials"], "scope": ["kafka api://broker/.default"]}
        assert len(secured.provider.asked) >= 3
        assert all(form == asked for form in secured.provider.asked)


@pytest.mark.parametrize(
    ("way", "setting"), [("PLAIN", "sasl.password"), ("OAUTHBEARER", "sasl.oauthbearer.client.secret")]
)
def test_who_is_not_let_in_is_told_so_at_once_and_by_both_sides(
    secured: Secured, spark: SparkSession, lake_folder: Path, monkeypatch: pytest.MonkeyPatch, way: str, setting: str
) -> None:
    monkeypatch.setattr(login, "GRACE_S", 1.0)
    right = secured.by_token() if way == "OAUTHBEARER" else secured.by_password(way)
    wrong = {**right, setting: "wr0ng"}
    began = time.monotonic()
    client = brokers.make_admin_client(wrong)
    for ask in (lambda: brokers.describe_topics(client, [secured.allowed]), lambda: brokers.list_topic_names(client)):
        with pytest.raises(
            BrokerRefusedError, match=f"Login to Kafka failed: .*sluice_kafka: .*{setting[-6:]}"
        ) as refused:
            ask()
        assert "wr0ng" not in str(refused.value)
    state = brokers.describe_topics(brokers.make_admin_client(right), [secured.allowed])[secured.allowed]
    assert isinstance(state, brokers.TopicState)
    ends = {p: marks.end for p, marks in state.watermarks.items()}
    batch = Batch(secured.allowed, state.topic_id, 1, state.watermarks, ends)
    context = Context(spark, iceberg_catalog.load(), "lake", wrong, f"not let in {way}")
    with pytest.raises(BrokerRefusedError, match="Login to Kafka failed: ") as refused:
        stage(context, batch, gaps_expected=False)
    assert "wr0ng" not in str(refused.value)
    assert time.monotonic() - began < 30
    try:
        assert stage(replace(context, kafka=right), batch, gaps_expected=False).records == COUNT
    finally:
        context.catalog.drop_table(table_names.staging(batch.topic))


def test_a_java_without_kerberos_is_named_before_the_read(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's client would wait for a minute, and name no reason. test_kerberos.py reads with a Java that has it."""
    monkeypatch.setattr(kerberos, "JAVA_MODULE", "jdk.of.another.java")
    batch = Batch("t", "id", 1, {0: OffsetRange(0, 1)}, {})
    with pytest.raises(ConfigError, match=r"lacks the module jdk\.of\.another\.java"):
        read_from_kafka(spark, {"kafka.sasl.mechanism": "GSSAPI"}, batch)


def test_aws_msk_iam_reaches_the_broker_and_its_missing_jar_is_named(
    secured: Secured, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This broker is no MSK: it refuses AWS's token. The tests' Spark has none of AWS's jars."""
    monkeypatch.setattr(login, "GRACE_S", 1.0)
    for name, value in (("ACCESS_KEY_ID", "AKIDEXAMPLE"), ("SECRET_ACCESS_KEY", "none"), ("REGION", "eu-west-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    right = secured.by_token()
    iam = {name: value for name, value in right.items() if not name.startswith(("sasl.", "https."))}
    iam["sasl.mechanism"] = "AWS_MSK_IAM"
    with pytest.raises(BrokerRefusedError, match=r"Login to Kafka failed: .*invalid_token"):
        brokers.list_topic_names(brokers.make_admin_client(iam))
    state = brokers.describe_topics(brokers.make_admin_client(right), [secured.allowed])[secured.allowed]
    assert isinstance(state, brokers.TopicState)
    ends = {p: marks.end for p, marks in state.watermarks.items()}
    batch = Batch(secured.allowed, state.topic_id, 1, state.watermarks, ends)
    context = Context(spark, iceberg_catalog.load(), "lake", iam, "AWS_MSK_IAM")
    try:
        with pytest.raises(ConfigError, match="make jars SET=msk"):
            stage(context, batch, gaps_expected=False)
    finally:
        context.catalog.drop_table(table_names.staging(batch.topic))
