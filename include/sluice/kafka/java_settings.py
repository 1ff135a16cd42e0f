"""librdkafka's settings of connection sluice_kafka, translated for Spark's Kafka source (Java).

So planning and Spark use the same brokers, login and certificates.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.errors import ConfigError
from sluice.kafka import jaas

_PASSED = ("bootstrap.servers", "security.protocol", "client.id", "client.rack", "request.timeout.ms")
# Other settings of identity and trust; Spark must not run without them.
_UNTRANSLATED = ("ssl.ca.certificate.stores", "ssl.providers", "ssl.engine.location")


def spark_options(config: Mapping[str, Any]) -> dict[str, str]:
    """Return librdkafka's settings as options of Spark's Kafka source (`kafka.…`).

    Only connection and security settings are translated; the others have no counterpart and are left out.
    Certificates and keys are passed as text, because executors do not have the worker's files.

    Raises:
        ConfigError: a security setting has no counterpart, or names a file that can't be read.
    """
    options = {f"kafka.{name}": str(config[name]) for name in _PASSED if name in config}
    login = jaas.sasl_options(config, lambda: _pem(config, "https.ca"))
    options |= {f"kafka.{name}": value for name, value in login.items()}
    if unknown := sorted(name for name in config if name.startswith(_UNTRANSLATED)):
        raise ConfigError(
            f"Spark's Kafka client has no counterpart of {', '.join(unknown)}.",
            next_step="Name PEM files (ssl.ca.location, ssl.certificate.location, ssl.key.location) or a PKCS#12 one "
            "(ssl.keystore.location) in connection sluice_kafka.",
        )
    if ca := _pem(config, "ssl.ca"):
        options |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.certificates": ca}
    if certificate := _client_certificate(config):
        chain, key = certificate
        options |= {"kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.certificate.chain": chain}
        options["kafka.ssl.keystore.key"] = key
    if config.get("ssl.endpoint.identification.algorithm") == "none":
        options["kafka.ssl.endpoint.identification.algorithm"] = ""
    return options


def inline_certificates(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return librdkafka's settings with certificates and keys as text instead of files.

    Raises:
        ConfigError: a setting names a file that can't be read.
    """
    files = ("ssl.ca.location", "ssl.certificate.", "ssl.key.", "ssl.keystore.")
    options = {name: value for name, value in config.items() if not name.startswith(files)}
    for name in ("ssl.ca", "https.ca"):
        if ca := _pem(config, name):
            options.pop(f"{name}.location", None)
            options[f"{name}.pem"] = ca
    if certificate := _client_certificate(config):
        options["ssl.certificate.pem"], options["ssl.key.pem"] = certificate
    return options


def _pem(config: Mapping[str, Any], name: str) -> str:
    """Return the text of `<name>.pem`, or of the file that `<name>.location` names; empty if neither is set.

    Raises:
        ConfigError: the file can't be read.
    """
    if text := config.get(f"{name}.pem"):
        return str(text)
    # `probe` is librdkafka's word for the system's own CAs, which Java uses without a setting.
    path = str(config.get(f"{name}.location", ""))
    return _read(f"{name}.location", path).decode() if path not in ("", "probe") else ""


def _read(setting: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting} names a file that can't be read: {error}") from error


def _client_certificate(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the client's certificate chain and its key as Java reads it: PEM, PKCS#8, not encrypted.

    Raises:
        ConfigError: only one of the two is set, or one can't be read.
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
            bundle = pkcs12.load_pkcs12(_read("ssl.keystore.location", store), secret)
            certificates = [c.certificate for c in (bundle.cert, *bundle.additional_certs) if c]
            chain = "".join(c.public_bytes(serialization.Encoding.PEM).decode() for c in certificates)
            private = bundle.key
        else:
            secret = str(config.get("ssl.key.password", "")).encode() or None
            private = serialization.load_pem_private_key(key.encode(), secret) if key else None
    except (ValueError, TypeError) as error:  # never print the text: it may hold the key
        raise ConfigError("The client's key can't be read: its password is wrong, or the file is not a key.") from error
    if not (chain and private):
        raise ConfigError("Client certificate and key must both be set: only one of them is set.")
    text = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return chain, text.decode()
