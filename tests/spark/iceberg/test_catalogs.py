"""Ingestion, fencing, kills, maintenance, rollback and a contract's change work on each catalog.

`make test` runs PostgreSQL with S3, and REST; `make test-infra` runs the others.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from pyspark.sql import SparkSession

from sluice.batch import CURSOR_TAG
from sluice.embedded.home import REPOSITORY
from sluice.errors import FencedError, TableUnavailableError
from sluice.iceberg import catalog as iceberg_catalog
from sluice.iceberg import cursor, snapshots, table_names, tables
from sluice.ingest.branch_write import BranchWrite
from sluice.ingest.publish import publish
from sluice.ingest.stage import stage
from sluice.ledger.maintenance_table import Action
from sluice.maintain import remove_orphans
from sluice.maintain import targets as maintained
from sluice.rehearse.table_copy import kill_group
from sluice.status import status
from tests.spark.evolve import test_evolve as evolution
from tests.spark.ingest.test_races import moves_main
from tests.spark.maintain import test_maintain as upkeep
from tests.spark.operate.test_rollback import act, check_refs, look
from tests.support.faults import PausedCall, StepThread, by_run, lose_commit
from tests.support.killable_driver import StoppingJob, stopped_driver
from tests.support.lake import COLUMNS, Lake, record
from tests.support.services.catalogs import CATALOGS, TOKEN_LIFE_S, RunningCatalog
from tests.support.services.hive import DefaultHiveMetastore

# The others are marked infra, so that `make test` takes no longer.
USUAL = ("postgres", "rest")
AWS_KEYS = {"AWS_ACCESS_KEY_ID": "aws.accessKeyId", "AWS_SECRET_ACCESS_KEY": "aws.secretAccessKey"}
"""AWS's variables, and the JVM's properties of the same meaning."""
WITHOUT_LOCKS = "HADOOP__ICEBERG__ENGINE__HIVE__LOCK_ENABLED"


@dataclass(frozen=True)
class Here:
    """The catalog of a test, by the name that Spark and PyIceberg have for it."""

    name: str
    running: RunningCatalog


@contextmanager
def use_catalog(spark: SparkSession, name: str, running: RunningCatalog) -> Iterator[None]:
    """From now on the catalog is this one, on both sides."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLUICE_CATALOG", name)
        for key, value in running.settings.items():
            patch.setenv(f"PYICEBERG_CATALOG__{name.upper()}__{key}", value)
        for key, value in running.environment.items():
            patch.setenv(key, value)
        # AWS's client in the running JVM does not see variables that are new.
        system = spark._jvm.java.lang.System  # type: ignore[union-attr]
        for variable, key in AWS_KEYS.items():
            if variable in running.environment:
                system.setProperty(key, running.environment[variable])
            else:
                system.clearProperty(key)
        if running.packages:  # behind all others, which are those of production; drivers get it before
            patch.setattr(sys, "path", [*sys.path, running.packages])
            patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), running.packages))))
        # A running session takes another catalog; those that steps make begin with what all share.
        shared = spark._jsparkSession.sharedState().conf()
        for key, value in iceberg_catalog.spark_conf().items():
            if key.startswith("spark.sql.catalog."):
                spark.conf.set(key, value)
                shared.set(key, value)
        yield


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, marks=() if each in USUAL else pytest.mark.infra) for each in CATALOGS],
)
def catalog(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Here]:
    folder = tmp_path_factory.mktemp(request.param)
    with CATALOGS[request.param](folder) as running, use_catalog(spark, request.param, running):
        yield Here(request.param, running)


