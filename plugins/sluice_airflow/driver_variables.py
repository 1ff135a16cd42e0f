"""Which of the worker's environment variables a Spark driver gets: those on a list, and never Airflow's secrets.

A driver runs code of jars and connectors, and Spark shows parts of its environment. It needs no access to Airflow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MORE_VARIABLE = "SLUICE_DRIVER_ENV"
"""Environment variable with the names of more variables for the driver, separated by commas; `*` at the end of a name
stands for any ending."""

NAMES = (
    # the system and the locale
    "HOME", "HOSTNAME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TEMP", "TERM", "TMP", "TMPDIR", "TZ", "USER",
    # Python and Java
    "CLASSPATH", "CONDA_PREFIX", "JAVA_HOME", "JAVA_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "VIRTUAL_ENV",
    "_JAVA_OPTIONS",
    # certificates and proxies
    "ALL_PROXY", "CURL_CA_BUNDLE", "FTP_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR", "SSL_CERT_FILE", "all_proxy", "ftp_proxy", "http_proxy", "https_proxy", "no_proxy",
    # the schema registry
    "SCHEMA_REGISTRY_URL",
)  # fmt: skip
PREFIXES = (
    # the system, Python, native libraries
    "LC_", "LD_", "MALLOC_", "OMP_", "PYTHON", "XDG_",
    # Spark and what it runs on
    "HADOOP_", "HIVE_", "KRB5", "KUBERNETES_", "PYSPARK_", "SPARK_", "YARN_",
    # storage: the SDKs of AWS, Azure and Google, and Arrow
    "ARROW_", "AWS_", "AZURE_", "CLOUDSDK_", "GCE_METADATA_", "GCLOUD_", "GCS_", "GOOGLE_", "IDENTITY_", "MSI_", "S3_",
    # Sluice and its libraries
    "GX_", "KAFKA_", "PYICEBERG_", "SCHEMA_REGISTRY_", "SLUICE_",
)  # fmt: skip
# What is true of the worker's machine alone, such as paths and the identity that its cloud gives it.
_OF_THE_MACHINE = re.compile(
    "|".join(re.escape(name) + "$" for name in NAMES if name != "SCHEMA_REGISTRY_URL")
    + "|LC_|LD_|MALLOC_|OMP_|PYTHON|XDG_|HADOOP_|HIVE_|KRB5|KUBERNETES_|PYSPARK_|SPARK_|YARN_|ARROW_"
    "|AWS_CONTAINER_|AWS_ROLE_|AWS_WEB_IDENTITY_|AZURE_FEDERATED_|GCE_METADATA_|IDENTITY_|MSI_|PYICEBERG_HOME$"
    "|SLUICE_(CACHE|CONTRACTS|DRIVER_|HOME|IVY_|JARS|SCHEMAS|SPARK_LOG)"
)
# Airflow's own, whatever SLUICE_DRIVER_ENV lists; and the login of the embedded stack's pages.
_NEVER = re.compile(r"_*AIRFLOW_(_|CONN_|VAR_)|SLUICE_PAGES_|.*(FERNET|JWT)", re.IGNORECASE)


def select_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a driver gets."""
    return _select(env, NAMES, PREFIXES)


def select_for_cluster(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a driver on another machine gets: those of the worker's machine only if listed."""
    listed = _select(env, (), ())
    return {n: v for n, v in select_variables(env).items() if n in listed or not _OF_THE_MACHINE.match(n)}


def _select(env: Mapping[str, str], names: Iterable[str], prefixes: Iterable[str]) -> dict[str, str]:
    """Return the variables with these names or prefixes, or those that `MORE_VARIABLE` lists."""
    more = [name.strip() for name in env.get(MORE_VARIABLE, "").split(",") if name.strip()]
    wanted = {*names, *(name for name in more if not name.endswith("*"))}
    beginnings = (*prefixes, *(name[:-1] for name in more if name.endswith("*")))
    return {
        name: value
        for name, value in env.items()
        if (name in wanted or name.startswith(beginnings)) and not _NEVER.match(name)
    }
