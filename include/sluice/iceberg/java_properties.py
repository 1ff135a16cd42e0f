"""Translates a catalog's settings from PyIceberg's names into those of Iceberg in Java, so that they are written once.

In: the settings of a catalog, without its type and URI. Out: Java's settings, and the names that only Python knows.
Sources: `pyiceberg.io` and `pyiceberg.catalog`; `AwsClientProperties`, `S3FileIOProperties`, `HttpClientProperties`,
`GCPProperties`, `AzureProperties`, `AuthProperties` of Iceberg 1.12.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sluice.errors import ConfigError

SAME = frozenset(
    {
        *("uri", "warehouse", "prefix", "token", "credential", "scope", "audience", "resource", "oauth2-server-uri"),
        *("rest.sigv4-enabled", "rest.signing-name", "rest.signing-region", "rest-page-size", "snapshot-loading-mode"),
        *("namespace-separator", "view-endpoints-supported", "client.region"),
        *("s3.endpoint", "s3.access-key-id", "s3.secret-access-key", "s3.session-token"),
        *("glue.id", "glue.endpoint", "glue.skip-archive"),
        *("gcs.project-id", "gcs.oauth2.token", "gcs.oauth2.token-expires-at", "gcs.service.host", "adls.token"),
    }
)
"""Both sides know these."""

RENAMED: Mapping[str, tuple[str, ...]] = {
    "glue.region": ("client.region",),
    "s3.region": ("client.region",),
    "client.access-key-id": ("s3.access-key-id", "rest.access-key-id"),
    "client.secret-access-key": ("s3.secret-access-key", "rest.secret-access-key"),
    "client.session-token": ("s3.session-token", "rest.session-token"),
    "client.role-arn": ("client.assume-role.arn",),
    "client.role-session-name": ("client.assume-role.session-name",),
    "s3.role-arn": ("client.assume-role.arn",),
    "s3.role-session-name": ("client.assume-role.session-name",),
    "s3.proxy-uri": ("http-client.proxy-endpoint",),
    "s3.sse-kms-key-id": ("s3.sse.key",),
    "s3.signer.uri": ("signer.uri",),
    "s3.signer.endpoint": ("signer.endpoint",),
}
"""Java's names of the same setting. In PyIceberg a service's own name (`s3.…`) comes before the shared `client.…`,
so a later line here replaces an earlier one."""


DELEGATION = "header.X-Iceberg-Access-Delegation"


def _milliseconds(seconds: str) -> str:
    return str(round(float(seconds) * 1000))


def _is_true(value: str) -> bool:
    return value.strip().lower() in ("true", "1", "yes", "on", "y", "t")


CONVERTED: Mapping[str, tuple[str, Callable[[str], str | None]]] = {
    "s3.connect-timeout": ("http-client.apache.connection-timeout-ms", _milliseconds),
    "s3.request-timeout": ("http-client.apache.socket-timeout-ms", _milliseconds),
    "s3.force-virtual-addressing": ("s3.path-style-access", lambda v: "false" if _is_true(v) else "true"),
    "s3.resolve-region": ("s3.cross-region-access-enabled", lambda v: "true" if _is_true(v) else None),
    "s3.anonymous": (
        "client.credentials-provider",
        lambda v: "software.amazon.awssdk.auth.credentials.AnonymousCredentialsProvider" if _is_true(v) else None,
    ),
    "s3.signer": ("s3.remote-signing-enabled", lambda v: "true" if v == "S3V4RestSigner" else None),
    "s3.server-side-encryption": (
        "s3.sse.type",
        {"AES256": "s3", "aws:kms": "kms", "aws:kms:dsse": "dsse-kms"}.get,
    ),
}
"""Java's name, and its value; without a value Java's default is right."""

_AWS_DEFAULT = "AWS's own variables (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN) or the machine's role"
_AZURE_DEFAULT = "Azure's own variables (AZURE_TENANT_ID, AZURE_CLIENT_ID, AZURE_CLIENT_SECRET) or a managed identity"
REFUSED: Mapping[str, str] = {
    "client.profile-name": "the variable AWS_PROFILE",
    "s3.profile-name": "the variable AWS_PROFILE",
    "glue.profile-name": "the variable AWS_PROFILE",
    "glue.access-key-id": _AWS_DEFAULT,
    "glue.secret-access-key": _AWS_DEFAULT,
    "glue.session-token": _AWS_DEFAULT,
    "adls.connection-string": "adls.account-name with adls.account-key or adls.sas-token",
    "adls.client-id": _AZURE_DEFAULT,
    "adls.client-secret": _AZURE_DEFAULT,
    "adls.tenant-id": _AZURE_DEFAULT,
    "adls.credential": _AZURE_DEFAULT,
    "adls.anon": "adls.sas-token",
}
"""Java has no such setting and would connect as somebody else; both sides know what is named here instead."""

PYTHON_ONLY = frozenset(
    {
        *("s3.retry-strategy-impl", "rest.sigv4.max-retries", "glue.max-retries", "glue.retry-mode", "py-io-impl"),
        *("py-catalog-impl", "pool_pre_ping", "echo", "init_catalog_tables", "scan-planning-mode", "location"),
        *("downcast-ns-timestamp-to-us-on-write", "ssl", "botocore_session", "hdfs.host", "hdfs.port", "hdfs.user"),
        *(
            "hdfs.kerberos_ticket",
            "hive.kerberos-authentication",
            "hive.kerberos-service-name",
            "hf.endpoint",
            "hf.token",
        ),
        *("lock-check-min-wait-time", "lock-check-max-wait-time", "lock-check-retries", "hive.hive2-compatible", "ugi"),
        *("gcs.access", "gcs.consistency", "gcs.cache-timeout", "gcs.requester-pays", "gcs.session-kwargs"),
        *("gcs.default-bucket-location", "gcs.version-aware", "adls.account-host", "adls.blob-storage-authority"),
        *("adls.dfs-storage-authority", "adls.blob-storage-scheme", "adls.dfs-storage-scheme"),
    }
)
"""Settings of how Python connects. For Java, the same is set by `spark.hadoop.…`, JVM options, or not at all."""


AZURE_ACCOUNT = frozenset({"adls.account-name", "adls.account-key", "adls.sas-token"})
"""Java's settings for an account depend on which of these are given together."""


