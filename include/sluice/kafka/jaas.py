"""Who one is, as the Java client is told it: librdkafka's settings of SASL as login modules and their options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote_plus

from sluice.errors import ConfigError

_PASSWORDS = {"PLAIN": "plain.PlainLoginModule"} | dict.fromkeys(
    ("SCRAM-SHA-256", "SCRAM-SHA-512"), "scram.ScramLoginModule"
)
_OAUTH = "sasl.oauthbearer."
_OAUTH_PASSED = ("token.endpoint.url", "sub.claim.name")
_OAUTH_MODULE = {"clientId": "client.id", "clientSecret": "client.secret", "scope": "scope"}
# Of several ways to come by a token the one that both sides know.
_OAUTH_WAY = {"method": "oidc", "grant.type": "client_credentials", "metadata.authentication.type": "none"}
# Kafka 3.9, which is Spark's, asks any token endpoint unless org.apache.kafka.sasl.oauthbearer.allowed.urls is set.
_OAUTH_OPTIONS = {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    # Milliseconds; without them Java would wait for ever.
    "sasl.login.connect.timeout.ms": "10000",
    "sasl.login.read.timeout.ms": "20000",
}


def _mechanism(config: Mapping[str, Any]) -> str:
    """The mechanism by which librdkafka would log in; empty where it would not."""
    named = config.get("sasl.mechanism") or config.get("sasl.mechanisms")
    secured = str(config.get("security.protocol", "")).upper()
    return str(named) if named else "GSSAPI" if secured.startswith("SASL") else ""


def options(config: Mapping[str, Any], authorities: Callable[[], str]) -> dict[str, str]:
    """The Java client's settings that say who one is; none where librdkafka would not log in.

    Args:
        config: librdkafka's settings.
        authorities: the text of the certificates by which to know the token endpoint; empty for Java's own.

    Raises:
        ConfigError: the mechanism, or how it is set up, has no translation here.
    """
    by = _mechanism(config)
    if by == "OAUTHBEARER":
        return _oauth(config, authorities)
    if other := sorted(name for name in config if name.startswith(_OAUTH)):
        raise ConfigError(
            f"{', '.join(other)} says nothing without sasl.mechanism OAUTHBEARER.",
            way_out="Set that, or take these out of connection sluice_kafka.",
        )
    if not by:
        return {}
    if by not in _PASSWORDS:
        raise ConfigError(
            f"Spark's side knows sasl.mechanism {', '.join(_PASSWORDS)} and OAUTHBEARER, not {by}"
            f"{' (the default)' if by == 'GSSAPI' else ''}.",
            way_out="Use one of these, or client certificates, in connection sluice_kafka.",
        )
    told = {name: str(config.get(f"sasl.{name}", "")) for name in ("username", "password")}
    return {"sasl.mechanism": by, "sasl.jaas.config": _jaas(_PASSWORDS[by], told)}


def _oauth(config: Mapping[str, Any], authorities: Callable[[], str]) -> dict[str, str]:
    """Tokens of an identity provider that knows the client by an id and a secret."""
    given = {
        name.removeprefix(_OAUTH).removeprefix("client.credentials."): str(value)
        for name, value in config.items()
        if name.startswith(_OAUTH)
    }
    for name, known in _OAUTH_WAY.items():
        way = given.pop(name, "default" if name == "method" else known)
        if way.lower() != known:
            raise ConfigError(
                f"Spark's side knows {_OAUTH}{name} {known}, not {way}.",
                way_out=f"In connection sluice_kafka let OAUTHBEARER get tokens by {_OAUTH}method oidc, with "
                "client.id, client.secret and token.endpoint.url; or use SCRAM, PLAIN or client certificates.",
            )
    extensions = _extensions(given.pop("extensions", ""))
    told = {java: given.pop(name) for java, name in _OAUTH_MODULE.items() if name in given}
    passed = {f"{_OAUTH}{name}": given.pop(name) for name in _OAUTH_PASSED if name in given}
    if given:
        raise ConfigError(
            f"Spark's side has no translation of {', '.join(_OAUTH + name for name in sorted(given))}.",
            way_out="Take it out of connection sluice_kafka.",
        )
    if "&" in told.get("scope", ""):
        raise ConfigError(
            f"{_OAUTH}scope holds a further parameter for the token endpoint, which Spark's side can't send.",
            way_out="Name scopes alone in connection sluice_kafka, with spaces in between.",
        )
    if "scope" in told:  # librdkafka sends it as it stands, Java encodes it
        told["scope"] = unquote_plus(told["scope"])
    if trusted := authorities():
        told |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted}
    # Of what Spark logs it blots out what follows `password=`, and knows no client secret.
    jaas = _jaas("oauthbearer.OAuthBearerLoginModule", {"password": "", **told, **extensions})
    return {**_OAUTH_OPTIONS, **passed, "sasl.jaas.config": jaas}


def _extensions(text: str) -> dict[str, str]:
    """Librdkafka's `name=value,…` as options of the login module."""
    from confluent_kafka._util.librdkafka_string_parser import parse_key_values

    try:
        found = dict(parse_key_values(text, ","))
    except ValueError:
        found = {"": ""}
    if not all(re.fullmatch("(?!auth$)[A-Za-z]+", name) for name in found):
        raise ConfigError(
            f"{_OAUTH}extensions is no list of name=value with commas in between, or a name is not of letters alone.",
            way_out="Correct it in connection sluice_kafka, as in logicalCluster=lkc-1,identityPoolId=pool-1.",
        )
    return {f"extension_{name}": value for name, value in found.items()}


def _jaas(module: str, options: Mapping[str, str]) -> str:
    """A login module with its options, as the Java client reads them: a bare line end would end a value."""
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})
    told = "".join(f' {name}="{value.translate(escapes)}"' for name, value in options.items())
    return f"org.apache.kafka.common.security.{module} required{told};"
