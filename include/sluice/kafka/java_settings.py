"""Librdkafka's settings of connection sluice_kafka in the Java client's words: Spark reads as who planned."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.errors import ConfigError
from sluice.kafka import jaas

_PASSED = ("bootstrap.servers", "security.protocol", "client.id", "client.rack", "request.timeout.ms")
# What else tells who one is, or who to trust; Spark must not go on without it.
_UNTRANSLATED = ("ssl.ca.certificate.stores", "ssl.providers", "ssl.engine.location")


def spark_options(config: Mapping[str, Any]) -> dict[str, str]:
    """Librdkafka's settings in the Java client's words, as options of Spark's Kafka source.

    Only the security and connection settings that a reader needs are translated; others of librdkafka have no
    counterpart and are left out. Certificates and keys travel as text: an executor has no file of the worker's.

    Raises:
        ConfigError: a security setting has no translation here, or names a file that can't be read.
    """
    options = {f"kafka.{name}": str(config[name]) for name in _PASSED if name in config}
    told = jaas.options(config, lambda: _pem(config, "https.ca"))
    options |= {f"kafka.{name}": value for name, value in told.items()}
    if unknown := sorted(name for name in config if name.startswith(_UNTRANSLATED)):
        raise ConfigError(
            f"Spark's side has no translation of {', '.join(unknown)}.",
            way_out="Name PEM files (ssl.ca.location, ssl.certificate.location, ssl.key.location) or a PKCS#12 one "
            "(ssl.keystore.location) in connection sluice_kafka.",
        )
    if ca := _pem(config, "ssl.ca"):
        options |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.certificates": ca}
    if mine := _own(config):
        chain, key = mine
        options |= {"kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.certificate.chain": chain}
        options["kafka.ssl.keystore.key"] = key
    if config.get("ssl.endpoint.identification.algorithm") == "none":
        options["kafka.ssl.endpoint.identification.algorithm"] = ""
    return options


def as_text(config: Mapping[str, Any]) -> dict[str, Any]:
    """Librdkafka's settings as they are, but for certificates and keys, which are text.

    Raises:
        ConfigError: a setting names a file that can't be read.
    """
    files = ("ssl.ca.location", "ssl.certificate.", "ssl.key.", "ssl.keystore.")
    options = {name: value for name, value in config.items() if not name.startswith(files)}
    for name in ("ssl.ca", "https.ca"):
        if ca := _pem(config, name):
            options.pop(f"{name}.location", None)
            options[f"{name}.pem"] = ca
    if mine := _own(config):
        options["ssl.certificate.pem"], options["ssl.key.pem"] = mine
    return options


def _pem(config: Mapping[str, Any], name: str) -> str:
    """The text that librdkafka finds in a setting, or in the file that another one names; empty where neither is set.

    Raises:
        ConfigError: the file can't be read.
    """
    if text := config.get(f"{name}.pem"):
        return str(text)
    path = str(config.get(f"{name}.location", ""))
    return _read(f"{name}.location", path).decode() if path not in ("", "probe") else ""


def _read(setting: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting} names a file that can't be read: {error}") from error


def _own(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """The client's certificate chain, and its key as Java reads one: PEM, PKCS#8, not encrypted.

    Raises:
        ConfigError: one of the two is missing, or can't be read.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    chain, key = _pem(config, "ssl.certificate"), _pem(config, "ssl.key")
    store = str(config.get("ssl.keystore.location", ""))
    if not (chain or key or store):
        return None
    try:
        if store:
            secret = str(config.get("ssl.keystore.password", "")).encode() or None
            held = pkcs12.load_pkcs12(_read("ssl.keystore.location", store), secret)
            certificates = [c.certificate for c in (held.cert, *held.additional_certs) if c]
            chain = "".join(c.public_bytes(serialization.Encoding.PEM).decode() for c in certificates)
            private = held.key
        else:
            secret = str(config.get("ssl.key.password", "")).encode() or None
            private = serialization.load_pem_private_key(key.encode(), secret) if key else None
    except (ValueError, TypeError) as error:  # never the text itself
        raise ConfigError("The client's key can't be read: its password is wrong, or it is no key.") from error
    if not (chain and private):
        raise ConfigError("A client certificate needs its key, and a key its certificate: only one of them is set.")
    text = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return chain, text.decode()
