"""The Iceberg catalog, configured once in PyIceberg's own way, and the same catalog in Spark's words.

PyIceberg reads `PYICEBERG_CATALOG__LAKE__…` or `.pyiceberg.yaml`; `SLUICE_CATALOG` names another catalog than `lake`.
Spark gets its settings from the driver's own process, so that no credential ever stands on a command line.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.utils.config import Config

from sluice.errors import (
    ClockBehindError,
    ConfigError,
)
from sluice.iceberg.table_names import catalog_name

if TYPE_CHECKING:
    from pyiceberg.table import CommitTableResponse, Table
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from sqlalchemy.engine import URL

_IMPLEMENTATIONS = {"rest": "rest", "glue": "glue", "hive": "hive"}
# By the address's scheme, as PyIceberg does; by itself Iceberg takes Hadoop's file systems for these, which know no s3://.
_FILES = {"io-impl": "org.apache.iceberg.io.ResolvingFileIO"}
# Iceberg's Java allows for a minute; the table may have been written to since it was read.
MOST_BEHIND_S = 45
# PyIceberg's own names for what the Java side spells differently.
_RENAMED = {"s3.region": "client.region", "s3.session-token": "s3.session-token"}

# Settings of a connection to PostgreSQL, as libpq has them and as its Java driver does; units and values are the same.
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
    """Open the catalog. Who asks again and again does so in a `with` block, which closes its connections.

    Raises:
        ConfigError: PyIceberg has no usable configuration under that name.
    """
    name = name or catalog_name()
    try:
        # PyIceberg reads the environment once, at import; a test or a long-lived worker may have changed it since.
        config: dict[str, Any] = dict(Config().get_catalog_config(name) or {})
        if str(config.get("uri", "")).startswith("postgresql"):
            # A server that was started anew has ended the connections that are kept open: they are tried before use.
            config.setdefault("pool_pre_ping", "true")
        return forward(load_catalog(name, **config))
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"PyIceberg can't open the catalog {name!r}: {error}",
            way_out=f"Set PYICEBERG_CATALOG__{name.upper()}__TYPE, __URI and __WAREHOUSE, or write .pyiceberg.yaml.",
        ) from error


def forward(catalog: Catalog) -> Catalog:
    """The catalog, which from now on refuses commits that are stamped before the last one of their table.

    By more than a minute, Iceberg's Java takes the metadata for damaged, so that Spark and Trino could not read the
    table any more. PyIceberg writes it all the same. Where a server makes the metadata, that has a clock of its own.
    """
    if isinstance(catalog, MetastoreCatalog):
        commit = catalog.commit_table

        def commit_table(
            table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
        ) -> CommitTableResponse:
            last_ms = table.metadata.last_updated_ms
            if (behind := last_ms / 1000 - time.time()) > MOST_BEHIND_S:
                raise ClockBehindError(
                    f"This machine's clock is {behind:,.0f} s behind the last commit of the table.",
                    table=".".join(table.name()),
                    last_commit=datetime.fromtimestamp(last_ms / 1000, UTC).isoformat(timespec="seconds"),
                )
            return commit(table, requirements, updates)

        catalog.commit_table = commit_table  # type: ignore[method-assign]
    return catalog


def spark_conf(name: str | None = None) -> dict[str, str]:
    """`spark.sql.catalog.*` settings for the catalog that PyIceberg's configuration describes.

    Raises:
        ConfigError: the catalog's type has no counterpart in Spark.
    """
    name = name or catalog_name()
    config: dict[str, Any] = {k: str(v) for k, v in (Config().get_catalog_config(name) or {}).items()}
    kind = config.pop("type", "sql" if "://" in config.get("uri", "") and "sql" in config["uri"] else "rest")
    prefix = f"spark.sql.catalog.{name}"
    conf = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        # Every step must see the table as it is now, not as this driver saw it last.
        f"{prefix}.cache-enabled": "false",
    }
    if kind in ("sql", "hive"):
        config = _FILES | config
    if "s3.endpoint" in config:
        # PyIceberg asks any address of one's own by paths, unless it is told otherwise.
        by_host = str(config.get("s3.force-virtual-addressing", "")).lower() == "true"
        config.setdefault("s3.path-style-access", "false" if by_host else "true")
    if kind == "sql":
        conf |= {f"{prefix}.{k}": v for k, v in _jdbc(config.pop("uri", "")).items()}
    elif kind in _IMPLEMENTATIONS:
        conf[f"{prefix}.type"] = _IMPLEMENTATIONS[kind]
    else:
        raise ConfigError(f"Catalog type {kind!r} of {name!r} is not one that Spark can open: sql, rest, glue or hive.")
    for key, value in config.items():
        conf[f"{prefix}.{_RENAMED.get(key, key)}"] = value
    return conf


def _jdbc(uri: str) -> dict[str, str]:
    """SQLAlchemy's URL as properties of Iceberg's JDBC catalog."""
    from sqlalchemy.engine import make_url

    url = make_url(uri)
    backend = url.get_backend_name()
    properties = {"type": "jdbc", "jdbc.schema-version": "V1"}
    if backend == "sqlite":
        # SQLite has one writer: wait for it, as PyIceberg does by the URL's timeout.
        return properties | {"uri": f"jdbc:sqlite:{url.database}", "jdbc.busy_timeout": "60000"}
    if backend == "postgresql":
        properties |= _postgres(url)
    place = f"[{url.host}]" if ":" in (url.host or "") else url.host
    port = f":{url.port}" if url.port else ""
    # Java's driver decodes the database's name; user and password never stand in the URL, which errors show.
    properties["uri"] = f"jdbc:{backend}://{place}{port}/{quote(url.database or '', safe='')}"
    if url.username:
        properties["jdbc.user"] = url.username
    if url.password:
        properties["jdbc.password"] = str(url.password)
    return properties


def _postgres(url: URL) -> dict[str, str]:
    """What libpq is told behind the URL's question mark, in the Java driver's words.

    Raises:
        ConfigError: there is no host, or a setting that the Java driver has no word for: TLS may hang on it.
    """
    if not url.host or not url.database:
        raise ConfigError(
            "The catalog's URI names no host or no database, and Java reaches PostgreSQL by TCP alone.",
            way_out="Write postgresql+psycopg2://USER:PASSWORD@HOST:PORT/DATABASE.",
        )
    if strange := sorted(set(url.query) - set(_POSTGRES)):
        raise ConfigError(
            f"The catalog's URI sets {', '.join(strange)}, which can't be said to Spark's driver of PostgreSQL.",
            way_out=f"Leave it out; translated are {', '.join(sorted(_POSTGRES))}.",
        )
    # By these a server that was started anew tells that it has ended a connection; Java then takes another.
    ended = {"retryable_status_codes": "57P01,57P02,57P03"}
    return ended | {f"jdbc.{_POSTGRES[name]}": str(value) for name, value in url.query.items()}