def way(it: Lake) -> tuple[str, str]:
    """All that happens to an appended and a merged table of one topic, once; returns their names."""
    appended, merged = upkeep.prepared(it, 2)
    it.assert_appended(appended)
    it.assert_folded(merged)
    told = status.read_status(it.contracts, [appended, merged], kafka=it.kafka)
    assert [(t.table, t.exists, t.totals["records"], t.problems) for t in told.tables] == [
        (appended, True, 40, []),
        (merged, True, 40, []),
    ]
    assert not it.plan().has_work

    # Two publish one batch: one succeeds. The other table was left after stage, and the next run goes on with it.
    upkeep.fill(it, 500)
    (batch,) = it.plan().topics[it.topic].to_stage
    assert stage(it.context("early"), batch, gaps_expected=False).records == 20
    with pytest.MonkeyPatch.context() as patch:
        pause = PausedCall(patch, BranchWrite, "fast_forward_main", by_run("late"))
        late = StepThread(lambda: publish(it.context("late"), it.contract_of(merged), batch))
        pause.reached(late)
        done = publish(it.context("early"), it.contract_of(merged), batch)
        pause.go()
        late.end()
    assert isinstance(late.error, FencedError), (late.result, late.error)
    assert it.catalog.load_table(merged).metadata.current_snapshot_id == done.snapshot_id
    it.drain(appended)

    before = len(it.catalog.load_table(merged).metadata.snapshots)
    upkeep.good(upkeep.run(it, Action.REWRITE))
    upkeep.good(upkeep.run(it, Action.EXPIRE))
    assert len(it.catalog.load_table(merged).metadata.snapshots) < before
    beside_another_catalog(it, appended)
    for name in (appended, merged, ".".join(table_names.staging(it.topic))):
        assert CURSOR_TAG in it.catalog.load_table(name).metadata.refs

    # The catalog's answers are lost when main moves: of staging, and of both tables.
    upkeep.fill(it, 700)
    with pytest.MonkeyPatch.context() as patch:
        lost = lose_commit(patch, it.catalog, applied=True, times=3, when=lambda _, u: moves_main(u) and len(u) == 3)
        assert {each["state"] for each in it.run().values()} == {"published"}
    assert len(lost) == 3
    last = cursor.find_offset_snapshot(it.catalog.load_table(merged), "sluice.published-through")
    assert last and last.parent_snapshot_id
    act(it, look(it, merged, snapshot_id=last.parent_snapshot_id))
    check_refs(it, merged)
    it.drain(merged)
    it.assert_folded(merged)

    evolves(it, appended)
    return appended, merged


def evolves(it: Lake, name: str) -> None:
    """A column is added at once, before those that the table has; one that is dropped waits for a review."""
    added = [COLUMNS[0], {"name": "added", "type": "struct<n: long>"}, *COLUMNS[1:]]
    it.contract(table=name, columns=added)
    it.send([(0, "evolved", {**record(900), "added": {"n": 1}})])
    it.drain(name)
    steps = [snapshots.summary(s).get("sluice.step") for s in snapshots.ancestors(it.catalog.load_table(name).metadata)]
    assert steps[:2] == ["publish", "contract"], steps
    it.contract(table=name, columns=added[:-1])
    it.plan()
    assert evolution.states(it, name)[-1] == (3, "review")
    assert "text" in evolution.columns_of(it, name)
    evolution.decide(it, name, approve=True)
    it.send([(0, "evolved", {**record(901), "added": {"n": 2}})])
    it.drain(name)
    assert list(evolution.columns_of(it, name)) == ["id", "added", "n"]
    it.assert_appended(name)
    told = evolution.values(it, name, "n", "added")
    assert told[-2:] == [(900, {"n": 1}), (901, {"n": 2})] and told[0] == (0, None)
    # What Spark reads of it.
    assert it.spark.table(f"{it.catalog.name}.{name}").where("added.n = 2").count() == 1


