"""kill -9 of a real driver between every two steps and inside stage and publish, and zombies that wake up later.

The driver is started by spark-submit, as Airflow does it, and stops by itself at the named point: support/driver.py
sees to it, so that the point is hit for certain. The whole process group, JVM included, is then killed, or frozen and
woken up again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from pyiceberg.typedef import Identifier

from sluice import cursor, jvm, maintain, refs, run, settle, tables
from sluice.embedded import archive
from sluice.embedded.home import REPOSITORY
from sluice.ledger import Ledger, State
from sluice.model import CURSOR_TAG
from sluice.upkeep import Action
from tests.support import files
from tests.support.lake import Lake

pytestmark = pytest.mark.timeout(600)

KILLED_AT = [
    "planned",
    "stage: branch made",
    "stage: files written",
    "stage: written",
    "staged",
    "publish: branch made",
    "publish: files written",
    "publish: merged",
    "publish: before land",
    "published",
    "before the ledger",
    "after the ledger",
]
SETTLE = "../tests/support/settler.py"
STOPPED_AT = ["stage: written", "publish: before land"]


def record(n: int) -> dict[str, object]:
    return {"n": n, "text": f"record {n}"}


@contextmanager
def driver(
    it: Lake, lake_folder: Path, point: str, job: str = "ingest.py", arguments: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """A driver of its own that has come to the point, and stays there; settle, as in Airflow, has no Spark."""
    mark, out = it.folder.parent / "mark", it.folder.parent / "driver.log"
    folder = Path(os.environ["SLUICE_JARS"])
    jars = sorted(map(str, folder.glob("*.jar")))
    # As the operator starts it: with the archive of classes, a start takes half the time.
    home = archive.spark_home(folder.parent, jars) or Path(pyspark.__file__).parent
    spark = [
        str(home / "bin" / "spark-submit"),
        *("--master", "local[1]", "--driver-memory", "768m"),
        *("--driver-class-path", os.pathsep.join(jars)),
        *("--conf", "spark.driver.extraJavaOptions=" + " ".join((*jvm.DRIVER, *archive.options(home)))),
    ]
    command = [
        *([sys.executable] if job == SETTLE else spark),
        str(REPOSITORY / "tests" / "support" / "driver.py"),
        *(arguments or ("--group", it.group)),
        *("--run-id", "killed"),
    ]
    variables = {
        **{k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_")},
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        "KAFKA_BOOTSTRAP_SERVERS": it.bootstrap,
        "SLUICE_CONTRACTS": str(it.folder),
        "SLUICE_TEST_JOB": job,
        "SLUICE_TEST_POINT": point,
        "SLUICE_TEST_MARK": str(mark),
        "SLUICE_TEST_DATABASE": str(lake_folder / "iceberg.db"),
        "SLUICE_TEST_WAREHOUSE": str(lake_folder / "warehouse"),
    }
    with out.open("wb") as log:
        process = subprocess.Popen(
            command, env=variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=it.folder.parent
        )
    try:
        until = time.monotonic() + 200
        while not mark.exists():
            assert process.poll() is None, f"the driver ended before {point}:\n{out.read_text()[-3000:]}"
            assert time.monotonic() < until, f"the driver never came to {point}:\n{out.read_text()[-3000:]}"
            time.sleep(0.1)
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Driver and JVM at once, and wait until they are gone."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(20)
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            os.killpg(process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.05)


def prepared(it: Lake) -> tuple[str, str]:
    """A topic with an appended and a merged table that hold a batch, and a frozen plan for the next."""
    it.create_topic(2)
    appended, merged = it.contract(errors={"max_ratio": 0.5}), it.contract(mode="upsert")
    it.send((n % 2, f"k{n % 20}", record(n)) for n in range(30))
    it.run()
    it.send((n % 2, f"k{n % 30}", record(n)) for n in range(100, 180))
    # They delete rows of the one table, and are no rows for the other, which sets them apart.
    it.send((n % 2, f"k{n}", None) for n in range(3, 9))
    assert len(it.plan("killed").topics[it.topic].to_stage) == 1
    return appended, merged


def check(it: Lake, appended: str, merged: str) -> None:
    """The oracle, and that nothing is left lying about and no file is read twice."""
    deletes = sorted((p, o) for p, by in it.sent.items() for o, (_, value) in by.items() if value is None)
    it.assert_appended(appended, without=deletes)
    apart = [(row["_kafka_partition"], row["_kafka_offset"]) for row in it.quarantined(appended)]
    assert sorted(apart) == deletes, "a record was set apart twice, or not at all"
    it.assert_folded(merged)
    for name in (appended, merged, tables.staging(it.topic)):
        found = it.catalog.load_table(name)
        assert set(found.metadata.refs) == {"main", CURSOR_TAG}
        assert found.metadata.refs[CURSOR_TAG].snapshot_id == found.metadata.current_snapshot_id
        paths = [task.file.file_path for task in found.scan().plan_files()]
        assert len(paths) == len(set(paths))
        seqs = [cursor.summary(s).get("sluice.batch-seq") for s in cursor.ancestors(found.metadata)]
        carried = [int(s) for s in seqs if s]
        assert carried == sorted(set(carried), reverse=True), "a batch stands in main's history twice or out of order"


@pytest.mark.parametrize("point", KILLED_AT)
def test_the_driver_is_killed_and_the_next_run_goes_on(
    lake: Callable[..., Lake], lake_folder: Path, point: str
) -> None:
    it = lake()
    appended, merged = prepared(it)
    with driver(it, lake_folder, point) as process:
        if point.endswith("files written"):
            name = tables.staging(it.topic) if point.startswith("stage") else appended
            uncommitted(it, name)
        kill(process)
    # The records that came meanwhile wait for the plan that is frozen.
    it.send((n % 2, f"k{n % 30}", record(n)) for n in range(200, 220))
    it.drain(appended)
    check(it, appended, merged)


@pytest.mark.parametrize(
    ("point", "again"),
    [("settle: tidied", True), ("before the ledger", True), ("before the ledger", False), ("after the ledger", True)],
)
def test_settle_is_killed_and_tried_again_or_given_up(
    lake: Callable[..., Lake], lake_folder: Path, point: str, again: bool
) -> None:
    it = lake()
    appended, merged = prepared(it)
    promises = it.contracts
    group, planned = promises.group(it.group), it.plan("killed")
    run.run(it.context("killed"), group, promises, it.admin, deadline=time.monotonic() + 600)
    # Branches that a driver left, which settle drops, and a tag that is behind, which it moves.
    for name in (appended, merged):
        table = it.catalog.load_table(name)
        first = table.metadata.snapshots[0].snapshot_id
        table.manage_snapshots().create_branch(first, refs.new_branch(it.topic, 1)).create_tag(
            first, CURSOR_TAG
        ).commit()
    promised = settle.expected(planned)
    with driver(it, lake_folder, point, SETTLE, ("--group", it.group, "--promised", json.dumps(promised))) as process:
        kill(process)
    if again:
        outcomes = settle.settle(group, it.catalog, promised, run_id="killed")
        assert {name: each["state"] for name, each in outcomes.items()} == dict.fromkeys(
            (appended, merged), "published"
        )
        check(it, appended, merged)
        settled = [r for r in Ledger(it.catalog).rows({it.topic: 1}) if r.state == State.SETTLED]
        assert {r.batch_seq for r in settled} == {2}
    it.send((n % 2, f"k{n % 30}", record(n)) for n in range(200, 220))
    it.drain(appended)
    check(it, appended, merged)


@pytest.mark.parametrize(
    ("action", "point"),
    [
        ("rewrite_data_files", "rewrite: files written"),
        ("expire_snapshots", "expire: marked"),
        ("expire_snapshots", "expire: deleted"),
        ("remove_orphan_files", "before it is kept"),
    ],
)
def test_maintenance_is_killed_and_the_next_run_of_it_goes_on(
    lake: Callable[..., Lake], lake_folder: Path, action: str, point: str
) -> None:
    it = lake()
    it.create_topic(2)
    strict = {"snapshot_age": "1s", "staging_retention": "1s", "min_snapshots": 1, "min_input_files": 2}
    appended, merged = it.contract(maintenance=strict), it.contract(mode="upsert", maintenance=strict)
    for number in range(3):
        it.send((n % 2, f"k{n % 20}", record(n)) for n in range(100 * number, 100 * number + 30))
        it.run()
    names = [appended, merged, ".".join(tables.staging(it.topic))]
    arguments = ("--action", action, "--tables", json.dumps(names))
    time.sleep(1.1)
    with driver(it, lake_folder, point, "maintain.py", arguments) as process:
        if point == "rewrite: files written":
            uncommitted(it, appended)
        kill(process)
    assert not it.plan().has_work
    it.send((n % 2, f"k{n % 30}", record(n)) for n in range(1000, 1020))
    it.drain(appended)
    done = maintain.run(it.context("again"), Action(action), names, it.contracts, deadline=time.monotonic() + 600)
    assert {e.table: e.error for e in done if e.error} == {}
    it.send((n % 2, f"k{n % 30}", record(n)) for n in range(2000, 2020))
    it.drain(appended)
    it.assert_appended(appended)
    it.assert_folded(merged)


@pytest.mark.parametrize(
    ("action", "point"),
    [
        ("expire_snapshots", "expire: half of the files gone"),
        ("remove_orphan_files", "orphans: half of the files gone"),
    ],
)
def test_a_kill_half_way_through_removing_files_costs_no_file_that_is_needed(
    lake: Callable[..., Lake], lake_folder: Path, action: str, point: str
) -> None:
    it = lake()
    it.create_topic(2)
    strict = {"snapshot_age": "1s", "staging_retention": "1s", "min_snapshots": 1, "min_input_files": 2}
    appended, merged = it.contract(maintenance=strict), it.contract(mode="upsert", maintenance=strict)
    it.send((n % 2, f"k{n % 20}", record(n)) for n in range(30))
    it.run()
    table = it.catalog.load_table(appended)
    if action == "expire_snapshots":
        # Commits that add nothing, so that removing their files takes long enough to be killed in.
        for _ in range(200):
            tables.ready_to_append(table)
            table.append(table.schema().as_arrow().empty_table())
    orphans = [Path(table.location().removeprefix("file://"), "data", f"orphan-{n}.parquet") for n in range(2000)]
    if action == "remove_orphan_files":
        for path in orphans:
            path.write_bytes(b"PAR1")
        files.make_old(table)
    it.send((n % 2, f"k{n % 20}", record(n)) for n in range(100, 130))
    it.run()
    time.sleep(1.1)
    there = files.on_disk(it.catalog.load_table(appended))
    with driver(it, lake_folder, point, "maintain.py", ("--action", action, "--tables", json.dumps([appended]))) as job:
        kill(job)
    table = it.catalog.load_table(appended)
    left = files.on_disk(table) - files.named(table)
    assert left, "everything was removed before the driver was killed"
    assert there - files.on_disk(table), "nothing was removed before the driver was killed"
    if action == "expire_snapshots":
        assert len(table.metadata.snapshots) < 10
    else:
        assert len([path for path in orphans if path.exists()]) < len(orphans)
    names = [appended, merged, ".".join(tables.staging(it.topic))]

    def whole() -> None:
        it.assert_appended(appended)
        it.assert_folded(merged)
        for name in names:
            found = it.catalog.load_table(name)
            assert not files.named(found) - files.on_disk(found)
            files.read_all(found)

    whole()
    it.send((n % 2, f"k{n % 30}", record(n)) for n in range(1000, 1020))
    it.drain(appended)
    for each in (Action(action), Action.ORPHANS):
        for name in names:
            files.make_old(it.catalog.load_table(name))
        done = maintain.run(it.context("again"), each, names, it.contracts, deadline=time.monotonic() + 600)
        assert {e.table: e.error for e in done if e.error} == {}
    for name in names:
        found = it.catalog.load_table(name)
        assert files.on_disk(found) == files.named(found)
    whole()


def uncommitted(it: Lake, name: str | Identifier) -> None:
    """There are data files below the table that no snapshot names."""
    table = it.catalog.load_table(name)
    on_disk = {str(f) for f in Path(table.location().removeprefix("file://")).glob("data/**/*.parquet")}
    named = {
        task.file.file_path.removeprefix("file://")
        for s in table.metadata.snapshots
        for task in table.scan(snapshot_id=s.snapshot_id).plan_files()
    }
    assert on_disk - named, "the driver was killed before it had written a file"


@pytest.mark.parametrize("point", STOPPED_AT)
def test_a_frozen_driver_wakes_up_after_its_successor_and_changes_nothing(
    lake: Callable[..., Lake], lake_folder: Path, point: str
) -> None:
    it = lake()
    appended, merged = prepared(it)
    with driver(it, lake_folder, point) as process:
        os.killpg(process.pid, signal.SIGSTOP)
        it.send((n % 2, f"k{n % 30}", record(n)) for n in range(200, 220))
        it.drain(appended)
        check(it, appended, merged)
        names = (appended, merged, tables.staging(it.topic))
        heads = [it.catalog.load_table(n).metadata.current_snapshot_id for n in names]
        (it.folder.parent / "mark").unlink()
        os.killpg(process.pid, signal.SIGCONT)
        assert process.wait(120) in (0, 2)
        assert heads == [it.catalog.load_table(n).metadata.current_snapshot_id for n in names]
    it.send((n % 2, f"k{n % 30}", record(n)) for n in range(300, 320))
    it.drain(appended)
    check(it, appended, merged)
