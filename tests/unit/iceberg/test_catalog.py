"""PyIceberg's catalog properties become Spark's."""

from __future__ import annotations

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import pytest

from sluice.errors import CatalogUnavailableError, ClockBehindError, ConfigError
from sluice.iceberg import availability, compat, refs, table_names
from sluice.iceberg import catalog as iceberg_catalog
from sluice.ingest import session
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger

pytestmark = pytest.mark.unit


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch):
    """What Spark is told of a catalog with that URI, without the catalog's name."""

    def ask(uri: str, kind: str = "sql", **more: str) -> dict[str, str]:
        monkeypatch.setenv("SLUICE_CATALOG", "lake")
        for key, value in {"TYPE": kind, "URI": uri, "WAREHOUSE": "file:///warehouse", **more}.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{key}", value)
        prefix = "spark.sql.catalog.lake."
        return {k.removeprefix(prefix): v for k, v in iceberg_catalog.spark_conf().items() if k.startswith(prefix)}

    return ask


def test_postgres_gets_user_and_password_beside_the_url(told) -> None:
    found = told("postgresql+psycopg2://me%40here:p%40ss%2Fw%3Ard%25%20%23@db.example:5433/ice%20berg")
    assert found["uri"] == "jdbc:postgresql://db.example:5433/ice%20berg"
    assert (found["jdbc.user"], found["jdbc.password"]) == ("me@here", "p@ss/w:rd% #")
    assert (found["type"], found["warehouse"]) == ("jdbc", "file:///warehouse")
    assert told("postgresql://u:p@[::1]/db")["uri"] == "jdbc:postgresql://[::1]/db"


