"""Ingestion, fencing, kills, maintenance and rollback work on a PostgreSQL catalog with S3 and on a REST catalog."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pyspark
import pytest
from pyspark.sql import SparkSession

from sluice.batch import CURSOR_TAG
from sluice.embedded.home import REPOSITORY
from sluice.errors import FencedError
from sluice.iceberg import catalog as iceberg_catalog
from sluice.iceberg import cursor, snapshots, table_names
from sluice.ingest.branch_write import BranchWrite
from sluice.ingest.publish import publish
from sluice.ingest.stage import stage
from sluice.ledger.maintenance_table import Action
from sluice.maintain import remove_orphans
from sluice.maintain import targets as maintained
from sluice.status import status
from tests.spark.maintain import test_maintain as upkeep
from tests.spark.operate.test_rollback import act, check_refs, look
from tests.support.faults import PausedCall, StepThread, by_run
from tests.support.killable_driver import StoppingJob, kill_driver, stopped_driver
from tests.support.lake import Lake
from tests.support.services.postgres import PASSWORD, Postgres
from tests.support.services.rest_catalog import RestCatalog
from tests.support.services.s3 import SECRET, S3Server


def use(spark: SparkSession, name: str, settings: dict[str, str]) -> pytest.MonkeyPatch:
    """From now on the catalog is the one that is configured so, on both sides."""
    patch = pytest.MonkeyPatch()
    patch.setenv("SLUICE_CATALOG", name)
    for key, value in settings.items():
        patch.setenv(f"PYICEBERG_CATALOG__{name.upper()}__{key}", value)
    # A running session takes another catalog; those that steps make begin with what all share.
    shared = spark._jsparkSession.sharedState().conf()
    for key, value in iceberg_catalog.spark_conf().items():
        if key.startswith("spark.sql.catalog."):
            spark.conf.set(key, value)
            shared.set(key, value)
    return patch


@pytest.fixture(scope="module")
def postgres(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres() as running, S3Server(tmp_path_factory.mktemp("s3")) as store:
        patch = use(spark, "postgres", {"TYPE": "sql", "URI": running.uri, **store.settings})
        # This store answers for a part of a file with the checksum of the whole.
        patch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required")
        yield running
        patch.undo()


@pytest.fixture(scope="module")
def rest(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    folder = tmp_path_factory.mktemp("rest")
    (folder / "warehouse").mkdir()
    with RestCatalog(folder) as running:
        patch = use(spark, "rest", {"TYPE": "rest", "URI": running.url})
        yield running
        patch.undo()


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

    upkeep.fill(it, 700)
    it.run()
    last = cursor.find_offset_snapshot(it.catalog.load_table(merged), "sluice.published-through")
    assert last and last.parent_snapshot_id
    act(it, look(it, merged, snapshot_id=last.parent_snapshot_id))
    check_refs(it, merged)
    it.drain(merged)
    it.assert_folded(merged)

    # The contract changes, and main with it.
    it.contract(table=appended, where="n >= 0")
    upkeep.fill(it, 900)
    it.drain(appended)
    steps = [
        snapshots.summary(s).get("sluice.step") for s in snapshots.ancestors(it.catalog.load_table(appended).metadata)
    ]
    assert steps[:2] == ["publish", "contract"], steps
    it.assert_appended(appended)
    return appended, merged


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


def killed(it: Lake, lake_folder: Path) -> None:
    """A driver as Airflow starts it is killed between stage and publish; nowhere does it show a password."""
    upkeep.fill(it, 800)
    it.plan("killed")
    with stopped_driver(lake_folder, StoppingJob(it, "staged")) as process:
        told = next(lake_folder.glob("driver-*/driver.log")).read_text()
        for each in (leader := psutil.Process(process.pid), *leader.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                told += " ".join(each.cmdline())
        assert "spark-submit" in told or "SparkSubmit" in told
        assert not [secret for secret in (PASSWORD, SECRET, "jdbc.password") if secret in told]
        kill_driver(process)
    assert not it.plan().topics[it.topic].to_stage


def test_postgres(postgres: Postgres, lake: Callable[..., Lake], lake_folder: Path) -> None:
    it = lake()
    assert it.catalog.properties["uri"] == postgres.uri
    appended, merged = way(it)
    killed(it, lake_folder)
    # The server restarts, and with it ends all that clients keep open: the next run goes on.
    counted = f"SELECT count(*) FROM postgres.{merged}"
    held = it.spark.sql(counted).first()
    postgres.stop()
    postgres.start()
    assert it.spark.sql(counted).first() == held
    upkeep.fill(it, 900)
    it.drain(appended)
    it.assert_appended(appended)
    it.assert_folded(merged)


def test_rest(rest: RestCatalog, lake: Callable[..., Lake]) -> None:
    it = lake()
    assert it.catalog.properties["uri"] == rest.url
    way(it)


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