def beside_another_catalog(it: Lake, name: str) -> None:
    """Orphan files are listed where files are; a metadata file tells of another catalog's table in the folder."""
    table = it.catalog.load_table(name)
    theirs = f"{table.location()}/metadata/00001-theirs.metadata.json"
    with table.io.new_output(theirs).create() as file:
        file.write(b'{"table-uuid": "theirs", "snapshots": [{}]}')
    (stopped,) = upkeep.run(it, Action.ORPHANS, name).values()
    assert stopped.failed and "Another table, theirs, writes to this table's folder" in stopped.summary, stopped.summary
    table.io.delete(theirs)
    upkeep.good(upkeep.run(it, Action.ORPHANS, name))
    # Nothing there is old enough: so what is removed is listed by hand. What the table names stays.
    live = next(iter(table.scan().plan_files())).file.file_path
    left = live.replace("/data/", "/data/left-")
    with table.io.new_output(left).create() as file:
        file.write(b"PAR1")
    (subject,) = maintained.list_targets(it.contracts, [name])
    old = datetime.now(UTC) - timedelta(days=2)
    assert remove_orphans.remove_files(it.context("by hand"), subject, [live, left], old) == 1
    assert [table.io.new_input(path).exists() for path in (live, left)] == [True, False]


def killed(it: Lake, lake_folder: Path, secrets: tuple[str, ...]) -> None:
    """A driver as Airflow starts it is killed between stage and publish; nowhere does it show a password."""
    upkeep.fill(it, 800)
    it.plan("killed")
    with stopped_driver(lake_folder, StoppingJob(it, "staged")) as process:
        told = max(lake_folder.glob("driver-*/driver.log"), key=lambda log: log.stat().st_mtime).read_text()
        for each in (leader := psutil.Process(process.pid), *leader.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                told += " ".join(each.cmdline())
        assert "spark-submit" in told or "SparkSubmit" in told
        assert not [secret for secret in (*secrets, "jdbc.password") if secret in told]
        kill_group(process)
    assert not it.plan().topics[it.topic].to_stage


def test_a_catalog_takes_the_whole_way(catalog: Here, lake: Callable[..., Lake], lake_folder: Path) -> None:
    it = lake()
    assert it.catalog.name == catalog.name
    appended, merged = way(it)
    if catalog.name == "rest":  # another one of its kind is killed below
        return
    killed(it, lake_folder, catalog.running.secrets)
    after = AFTERWARDS.get(catalog.name)
    if after:
        after(it, catalog.running.parts, merged)
    upkeep.fill(it, 900)
    it.drain(appended)
    it.assert_appended(appended)
    it.assert_folded(merged)


def after_a_restart(it: Lake, parts: Mapping[str, Any], merged: str) -> None:
    """The server restarts, and with it ends all that clients keep open: the next run goes on."""
    counted = f"SELECT count(*) FROM postgres.{merged}"
    held = it.spark.sql(counted).first()
    parts["postgres"].stop()
    parts["postgres"].start()
    assert it.spark.sql(counted).first() == held


def after_tokens_expired(it: Lake, parts: Mapping[str, Any], merged: str) -> None:
    """Both sides logged in by tokens, more than once, and reached S3 by the keys that the catalog gave them."""
    tokens, keys = parts["tokens"], parts["keys"]
    assert len(tokens.granted) > 4 and tokens.refused_grants == []
    assert any("PyIceberg" in agent for agent in tokens.agents) and len(tokens.agents) > 1, tokens.agents
    assert keys.refused == [] and sum(keys.used.values()) > 100
    # Without a request for the time of a token, both begin with one that has expired.
    time.sleep(TOKEN_LIFE_S + 1)
    assert it.catalog.load_table(merged).scan().count() == it.spark.table(f"guarded.{merged}").count()


def after_a_race_for_a_version(it: Lake, parts: Mapping[str, Any], merged: str) -> None:
    """Java commits to Glue between Python's reading of a version and its commit, which is refused."""
    table, client = it.catalog.load_table(merged), it.catalog.glue  # type: ignore[attr-defined]
    update, raced = client.update_table, []

    def late(**values: Any) -> Any:
        if not raced:
            raced.append(1)
            it.spark.sql(f"ALTER TABLE glue.{merged} SET TBLPROPERTIES ('first' = 'java')")
        return update(**values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "update_table", late)
        with pytest.raises(CommitFailedException):
            table.transaction().set_properties({"second": "python"}).commit_transaction()
    assert raced
    found = it.catalog.load_table(merged).properties
    assert found["first"] == "java" and "second" not in found


def after_writers_without_locks(it: Lake, parts: Mapping[str, Any], merged: str) -> None:
    """Java commits while Python holds the table's lock, as if it had expired: Python's commit is refused.

    Then Python commits without a lock, though another has it. The metastore knows a name in any case.
    """
    change = f"ALTER TABLE hive.{merged} SET TBLPROPERTIES"
    it.spark.sql(f"{change} ('engine.hive.lock-enabled' = 'false')")
    table, write, raced = it.catalog.load_table(merged), it.catalog._write_metadata, []  # type: ignore[attr-defined]

    def late(**values: Any) -> None:
        raced.append(it.spark.sql(f"{change} ('first' = 'java {len(raced)}')"))
        write(**values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(it.catalog, "_write_metadata", late)
        with pytest.raises(CommitFailedException, match="changed meanwhile"):
            table.transaction().set_properties({"second": "python"}).commit_transaction()
    assert raced
    found = it.catalog.load_table(merged.upper())
    assert found.properties["first"] == "java 0" and "second" not in found.properties

    from hive_metastore import ttypes  # needs Thrift, as the catalog does

    with it.catalog._client as held:  # type: ignore[attr-defined]
        lock = held.lock(it.catalog._create_lock_request(*merged.split(".")))  # type: ignore[attr-defined]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(f"PYICEBERG_CATALOG__HIVE__{WITHOUT_LOCKS}", "false")
            found = iceberg_catalog.load().load_table(merged)
            found.transaction().set_properties({"second": "python"}).commit_transaction()
            patch.setattr(found.catalog, "_write_metadata", late)
            with pytest.raises(CommitFailedException, match="changed meanwhile"):
                found.transaction().set_properties({"third": "python"}).commit_transaction()
        held.unlock(ttypes.UnlockRequest(lockid=lock.lockid))


AFTERWARDS = {
    "postgres": after_a_restart,
    "guarded": after_tokens_expired,
    "glue": after_a_race_for_a_version,
    "hive": after_writers_without_locks,
}


@pytest.mark.infra
def test_a_metastore_that_refuses_new_columns_is_named_with_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DefaultHiveMetastore(tmp_path) as server:
        for key, value in server.settings.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__DEFAULTS__{key}", value)
        catalog = iceberg_catalog.load("defaults")
        table = tables.ensure_table(catalog, ("db", "t"), Schema(NestedField(1, "text", StringType())))
        assert table.location().endswith(f"{tmp_path}/warehouse/db.db/t")  # not in the server's own folder
        change = table.update_schema().add_column("n", LongType()).move_first("n")
        with pytest.raises(TableUnavailableError, match="refuses the new columns") as refused:
            change.commit()
        assert "hive.metastore.disallow.incompatible.col.type.changes to false" in (refused.value.next_step or "")


def test_a_jvm_that_python_starts_has_no_catalog_on_its_command_line(spark: SparkSession) -> None:
    started = psutil.Process(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
    told = started.cmdline()
    for each in started.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # one that has just ended
            told += each.cmdline()
    assert any("spark.sql.session.timeZone" in argument for argument in told)
    assert not [argument for argument in told if "spark.sql.catalog." in argument]


def test_what_spark_submit_was_given_wins_over_our_defaults(lake_folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "told.py"
    script.write_text(
        "from sluice.ingest import session\n"
        "spark = session.build_session('told').newSession()\n"
        "names = ('shuffle.partitions', 'session.timeZone', 'ansi.enabled')\n"
        "print('told', *(spark.conf.get(f'spark.sql.{name}') for name in names))\n"
    )
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    given = ("shuffle.partitions=77", "session.timeZone=Europe/Berlin", "ansi.enabled=false")
    command = [
        str(submit),
        "--master",
        "local[1]",
        *(a for g in given for a in ("--conf", f"spark.sql.{g}")),
        str(script),
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    env |= {"PYTHONPATH": str(REPOSITORY / "include"), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    # But for what decides which values rows hold.
    assert "told 77 UTC true" in done.stdout, done.stderr[-3000:]
