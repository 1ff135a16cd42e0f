"""librdkafka's settings become the Java client's, or an error names the unsupported one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sluice.errors import ConfigError
from sluice.kafka import java_settings


def test_what_a_reader_needs_is_translated_and_the_rest_left_out() -> None:
    config = {
        "bootstrap.servers": "one:9093,two:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-256",
        "sasl.username": "me",
        "sasl.password": 'a"b\\c',
        "ssl.ca.location": "probe",
        "ssl.endpoint.identification.algorithm": "none",
        "socket.keepalive.enable": True,
    }
    assert java_settings.spark_options(config) == {
        "kafka.bootstrap.servers": "one:9093,two:9093",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="a\\"b\\\\c";',
        "kafka.ssl.endpoint.identification.algorithm": "",
    }


def key(password: bytes | None = None) -> str:
    protection = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    made = ec.generate_private_key(ec.SECP256R1())
    return made.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, protection
    ).decode()


def test_a_key_becomes_what_java_reads() -> None:
    options = java_settings.spark_options({"ssl.certificate.pem": "CHAIN", "ssl.key.pem": key()})
    assert options["kafka.ssl.keystore.type"] == "PEM"
    assert options["kafka.ssl.keystore.certificate.chain"] == "CHAIN"
    assert options["kafka.ssl.keystore.key"].startswith("-----BEGIN PRIVATE KEY-----\n")


OIDC = {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "OIDC",
    "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
}


def test_an_identity_providers_client_becomes_a_login_module() -> None:
    config = {
        **OIDC,
        "sasl.oauthbearer.grant.type": "client_credentials",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.credentials.client.secret": 'a"b\\c',
        "sasl.oauthbearer.scope": "read+write api%3A%2F%2Fb/.default",
        "sasl.oauthbearer.extensions": r"logicalCluster=lkc-1, identityPoolId=pool-1\,pool-2",
        "sasl.oauthbearer.sub.claim.name": "azp",
        "https.ca.pem": "-BEGIN-\nCA\n-END-\n",
    }
    assert java_settings.spark_options(config) == {
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerLoginCallbackHandler",
        "kafka.sasl.login.connect.timeout.ms": "10000",
        "kafka.sasl.login.read.timeout.ms": "20000",
        "kafka.sasl.oauthbearer.token.endpoint.url": "https://idp/token",
        "kafka.sasl.oauthbearer.sub.claim.name": "azp",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'password="" clientId="me" clientSecret="a\\"b\\\\c" scope="read write api://b/.default" '
        'ssl.truststore.type="PEM" ssl.truststore.certificates="-BEGIN-\\nCA\\n-END-\\n" '
        'extension_logicalCluster="lkc-1" extension_identityPoolId="pool-1,pool-2";',
    }


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"sasl.mechanism": "OAUTHBEARER"}, "sasl.oauthbearer.method oidc, not default"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.config": "principal=me"}, "oauthbearer.method oidc, not"),
        ({**OIDC, "sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer"}, "grant.type client_"),
        ({**OIDC, "sasl.oauthbearer.metadata.authentication.type": "azure_imds"}, "type none, not azure_imds"),
        ({**OIDC, "sasl.oauthbearer.assertion.file": "/my/jwt"}, "no counterpart of sasl.oauthbearer.assertion.file"),
        ({**OIDC, "sasl.oauthbearer.scope": "a&audience=b"}, "scope contains another parameter"),
        ({**OIDC, "sasl.oauthbearer.extensions": "hunter2"}, "extensions is not a comma-separated list"),
        ({**OIDC, "sasl.oauthbearer.extensions": "a=1,auth=hunter2"}, "extensions is not a comma-separated list"),
        ({**OIDC, "https.ca.location": "/nowhere/ca.pem"}, "https.ca.location names a file that can't be read"),
        ({"sasl.mechanism": "SCRAM-SHA-1"}, "not SCRAM-SHA-1"),
        ({"sasl.mechanism": "AWS_MSK_IAM"}, "AWS_MSK_IAM needs security.protocol SASL_SSL, not none"),
        (
            {"sasl.mechanism": "AWS_MSK_IAM", "security.protocol": "SASL_SSL", "sasl.password": "hunter2"},
            "sasl.password has no effect with sasl.mechanism AWS_MSK_IAM",
        ),
        ({"sasl.mechanism": "PLAIN", "sasl.oauthbearer.method": "oidc"}, "sasl.oauthbearer.method"),
        ({"ssl.ca.certificate.stores": "Root"}, "ssl.ca.certificate.stores"),
        ({"ssl.ca.location": "/nowhere/ca.pem"}, "ssl.ca.location names a file that can't be read"),
        ({"ssl.keystore.location": "/nowhere/me.p12"}, "ssl.keystore.location names a file"),
        ({"ssl.certificate.pem": "CHAIN"}, "only one of them is set"),
        ({"ssl.key.pem": key()}, "only one of them is set"),
        ({"ssl.certificate.pem": "CHAIN", "ssl.key.pem": "hunter2"}, "the file is not a key"),
        ({"ssl.certificate.pem": "CHAIN", "ssl.key.pem": key(b"hunter2")}, "its password is wrong"),
        (
            {"ssl.certificate.pem": "C", "ssl.key.pem": key(b"x"), "ssl.key.password": "hunter2"},
            "its password is wrong",
        ),
    ],
)
def test_what_has_no_translation_is_refused_by_name(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        java_settings.spark_options(config)
    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_files_travel_as_text(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CA")
    config = {"ssl.ca.location": str(tmp_path / "ca.pem"), "https.ca.location": str(tmp_path / "ca.pem"), "a": 1}
    assert java_settings.inline_certificates(config) == {"ssl.ca.pem": "CA", "https.ca.pem": "CA", "a": 1}


def test_a_store_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "me.p12").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="the file is not a key"):
        java_settings.spark_options({"ssl.keystore.location": str(tmp_path / "me.p12")})