def test_what_the_url_says_of_tls_reaches_java(told) -> None:
    found = told("postgresql://u:p@db/x?sslmode=verify-full&sslrootcert=/etc/ca.pem&connect_timeout=7")
    assert found["jdbc.sslmode"] == "verify-full" and found["jdbc.sslrootcert"] == "/etc/ca.pem"
    assert found["jdbc.connectTimeout"] == "7"
    assert found["uri"] == "jdbc:postgresql://db/x"


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("postgresql://u:s3cret@db/x?sslcrl=/a", "sslcrl"),
        ("postgresql:///x", "no host"),
        ("postgresql://u:s3cret@db", "no database"),
    ],
)
def test_what_java_cannot_be_told_is_refused(told, uri: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        told(uri)
    assert "s3cret" not in str(refused.value)


def test_hives_settings_are_written_once(told) -> None:
    found = told("thrift://a:9083,thrift://b:9083", "hive", HIVE__HIVE2_COMPATIBLE="true")
    assert (found["type"], found["uri"]) == ("hive", "thrift://a:9083,thrift://b:9083")
    assert found["io-impl"].endswith("ResolvingFileIO") and "hive.hive2-compatible" not in found
    # As PyIceberg spells an environment variable; `compat` reads the same name.
    found = told("thrift://a:9083", "hive", HADOOP__ICEBERG__ENGINE__HIVE__LOCK_ENABLED="false")
    assert found[compat.HIVE_LOCKS] == "false"


def test_hives_catalog_is_known_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__METASTORE__URI", "thrift://a:9083")
    assert iceberg_catalog.spark_conf("metastore")["spark.sql.catalog.metastore.type"] == "hive"


def test_a_rest_catalogs_credential_is_redacted_where_spark_shows_its_settings(told) -> None:
    import re

    found = told("https://catalog.example", "rest", CREDENTIAL="client:secret", TOKEN="t")
    assert (found["type"], found["credential"]) == ("rest", "client:secret")
    for name in ("credential", "token", "jdbc.password"):
        assert re.search(session.DEFAULTS["spark.redaction.regex"], f"spark.sql.catalog.lake.{name}")


def test_files_are_reached_by_their_addresses_scheme_and_a_store_of_ones_own_by_paths(told) -> None:
    assert told("sqlite:////x.db")["io-impl"] == "org.apache.iceberg.io.ResolvingFileIO"
    assert "io-impl" not in told("https://catalog.example", "rest")
    assert told("sqlite:////x.db", IO_IMPL="of.one.s.Own")["io-impl"] == "of.one.s.Own"
    assert "s3.path-style-access" not in told("sqlite:////x.db", S3__REGION="eu-west-1")
    own = {"S3__ENDPOINT": "https://minio.example", "S3__REGION": "eu-west-1"}
    found = told("sqlite:////x.db", **own)
    assert (found["s3.path-style-access"], found["client.region"]) == ("true", "eu-west-1")
    assert told("sqlite:////x.db", S3__FORCE_VIRTUAL_ADDRESSING="true", **own)["s3.path-style-access"] == "false"


def test_a_new_sql_catalog_may_be_opened_by_several_at_once(told, tmp_path: Path) -> None:
    """Each finds no tables and creates them: as after `make up`, by Airflow's pages and a command."""
    for attempt in range(4):
        told(f"sqlite:///{tmp_path}/{attempt}.db?timeout=60")
        together = Barrier(8)

        def open_it(barrier: Barrier = together) -> None:
            barrier.wait(30)
            with iceberg_catalog.load() as opened:
                assert opened.list_namespaces() == []

        with ThreadPoolExecutor(8) as pool:
            for future in [pool.submit(open_it) for _ in range(8)]:
                future.result()


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("sqlite:///{0}/none/c.db", "{0}/none/c.db: the folder {0}/none does not exist"),
        ("sqlite:///{0}", "{0}: it is a folder"),
        ("sqlite:///{0}/text", "{0}/text: it is not a SQLite database"),
        ("sqlite:///file:{0}/c.db?mode=ro&uri=true", "{0}/c.db: SQLite may only read it"),
    ],
)
def test_a_sqlite_file_that_cannot_be_opened_is_named_with_the_reason(told, tmp_path: Path, uri: str, why: str) -> None:
    (tmp_path / "text").write_text("no database" * 100)
    told(f"sqlite:///{tmp_path}/c.db")
    iceberg_catalog.load().close()
    told(uri.format(tmp_path))
    with pytest.raises(CatalogUnavailableError) as refused, availability.translate_catalog_errors():
        availability.open_catalog(30).create_namespace("n")
    path, reason = why.format(tmp_path).split(": ")
    assert f"SQLite file {path} cannot be opened for reading and writing: {reason}" in refused.value.message
    assert "PYICEBERG_CATALOG__LAKE__URI" in refused.value.next_step


def test_a_sqlite_error_that_may_pass_is_retried(told, tmp_path: Path) -> None:
    told(f"sqlite:///{tmp_path}/c.db?timeout=0")
    iceberg_catalog.load().close()
    with closing(sqlite3.connect(tmp_path / "c.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CatalogUnavailableError, match="database is locked"):
            availability.open_catalog(30)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("TYPE", "sql"), ("TYPE", "in-memory"), ("PY_CATALOG_IMPL", "pyiceberg.catalog.sql.SqlCatalog")],
)
def test_a_clock_that_is_behind_writes_no_metadata_that_java_takes_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, value: str
) -> None:
    monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{setting}", value)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/lake.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}")
    lake, now = iceberg_catalog.load("lake"), time.time()
    ledger = Ledger(lake)
    row = LedgerRow("orders", LedgerState.STAGED, batch_seq=1)
    ledger.append([row], run_id="a")
    written = ledger.table.metadata_location
    for behind in (61, 3600):
        monkeypatch.setattr(time, "time", lambda behind=behind: now - behind)
        with pytest.raises(ClockBehindError, match=r"clock is .* s behind the last commit.*sluice\.offsets"):
            ledger.append([row], run_id="b")
        with pytest.raises(ClockBehindError):
            refs.commit(lake, lake.load_table(table_names.LEDGER), (), ())
        assert lake.load_table(table_names.LEDGER).metadata_location == written
    monkeypatch.setattr(time, "time", lambda: now - 30)
    Ledger(lake).append([row], run_id="c")
