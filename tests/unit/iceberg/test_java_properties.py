"""Each setting of PyIceberg has a place in the table of names, and each name that Java gets is one that Java has."""

from __future__ import annotations

import ast
import importlib.util
import re
import zipfile
from pathlib import Path

import pytest

from sluice.embedded import jars
from sluice.errors import ConfigError
from sluice.iceberg import catalog
from sluice.iceberg.java_properties import (
    AZURE_ACCOUNT,
    CONVERTED,
    PYTHON_ONLY,
    REFUSED,
    RENAMED,
    SAME,
    rest_defaults,
    translate,
)
from sluice.ingest import session

pytestmark = pytest.mark.unit

# Constants that are no names of settings: values, and keys of messages and tables.
NO_SETTINGS = re.compile(
    r"pyiceberg\.|iceberg\.field\.|v1/|/v1|[A-Z]|.*(_location|_type|_id|_secret|_credentials)$|urn:"
)
# Settings that are read by `load_catalog`, and the parts of `auth`, which is a map.
READ_EARLIER = {"type", "auth", "auth.manager"}
PLAIN = {"uri", "warehouse", "prefix", "token", "credential", "scope", "audience", "resource", "ssl", "location"}


def python_names() -> set[str]:
    """The names that PyIceberg's modules define, read without importing: some need packages that are not here."""
    package = importlib.util.find_spec("pyiceberg")
    assert package and package.origin
    folder = Path(package.origin).parent
    files = ["io/__init__.py", *(f"catalog/{name}.py" for name in ("__init__", "glue", "hive", "sql", "rest/__init__"))]
    found: set[str] = set()
    for file in files:
        for node in ast.parse((folder / file).read_text("utf-8")).body:
            if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)):
                continue
            name = node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""
            value = node.value.value
            if name.isupper() and "DEFAULT" not in name.split("_")[-1:] and isinstance(value, str):
                found.add(value)
    names = {name for name in found if not NO_SETTINGS.match(name) and ("." in name or "-" in name)}
    return names - {"vended-credentials", "utf-8"} | (PLAIN & found)


def test_each_setting_of_pyiceberg_has_a_place() -> None:
    known = {*SAME, *RENAMED, *CONVERTED, *REFUSED, *PYTHON_ONLY, *READ_EARLIER, *AZURE_ACCOUNT}
    names = python_names()
    assert {"s3.region", "glue.region", "adls.account-key", "gcs.oauth2.token", "rest.signing-name"} <= names
    assert names - known == set(), "new settings of PyIceberg: say what Java calls them"


def test_no_setting_has_two_places() -> None:
    places = [SAME, RENAMED, CONVERTED, REFUSED, PYTHON_ONLY, AZURE_ACCOUNT]
    assert sum(map(len, places)) == len({name for place in places for name in place})


def java_classes() -> bytes:
    """The compiled classes of Iceberg that define settings."""
    (jar,) = jars.ensure_jars(jars.SPARK).glob("iceberg-spark-runtime-*.jar")
    part = re.compile(r"org/apache/iceberg/(aws|azure|gcp|rest)/.*\.class|org/apache/iceberg/\w+Properties\.class")
    with zipfile.ZipFile(jar) as archive:
        return b"".join(archive.read(name) for name in archive.namelist() if part.fullmatch(name))


def test_each_name_that_java_gets_is_one_that_java_has() -> None:
    classes = java_classes()
    given = {*SAME, *(java for names in RENAMED.values() for java in names), *(java for java, _ in CONVERTED.values())}
    given |= {
        "token-exchange-enabled",
        "client.factory",
        "client.assume-role.region",
        "adls.sas-token.",
        "rest.auth.type",
    }
    given |= {"rest.auth.basic.username", "rest.auth.basic.password"}
    given |= {"adls.auth.shared-key.account.name", "adls.auth.shared-key.account.key"}
    # Java's view of a REST catalog's address and name is in classes of the core.
    missing = {name for name in given if name.encode() not in classes}
    assert missing == set()
    assert b"s3.no-such-setting" not in classes