class JavaProperties(NamedTuple):
    """Settings for Java.

    Attributes:
        properties: those that Java gets.
        python_only: names that Java does not get.
        passed_on: names that this module does not know: Java gets them as they are.
    """

    properties: dict[str, str]
    python_only: list[str]
    passed_on: list[str]


def refuse_for_glue(config: Mapping[str, Any]) -> None:
    """Refuse keys that PyIceberg logs in to Glue with, and Java to S3 alone.

    Raises:
        ConfigError: such a key is set.
    """
    if set_keys := sorted({"client.access-key-id", "client.secret-access-key", "client.session-token"} & config.keys()):
        raise ConfigError(
            f"The catalog is Glue and sets {', '.join(set_keys)}, which Iceberg in Spark does not have for Glue.",
            next_step=f"Remove it, and use {_AWS_DEFAULT}, which PyIceberg and Spark both read; or s3.… for S3 alone.",
        )


def translate(config: Mapping[str, Any]) -> JavaProperties:
    """Translate a catalog's settings.

    Raises:
        ConfigError: Java has no such setting and would connect as somebody else, or two settings contradict.
    """
    if refused := sorted(REFUSED.keys() & config.keys()):
        raise ConfigError(
            f"The catalog sets {', '.join(refused)}, which Iceberg in Spark does not have.",
            next_step=f"Remove it, and use {REFUSED[refused[0]]}, which PyIceberg and Spark both read.",
        )
    regions = {str(config[name]) for name in ("s3.region", "glue.region") if name in config}
    if len(regions) > 1:
        raise ConfigError(
            "The catalog sets s3.region and glue.region to different regions; Iceberg in Spark has one for both.",
            next_step="Use a warehouse in the region of the catalog, and set client.region alone.",
        )
    changed = {*RENAMED, *CONVERTED, *PYTHON_ONLY, *AZURE_ACCOUNT, "auth"}
    found = {name: str(value) for name, value in config.items() if name not in changed}
    for name, java_names in RENAMED.items():
        if name in config:
            found |= dict.fromkeys(java_names, str(config[name]))
    # A service's own name comes first, on both sides.
    found |= {name: str(config[name]) for name in config if name.startswith("s3.") and name in SAME}
    for name, (java_name, convert) in CONVERTED.items():
        if name in config and (value := convert(str(config[name]))) is not None:
            found.setdefault(java_name, value)
    found |= _assumed_role(found) | _shared_key(config) | _sas_token(config) | _authentication(config.get("auth"))
    return JavaProperties(
        properties=found,
        python_only=sorted(PYTHON_ONLY & config.keys()),
        passed_on=sorted(config.keys() - SAME - changed),
    )


