"""Kafka's log-in GSSAPI (Kerberos): settings of both clients; spark/kafka/test_kerberos.py has a realm and a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.embedded.ports import HOST
from sluice.errors import ConfigError
from sluice.kafka import java_settings, kerberos, login

pytestmark = pytest.mark.unit

NOBODY = {"bootstrap.servers": f"{HOST}:1", "security.protocol": "SASL_SSL"}


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    keytab = tmp_path / 'the "reader".keytab'
    keytab.write_bytes(b"")
    return {**NOBODY, "sasl.kerberos.principal": "reader/etl@EXAMPLE.COM", "sasl.kerberos.keytab": str(keytab)}


@pytest.mark.parametrize("named", [{}, {"sasl.mechanism": "GSSAPI"}, {"sasl.mechanisms": "GSSAPI"}])
def test_principal_keytab_and_service_become_javas_login_module(
    given: dict[str, Any], named: dict[str, str], tmp_path: Path
) -> None:
    expected = {
        "kafka.bootstrap.servers": f"{HOST}:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "GSSAPI",
        "kafka.sasl.kerberos.service.name": "kafka",
        "kafka.sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required "
        f'useKeyTab="true" storeKey="true" keyTab="{tmp_path}/the \\"reader\\".keytab" '
        'principal="reader/etl@EXAMPLE.COM";',
    }
    assert java_settings.spark_options({**given, **named}) == expected
    own = {**given, **named, "sasl.kerberos.service.name": "broker", "sasl.kerberos.kinit.cmd": "kinit -k"}
    assert java_settings.spark_options(own) == {**expected, "kafka.sasl.kerberos.service.name": "broker"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sasl.kerberos.principal": ""}, r"needs sasl\.kerberos\.principal\."),
        ({"sasl.kerberos.keytab": ""}, r"needs sasl\.kerberos\.keytab\."),
        ({"sasl.kerberos.keytab": "/nowhere/reader.keytab"}, "sasl.kerberos.keytab names a file that can't be read"),
        ({"sasl.username": "me", "sasl.password": "hunter2"}, "sasl.username and sasl.password has no effect"),
        ({"sasl.oauthbearer.method": "oidc"}, "sasl.oauthbearer.method has no effect"),
    ],
)
def test_what_java_could_not_log_in_with_is_refused(given: dict[str, Any], change: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        java_settings.spark_options({**given, **change})
    assert "hunter2" not in str(refused.value)


def test_a_client_that_was_built_without_kerberos_is_refused_with_how_to_build_one(given: dict[str, Any]) -> None:
    """PyPI's wheels are; so is that of requirements.txt."""
    for settings in (given, NOBODY, {**given, "sasl.mechanism": "GSSAPI"}):
        with pytest.raises(ConfigError, match=r"built without Kerberos .* docs/connect/platform\.md#kerberos .* SCRAM"):
            login.client_settings(settings)
    with pytest.raises(ConfigError, match="built without Kerberos"):
        login.make_client(given)


def test_a_client_that_was_built_with_it_gets_the_settings_as_they_are(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kerberos, "client_has_gssapi", lambda: True)
    assert login.client_settings(given) == given
    with pytest.raises(ConfigError, match=r"needs .*principal and .*keytab"):
        login.client_settings(NOBODY)
