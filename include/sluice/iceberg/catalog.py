"""The Iceberg catalog: opened by PyIceberg from its own configuration, and the same catalog as Spark settings.

PyIceberg reads `PYICEBERG_CATALOG__LAKE__…` or `.pyiceberg.yaml`; `SLUICE_CATALOG` names a catalog other than `lake`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchPropertyException
from pyiceberg.utils.config import Config

from sluice.errors import ConfigError
from sluice.iceberg import clock_check, compat, java_properties
from sluice.iceberg.table_names import catalog_name

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

# Chooses the file system by a path's scheme, as PyIceberg does. The default, Hadoop's FileIO, does not know s3://.
_FILE_IO = {"io-impl": "org.apache.iceberg.io.ResolvingFileIO"}
OPEN_ATTEMPTS = 10
# SQLite's errors that a file causes, and what they say if nothing is wrong with its path and rights.
_FILE_ERRORS = {
    sqlite3.SQLITE_CANTOPEN: "",  # such as too many open files: it may pass
    sqlite3.SQLITE_READONLY: "SQLite may only read it",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database",
}
# libpq's connection settings -> those of the Java driver for PostgreSQL; units and values are the same.
_POSTGRES = {
    "application_name": "ApplicationName",
    "connect_timeout": "connectTimeout",
    "options": "options",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
}


def load(name: str | None = None) -> Catalog:
    """Open the catalog. Use it in a `with` block to close its connections.

    Raises:
        ConfigError: PyIceberg has no usable configuration under that name.
    """
    name = name or catalog_name()
    try:
        # Read here: `load_catalog` reads the environment only once, at import.
        config: dict[str, Any] = dict(Config().get_catalog_config(name) or {})
        if str(config.get("uri", "")).startswith("postgresql"):
            # Tests a pooled connection before use: a restarted server has closed it.
            config.setdefault("pool_pre_ping", "true")
        if _kind(config) == "hive":
            # Spark's client for Hive 2 writes the same types: the metastore refuses a change of type.
            config = {"type": "hive", "hive.hive2-compatible": "true", **config}
        return clock_check.add_clock_check(compat.with_version_3(compat.with_hive_connections(_open(name, config))))
    except (ValueError, KeyError, NoSuchPropertyException) as error:
        raise ConfigError(
            f"PyIceberg cannot open the catalog {name!r}: {error}",
            next_step=f"Set PYICEBERG_CATALOG__{name.upper()}__TYPE, __URI and __WAREHOUSE, or write .pyiceberg.yaml.",
        ) from error


def _open(name: str, config: dict[str, Any]) -> Catalog:
    for left in reversed(range(OPEN_ATTEMPTS)):
        try:
            return load_catalog(name, **config)
        except Exception as error:
            # A SQL catalog is new, and others create its tables at this moment, one after the other.
            if not left or "already exists" not in str(error):
                raise
    raise AssertionError("unreachable")


def find_file_problem(error: Exception) -> tuple[str, str] | None:
    """Return why the SQLite file of the configured catalog cannot be used, and the next step.

    None if that is not the cause of `error`, or if the file can be used at present: then the error may pass by itself.
    """
    cause = getattr(error, "orig", error)  # SQLAlchemy wraps the driver's exceptions
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF if isinstance(cause, sqlite3.Error) else 0
    if code not in _FILE_ERRORS:
        return None
    uri = str((Config().get_catalog_config(catalog_name()) or {}).get("uri", ""))
    if not uri.startswith("sqlite"):
        return None
    from sqlalchemy.engine import make_url

    path = Path((make_url(uri).database or "").removeprefix("file:")).absolute()
    if path.is_dir():
        why = "it is a folder"
    elif not path.parent.is_dir():
        why = f"the folder {path.parent} does not exist"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        why = f"this user may not write in the folder {path.parent}, where SQLite keeps its journal"
    elif path.exists() and not os.access(path, os.R_OK | os.W_OK):
        why = "this user may not read and write it"
    elif not (why := _FILE_ERRORS[code]):
        return None
    variable = f"PYICEBERG_CATALOG__{catalog_name().upper()}__URI"
    return (
        f"SQLite file {path} cannot be opened for reading and writing: {why}.",
        f"Correct its path in {variable} (sqlite:////absolute/path.db) or .pyiceberg.yaml, or its rights.",
    )


def spark_conf(name: str | None = None) -> dict[str, str]:
    """Return `spark.sql.catalog.*` settings for the catalog in PyIceberg's configuration.

    The driver sets them in its own process, so that no credential is on a command line.

    Raises:
        ConfigError: Spark has no catalog of this type, or a setting can't be translated.
    """
    name = name or catalog_name()
    kind, config = _read_config(name)
    prefix = f"spark.sql.catalog.{name}"
    conf = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        # Each step must read the table's current metadata.
        f"{prefix}.cache-enabled": "false",
    }
    if kind == "sql":
        conf |= {f"{prefix}.{k}": v for k, v in _jdbc(str(config.pop("uri", ""))).items()}
    elif kind in ("rest", "glue", "hive"):
        conf[f"{prefix}.type"] = kind
    else:
        raise ConfigError(f"Spark cannot open catalog {name!r} of type {kind!r}; supported: sql, rest, glue, hive.")
    if kind == "glue":
        java_properties.refuse_for_glue(config)
    found = java_properties.translate(config).properties
    if kind == "rest":
        found |= java_properties.rest_defaults(found)
    if kind in ("sql", "hive"):
        found = _FILE_IO | found
    if "s3.endpoint" in found:
        # PyIceberg uses path-style requests for a custom endpoint by default; Java does not.
        found.setdefault("s3.path-style-access", "true")
    return conf | {f"{prefix}.{key}": value for key, value in found.items()}


def describe_differences(name: str | None = None) -> str:
    """Say which settings of the catalog Spark does not get, or gets as they are; empty if there are none.

    Raises:
        ConfigError: a setting can't be translated for Spark.
    """
    found = java_properties.translate(_read_config(name or catalog_name())[1])
    parts = {"Spark does not get": found.python_only, "Spark gets unchanged": found.passed_on}
    return "; ".join(f"{what} {', '.join(names)}" for what, names in parts.items() if names)


def _read_config(name: str) -> tuple[str, dict[str, Any]]:
    """The catalog's type, and its other settings in PyIceberg's names."""
    config: dict[str, Any] = dict(Config().get_catalog_config(name) or {})
    kind = _kind(config)
    config.pop("type", None)
    return kind, config


def _kind(config: Mapping[str, Any]) -> str:
    """The catalog's type, as PyIceberg infers it from the URI if it is not set."""
    uri = str(config.get("uri", ""))
    inferred = "hive" if uri.startswith("thrift") else "sql" if "://" in uri and "sql" in uri else "rest"
    return str(config.get("type", inferred))