def rest_defaults(found: Mapping[str, str]) -> dict[str, str]:
    """Return settings by which Java's REST client does what PyIceberg's does by itself.

    PyIceberg asks for a table's storage credentials in each request, and gets a new token by its credential. Java asks
    only with this header, and exchanges the old token, which Keycloak, Entra and others refuse.
    """
    made = {}
    if DELEGATION.lower() not in {name.lower() for name in found}:
        made[DELEGATION] = "vended-credentials"
    if "credential" in found and "token-exchange-enabled" not in found:
        made["token-exchange-enabled"] = "false"
    return made


def _assumed_role(found: Mapping[str, str]) -> dict[str, str]:
    """Java assumes a role in a client factory of its own, which asks for the region by another name."""
    if "client.assume-role.arn" not in found:
        return {}
    made = {"client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory"}
    if "client.region" in found:
        made["client.assume-role.region"] = found["client.region"]
    return made


def _shared_key(config: Mapping[str, Any]) -> dict[str, str]:
    """Java has a shared key for one account: the name alone, or beside a SAS token, is no log-in there."""
    if "adls.account-key" not in config:
        return {}
    if "adls.account-name" not in config:
        raise ConfigError(
            "The catalog sets adls.account-key, and not which account it is for.", next_step="Set adls.account-name."
        )
    parts = {each: str(config[f"adls.account-{each}"]) for each in ("name", "key")}
    return {f"adls.auth.shared-key.account.{each}": value for each, value in parts.items()}


def _sas_token(config: Mapping[str, Any]) -> dict[str, str]:
    """Java has a SAS token for each account, by the account's host."""
    if "adls.sas-token" not in config:
        return {}
    name = config.get("adls.account-name")
    host = config.get("adls.account-host") or (f"{name}.dfs.core.windows.net" if name else "")
    if not host:
        raise ConfigError(
            "The catalog sets adls.sas-token, and not which account it is for.", next_step="Set adls.account-name."
        )
    return {f"adls.sas-token.{host}": str(config["adls.sas-token"])}


def _authentication(auth: Any) -> dict[str, str]:
    """PyIceberg's `auth` of a REST catalog is a map by type; Java has a setting for each part."""
    if not isinstance(auth, Mapping):
        return {}
    kind = auth.get("type")
    if kind == "noop":
        return {"rest.auth.type": "none"}
    if kind == "basic":
        basic = auth.get("basic") or {}
        login = {f"rest.auth.basic.{each}": str(basic.get(each, "")) for each in ("username", "password")}
        return {"rest.auth.type": "basic", **login}
    if kind == "oauth2":
        given = auth.get("oauth2") or {}
        made = {
            "rest.auth.type": "oauth2",
            "credential": f"{given.get('client_id', '')}:{given.get('client_secret', '')}",
            "oauth2-server-uri": given.get("token_url"),
            "scope": given.get("scope"),
        }
        return {name: str(value) for name, value in made.items() if value}
    raise ConfigError(
        f"The catalog's auth is of type {kind!r}, which Iceberg in Spark does not have.",
        next_step="Use basic, oauth2 or noop, or the settings credential and token.",
    )
