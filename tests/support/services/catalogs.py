"""The catalogs of tests/spark/iceberg/test_catalogs.py, by name, each with its store, running for a `with` block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.services import glue, guarded_catalog
from tests.support.services import postgres as postgresql
from tests.support.services.glue import Glue
from tests.support.services.guarded_catalog import KeyGuard, TokenGuard
from tests.support.services.hive import HiveMetastore
from tests.support.services.postgres import Postgres
from tests.support.services.rest_catalog import RestCatalog
from tests.support.services.s3 import KEY, SECRET, S3Server

TOKEN_LIFE_S = 4.0


@dataclass(frozen=True)
class RunningCatalog:
    """A catalog that runs.

    Attributes:
        settings: Those of PyIceberg's catalog, as its variables spell them.
        environment: Further variables.
        secrets: What no command line and no log may show.
        parts: The servers, by name, for what a test asks of one.
        packages: A folder of Python packages that its client needs.
    """

    settings: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    parts: Mapping[str, object] = field(default_factory=dict)
    packages: str = ""


# This store answers for a part of a file with the checksum of the whole.
S3MOCK = {"AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required"}


@contextmanager
def sqlite(folder: Path) -> Iterator[RunningCatalog]:
    files = {"URI": f"sqlite:///{folder}/iceberg.db?timeout=60", "WAREHOUSE": f"file://{folder}/warehouse"}
    yield RunningCatalog({"TYPE": "sql", **files})


@contextmanager
def postgres(folder: Path) -> Iterator[RunningCatalog]:
    with Postgres() as server, S3Server(folder) as store:
        settings = {"TYPE": "sql", "URI": server.uri, **store.settings}
        secrets = (postgresql.PASSWORD, SECRET)
        yield RunningCatalog(settings, S3MOCK, secrets, {"postgres": server, "s3": store})


@contextmanager
def rest(folder: Path) -> Iterator[RunningCatalog]:
    (folder / "warehouse").mkdir()
    with RestCatalog(folder) as server:
        yield RunningCatalog({"TYPE": "rest", "URI": server.url})


@contextmanager
def guarded(folder: Path) -> Iterator[RunningCatalog]:
    """REST with OAuth2, whose tokens expire, and a warehouse on S3 whose keys the catalog vends: clients have none."""
    (folder / "s3").mkdir()
    (folder / "rest").mkdir()
    with S3Server(folder / "s3") as store, KeyGuard(store.port, KEY) as keys:
        given = store.settings_at(keys.port)
        with RestCatalog(folder / "rest", given) as server, TokenGuard(server.port, TOKEN_LIFE_S) as tokens:
            settings = {
                "TYPE": "rest",
                "URI": tokens.url,
                "OAUTH2_SERVER_URI": tokens.token_url,
                "CREDENTIAL": f"{guarded_catalog.CLIENT}:{guarded_catalog.CLIENT_SECRET}",
                "SCOPE": guarded_catalog.SCOPE,
                **{name: given[name] for name in ("S3__ENDPOINT", "S3__REGION")},
            }
            secrets = (guarded_catalog.CLIENT_SECRET, SECRET)
            yield RunningCatalog(settings, S3MOCK, secrets, {"tokens": tokens, "keys": keys})


@contextmanager
def on_glue(folder: Path) -> Iterator[RunningCatalog]:
    with Glue(folder) as server:
        packages = str(glue.package_folder())
        yield RunningCatalog(server.settings, server.environment, (glue.SECRET,), {"glue": server}, packages)


@contextmanager
def hive(folder: Path) -> Iterator[RunningCatalog]:
    with HiveMetastore(folder) as server:
        yield RunningCatalog(server.settings, parts={"hive": server})


CATALOGS: Mapping[str, Callable[[Path], AbstractContextManager[RunningCatalog]]] = {
    "sqlite": sqlite,
    "postgres": postgres,
    "rest": rest,
    "guarded": guarded,
    "glue": on_glue,
    "hive": hive,
}