@pytest.mark.parametrize(
    ("config", "java"),
    [
        ({"s3.region": "eu-west-1"}, {"client.region": "eu-west-1"}),
        ({"client.region": "a", "s3.region": "b"}, {"client.region": "b"}),
        ({"client.access-key-id": "shared", "s3.access-key-id": "own"}, {"s3.access-key-id": "own"}),
        ({"client.secret-access-key": "x"}, {"s3.secret-access-key": "x", "rest.secret-access-key": "x"}),
        ({"s3.connect-timeout": "1.5"}, {"http-client.apache.connection-timeout-ms": "1500"}),
        ({"s3.force-virtual-addressing": "True"}, {"s3.path-style-access": "false"}),
        ({"s3.anonymous": "false"}, {}),
        ({"s3.signer": "S3V4RestSigner"}, {"s3.remote-signing-enabled": "true"}),
        ({"s3.server-side-encryption": "aws:kms", "s3.sse-kms-key-id": "k"}, {"s3.sse.type": "kms", "s3.sse.key": "k"}),
        (
            {"s3.role-arn": "arn:x", "s3.region": "eu-west-1"},
            {
                "client.assume-role.arn": "arn:x",
                "client.assume-role.region": "eu-west-1",
                "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
            },
        ),
        (
            {"adls.account-name": "acme", "adls.sas-token": "sv=1"},
            {"adls.sas-token.acme.dfs.core.windows.net": "sv=1"},
        ),
        (
            {"adls.account-name": "acme", "adls.account-key": "k"},
            {"adls.auth.shared-key.account.name": "acme", "adls.auth.shared-key.account.key": "k"},
        ),
        ({"auth": {"type": "noop"}}, {"rest.auth.type": "none"}),
        (
            {"auth": {"type": "basic", "basic": {"username": "me", "password": "pw"}}},
            {"rest.auth.type": "basic", "rest.auth.basic.username": "me", "rest.auth.basic.password": "pw"},
        ),
        (
            {
                "auth": {
                    "type": "oauth2",
                    "oauth2": {"client_id": "me", "client_secret": "pw", "token_url": "https://x"},
                }
            },
            {"rest.auth.type": "oauth2", "credential": "me:pw", "oauth2-server-uri": "https://x"},
        ),
        ({"ssl": {"cabundle": "/ca.pem"}}, {}),
        ({"io-impl": "own.IO", "header.X-Tenant": "a"}, {"io-impl": "own.IO", "header.X-Tenant": "a"}),
    ],
)
def test_a_setting_means_the_same_in_java(config: dict[str, object], java: dict[str, str]) -> None:
    found = translate(config).properties
    assert {name: value for name, value in found.items() if name in java} == java
    assert not found.keys() & {*RENAMED, *CONVERTED, *PYTHON_ONLY, *AZURE_ACCOUNT, "auth"}


@pytest.mark.parametrize(
    ("config", "java"),
    [
        ({}, {"header.X-Iceberg-Access-Delegation": "vended-credentials"}),
        ({"header.x-iceberg-access-delegation": "remote-signing"}, {}),
        (
            {"credential": "me:pw", "header.X-Iceberg-Access-Delegation": "remote-signing"},
            {"token-exchange-enabled": "false"},
        ),
        ({"credential": "me:pw", "token-exchange-enabled": "true", "header.X-Iceberg-Access-Delegation": "x"}, {}),
    ],
)
def test_javas_rest_client_does_what_pyicebergs_does(config: dict[str, str], java: dict[str, str]) -> None:
    assert rest_defaults(config) == java


@pytest.mark.parametrize("name", ["client.access-key-id", "client.secret-access-key", "client.session-token"])
def test_keys_that_java_would_not_use_for_glue_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__G__TYPE", "glue")
    monkeypatch.setenv(f"PYICEBERG_CATALOG__G__{name.replace('-', '_').replace('.', '__').upper()}", "x")
    with pytest.raises(ConfigError, match=f"sets {name}") as refused:
        catalog.spark_conf("g")
    assert "AWS_ACCESS_KEY_ID" in (refused.value.next_step or "")


@pytest.mark.parametrize("config", [{}, {"adls.sas-token": "sv=1"}])
def test_an_azure_account_without_its_key_is_no_log_in_by_shared_key(config: dict[str, str]) -> None:
    found = translate({"adls.account-name": "acme", **config}).properties
    assert not [name for name in found if "shared-key" in name or name == "adls.account-name"]


def test_what_java_does_not_get_is_named() -> None:
    found = translate({"ssl": {"cabundle": "/ca.pem"}, "uri": "https://x", "io-impl": "own.IO"})
    assert (found.python_only, found.passed_on) == (["ssl"], ["io-impl"])


@pytest.mark.parametrize(
    ("config", "says"),
    [
        *(({name: "x"}, f"{name}, which Iceberg in Spark does not have") for name in REFUSED),
        ({"s3.region": "a", "glue.region": "b"}, "different regions"),
        ({"adls.sas-token": "sv=1"}, "which account"),
        ({"adls.account-key": "k"}, "which account"),
        ({"auth": {"type": "google"}}, "type 'google'"),
    ],
)
def test_what_would_log_in_as_somebody_else_is_refused(config: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)) as refused:
        translate(config)
    assert refused.value.next_step


@pytest.mark.parametrize(
    "name",
    [
        *("s3.secret-access-key", "s3.session-token", "rest.secret-access-key", "credential", "token", "s3.sse.key"),
        *("adls.auth.shared-key.account.key", "adls.sas-token.acme.dfs.core.windows.net", "rest.auth.basic.password"),
        "gcs.oauth2.token",
    ],
)
def test_spark_redacts_secrets(name: str) -> None:
    assert re.search(session.DEFAULTS["spark.redaction.regex"], f"spark.sql.catalog.lake.{name}")
