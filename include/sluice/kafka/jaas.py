"""librdkafka's SASL settings as the Java client's: login modules and their options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote_plus

from sluice.errors import ConfigError
from sluice.kafka import connections, kerberos, msk
from sluice.kafka.compat import parse_key_values

_MODULES = "org.apache.kafka.common.security."
_PASSWORDS = {"PLAIN": f"{_MODULES}plain.PlainLoginModule"} | dict.fromkeys(
    ("SCRAM-SHA-256", "SCRAM-SHA-512"), f"{_MODULES}scram.ScramLoginModule"
)
_OAUTH = "sasl.oauthbearer."
_OAUTH_PASSED = ("token.endpoint.url", "sub.claim.name")
_OAUTH_MODULE = {"clientId": "client.id", "clientSecret": "client.secret", "scope": "scope"}
# The only token flow that both clients support.
_OAUTH_FLOW = {"method": "oidc", "grant.type": "client_credentials", "metadata.authentication.type": "none"}
# Kafka 3.9, which Spark ships, allows any token endpoint unless org.apache.kafka.sasl.oauthbearer.allowed.urls is set.
_OAUTH_OPTIONS = {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    # Milliseconds; without them Java waits forever.
    "sasl.login.connect.timeout.ms": "10000",
    "sasl.login.read.timeout.ms": "20000",
}


def sasl_options(config: Mapping[str, Any], read_cas: Callable[[], str]) -> dict[str, str]:
    """Return the Java client's login settings; empty if librdkafka would not log in.

    Args:
        config: librdkafka's settings.
        read_cas: returns the PEM certificates to trust for the token endpoint; empty for Java's own.

    Raises:
        ConfigError: the mechanism or one of its settings is not supported for Java.
    """
    mechanism = connections.sasl_mechanism(config)
    if msk.is_chosen(config):
        msk.check(config)
        return dict(msk.JAVA_OPTIONS)
    if mechanism == "OAUTHBEARER":
        return _oauth(config, read_cas)
    if other := sorted(name for name in config if name.startswith(_OAUTH)):
        raise ConfigError(
            f"{', '.join(other)} has no effect without sasl.mechanism OAUTHBEARER.",
            next_step="In connection sluice_kafka set that mechanism, or remove these settings.",
        )
    if not mechanism:
        return {}
    if mechanism == kerberos.MECHANISM:
        settings, options = kerberos.java_options(config)
        return {**settings, "sasl.jaas.config": _jaas(kerberos.LOGIN_MODULE, options)}
    if mechanism not in _PASSWORDS:
        raise ConfigError(
            f"For Spark, Sluice supports sasl.mechanism {', '.join(_PASSWORDS)}, OAUTHBEARER, GSSAPI and "
            f"{msk.MECHANISM}, not {mechanism}.",
            next_step="Use one of these, or client certificates, in connection sluice_kafka.",
        )
    credentials = {name: str(config.get(f"sasl.{name}", "")) for name in ("username", "password")}
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": _jaas(_PASSWORDS[mechanism], credentials)}


def _oauth(config: Mapping[str, Any], read_cas: Callable[[], str]) -> dict[str, str]:
    """Return the settings for tokens of an identity provider, obtained by client id and secret."""
    given = {
        name.removeprefix(_OAUTH).removeprefix("client.credentials."): str(value)
        for name, value in config.items()
        if name.startswith(_OAUTH)
    }
    for name, supported in _OAUTH_FLOW.items():
        value = given.pop(name, "default" if name == "method" else supported)
        if value.lower() != supported:
            raise ConfigError(
                f"For Spark, Sluice supports {_OAUTH}{name} {supported}, not {value}.",
                next_step=f"In connection sluice_kafka set {_OAUTH}method to oidc, with "
                "client.id, client.secret and token.endpoint.url; or use SCRAM, PLAIN or client certificates.",
            )
    extensions = _extensions(given.pop("extensions", ""))
    options = {java: given.pop(name) for java, name in _OAUTH_MODULE.items() if name in given}
    copied = {f"{_OAUTH}{name}": given.pop(name) for name in _OAUTH_PASSED if name in given}
    if given:
        raise ConfigError(
            f"Spark's Kafka client has no counterpart of {', '.join(_OAUTH + name for name in sorted(given))}.",
            next_step="Remove it from connection sluice_kafka.",
        )
    if "&" in options.get("scope", ""):
        raise ConfigError(
            f"{_OAUTH}scope contains another parameter of the token request, which Spark's Kafka client can't send.",
            next_step="In connection sluice_kafka list only scopes, separated by spaces.",
        )
    if "scope" in options:  # librdkafka sends it as it is, Java encodes it
        options["scope"] = unquote_plus(options["scope"])
    if trusted := read_cas():
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted}
    # Spark redacts everything after `password=` in its logs, but does not recognise a client secret.
    jaas = _jaas(f"{_MODULES}oauthbearer.OAuthBearerLoginModule", {"password": "", **options, **extensions})
    return {**_OAUTH_OPTIONS, **copied, "sasl.jaas.config": jaas}


def _extensions(text: str) -> dict[str, str]:
    """Return SASL extensions, `name=value,…`, as options of the login module."""
    try:
        found = parse_key_values(text)
    except ValueError:
        found = {"": ""}
    if not all(re.fullmatch("(?!auth$)[A-Za-z]+", name) for name in found):
        raise ConfigError(
            f"{_OAUTH}extensions is not a comma-separated list of name=value with names of letters only.",
            next_step="Correct it in connection sluice_kafka, for example logicalCluster=lkc-1,identityPoolId=pool-1.",
        )
    return {f"extension_{name}": value for name, value in found.items()}


def _jaas(module: str, options: Mapping[str, str]) -> str:
    """Return the value of `sasl.jaas.config`; line breaks are escaped because they would end a value."""
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})
    given = "".join(f' {name}="{value.translate(escapes)}"' for name, value in options.items())
    return f"{module} required{given};"