def _jdbc(uri: str) -> dict[str, str]:
    """Return a SQLAlchemy URL as properties of Iceberg's JDBC catalog."""
    from sqlalchemy.engine import make_url

    url = make_url(uri)
    backend = url.get_backend_name()
    properties = {"type": "jdbc", "jdbc.schema-version": "V1"}
    if backend == "sqlite":
        # SQLite allows one writer at a time: wait for it.
        return properties | {"uri": f"jdbc:sqlite:{url.database}", "jdbc.busy_timeout": "60000"}
    if backend == "postgresql":
        properties |= _postgres(url)
    host = f"[{url.host}]" if ":" in (url.host or "") else url.host
    port = f":{url.port}" if url.port else ""
    # The Java driver decodes the database name. User and password stay out of the URL, which error messages show.
    properties["uri"] = f"jdbc:{backend}://{host}{port}/{quote(url.database or '', safe='')}"
    if url.username:
        properties["jdbc.user"] = url.username
    if url.password:
        properties["jdbc.password"] = str(url.password)
    return properties


def _postgres(url: URL) -> dict[str, str]:
    """Return the URL's query parameters (libpq settings) as settings of the Java driver.

    Raises:
        ConfigError: there is no host or database, or a setting has no counterpart (it may be one that enforces TLS).
    """
    if not url.host or not url.database:
        raise ConfigError(
            "The catalog's URI names no host or no database; the Java driver connects to PostgreSQL by TCP only.",
            next_step="Write postgresql+psycopg2://USER:PASSWORD@HOST:PORT/DATABASE.",
        )
    if unsupported := sorted(set(url.query) - set(_POSTGRES)):
        raise ConfigError(
            f"The catalog's URI sets {', '.join(unsupported)}, which the Java driver for PostgreSQL does not support.",
            next_step=f"Remove it; supported settings are {', '.join(sorted(_POSTGRES))}.",
        )
    # SQL states of a server that shuts down or starts: Iceberg then opens another connection.
    server_restarted = {"retryable_status_codes": "57P01,57P02,57P03"}
    return server_restarted | {f"jdbc.{_POSTGRES[name]}": str(value) for name, value in url.query.items()}
