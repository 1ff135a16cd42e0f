"""Kafka Connect's Iceberg sink and Flink as separate processes, compared with Sluice in section a.

Their jars are pinned in peers.lock, fetched when they are first needed, and never part of a package.
`PYTHONPATH=include:. python -m bench.peers` resolves them again.
"""

from __future__ import annotations

import json
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench import feed
from bench.lab import Lab, Whole, say
from sluice.embedded import jars, relock
from sluice.embedded.caller_env import inherited_env
from sluice.embedded.failure import StackError, last_lines
from sluice.embedded.home import cache_folder
from sluice.embedded.java import LOG4J_TO_CONSOLE, find_java
from sluice.embedded.ports import HOST, free_port
from sluice.embedded.process import MARK_VARIABLE, Service, start_and_wait, stop_service

LOCK = Path(__file__).with_name("peers.lock")
HEADER = """\
# The jars of the benchmarks' peers, pinned: "organisation:name:revision" = SHA-256 of the jar.
# Written by `PYTHONPATH=include:. python -m bench.peers` from the sets there.
"""
CONNECT, FLINK = "connect", "flink"
OF_MODE = {"append": (FLINK, CONNECT), "upsert": (FLINK,)}
COLUMNS = (
    "id STRING, n BIGINT, amount DOUBLE, `at` TIMESTAMP_LTZ(6), note STRING, "
    "_kafka_topic STRING METADATA FROM 'topic' VIRTUAL, _kafka_partition INT METADATA FROM 'partition' VIRTUAL, "
    "_kafka_offset BIGINT METADATA FROM 'offset' VIRTUAL, "
    "_kafka_timestamp TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL"
)
COORDINATES = ("topic", "partition", "offset", "timestamp")
PATIENCE_S = 600.0
SETS = {
    CONNECT: relock.JarSet(
        (
            "org.apache.iceberg:iceberg-kafka-connect:1.12.0",
            "org.apache.iceberg:iceberg-parquet:1.12.0",
            "org.apache.kafka:connect-runtime:4.3.1",
            "org.apache.kafka:connect-json:4.3.1",
            "org.apache.hadoop:hadoop-client-runtime:3.4.2",
            "org.apache.logging.log4j:log4j-slf4j2-impl:2.25.4",
            "org.xerial:sqlite-jdbc:3.50.3.0",
        ),
        transitive=True,
    ),
    # Not every repository has all parts of Flink 2.0.1 and of Iceberg 1.12.0.
    FLINK: relock.JarSet(
        (
            "org.apache.flink:flink-sql-client:2.0.0",
            "org.apache.flink:flink-sql-gateway:2.0.0",
            # The SQL client does not start without it, though no job uses Python.
            "org.apache.flink:flink-python:2.0.0",
            "org.apache.flink:flink-clients:2.0.0",
            "org.apache.flink:flink-table-planner-loader:2.0.0",
            "org.apache.flink:flink-table-runtime:2.0.0",
            "org.apache.flink:flink-json:2.0.0",
            "org.apache.flink:flink-connector-files:2.0.0",
            "org.apache.flink:flink-sql-connector-kafka:4.0.1-2.0",
            "org.apache.iceberg:iceberg-flink-runtime-2.0:1.11.0",
            "org.apache.hadoop:hadoop-client-runtime:3.4.2",
            "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
            "org.xerial:sqlite-jdbc:3.50.3.0",
        ),
        transitive=True,
    ),
}
# Flink's own defaults for Java 17 and above, as far as SQL needs them.
OPENED = ("lang", "lang.reflect", "net", "nio", "text", "time", "util", "util.concurrent", "util.concurrent.atomic")
LOG4J = f"""\
{LOG4J_TO_CONSOLE}logger.job.name = org.apache.flink.runtime.executiongraph.ExecutionGraph
logger.job.level = info
"""


@dataclass(frozen=True)
class Pipe:
    """What a peer copies, and where to.

    Attributes:
        folder: For its configuration, log and state.
        bootstrap: The broker.
        topic: The topic, with JSON values.
        table: The Iceberg table, which exists.
        catalog: The properties of its catalog, for Iceberg's Java library.
        commit_s: Seconds between two commits.
        heap: The JVM's largest heap.
    """

    folder: Path
    bootstrap: str
    topic: str
    table: str
    catalog: Mapping[str, str]
    commit_s: int = 5
    heap: str = "2g"


def jdbc_catalog(database: Path, warehouse: Path) -> dict[str, str]:
    """Return the properties of Iceberg's JDBC catalog in a SQLite file, which PyIceberg's `SqlCatalog` opens too."""
    return {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{database}?busy_timeout=60000",
        "jdbc.schema-version": "V1",
        "warehouse": f"file://{warehouse}",
    }


def connect(pipe: Pipe, *, tasks: int = 2, settings: Mapping[str, str] | None = None) -> Service:
    """Return a standalone Connect worker with the Iceberg sink; it is ready when all tasks run, and never ends.

    Args:
        pipe: What it copies. The control topic, `control-TOPIC`, must exist.
        tasks: The number of tasks.
        settings: Further settings of the connector.

    Raises:
        StackError: Its jars cannot be fetched.
    """
    port = free_port()
    worker = {
        "bootstrap.servers": pipe.bootstrap,
        "listeners": f"http://{HOST}:{port}",
        "plugin.path": str(pipe.folder),  # of plugins with class loaders of their own: there are none
        "plugin.discovery": "service_load",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        # The sink commits only when the worker calls it, which without new records is this often, by default 60 s.
        "offset.flush.interval.ms": "1000",
        "offset.storage.file.filename": str(pipe.folder / "connect.offsets"),
    }
    connector = {
        "name": "iceberg",
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": str(tasks),
        "topics": pipe.topic,
        "iceberg.tables": pipe.table,
        "iceberg.catalog": "lake",
        **{f"iceberg.catalog.{name}": value for name, value in pipe.catalog.items()},
        "iceberg.control.topic": f"control-{pipe.topic}",
        "iceberg.control.commit.interval-ms": str(pipe.commit_s * 1000),
        "transforms": "coordinates",
        "transforms.coordinates.type": "org.apache.kafka.connect.transforms.InsertField$Value",
        **{f"transforms.coordinates.{part}.field": f"_kafka_{part}" for part in COORDINATES},
        **(settings or {}),
    }
    files = []
    for name, content in (("worker", worker), ("connector", connector)):
        files.append(pipe.folder / f"{name}.properties")
        files[-1].write_text("".join(f"{key}={value}\n" for key, value in content.items()), encoding="ascii")
    program = ["org.apache.kafka.connect.cli.ConnectStandalone", *map(str, files)]

    def ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/connectors/iceberg/status", timeout=5) as answer:
                found = json.load(answer)["tasks"]
        except OSError:
            return False
        return [task["state"] for task in found] == ["RUNNING"] * tasks

    return _service(CONNECT, pipe, program, ready)


def flink(
    pipe: Pipe,
    columns: str,
    *,
    upsert: bool = False,
    options: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Service:
    """Return a Flink SQL job in one JVM, which copies a topic up to its end and ends; it is ready when the job runs.

    Args:
        pipe: What it copies.
        columns: The columns as in Flink's `CREATE TABLE`. The first is the record's key.
        upsert: Write an equality delete per row, which readers have to merge.
        options: Further options of the source, or other values.
        settings: Further settings of Flink, for the job and its cluster.

    Raises:
        StackError: Its jars cannot be fetched.
    """
    config = {
        "execution.target": "local",
        "execution.checkpointing.interval": f"{pipe.commit_s} s",
        "parallelism.default": 2,
        "taskmanager.numberOfTaskSlots": 2,
        "table.dml-sync": True,
        "rest.port": free_port(),
    }
    (pipe.folder / "config.yaml").write_text(json.dumps(config), encoding="ascii")  # JSON is YAML
    source = {
        "connector": "kafka",
        "topic": pipe.topic,
        "properties.bootstrap.servers": pipe.bootstrap,
        "scan.startup.mode": "earliest-offset",
        "scan.bounded.mode": "latest-offset",
        "key.format": "raw",
        "key.fields": columns.split(maxsplit=1)[0],
        "value.format": "json",
        "value.json.timestamp-format.standard": "ISO-8601",
        "value.fields-include": "EXCEPT_KEY",
        **(options or {}),
    }
    hint = f"/*+ OPTIONS({_options({'upsert-enabled': 'true'})}) */" if upsert else ""
    names = ", ".join(column.split()[0] for column in columns.split(", "))
    statements = (
        *(f"SET '{key}' = '{value}'" for key, value in (settings or {}).items()),
        f"CREATE CATALOG lake WITH ({_options({'type': 'iceberg', **pipe.catalog})})",
        f"CREATE TEMPORARY TABLE source ({columns}) WITH ({_options(source)})",
        f"INSERT INTO lake.{pipe.table} {hint} ({names}) SELECT * FROM source",
    )
    script = pipe.folder / "job.sql"
    script.write_text("".join(f"{each};\n" for each in statements), encoding="utf-8")
    opened = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in OPENED]
    program = [
        *opened,
        "org.apache.flink.table.client.SqlClient",
        "embedded",
        "-f",
        str(script),
        "-hist",
        str(script) + ".history",
    ]
    log = pipe.folder / f"{FLINK}.log"
    return _service(FLINK, pipe, program, lambda: "from state CREATED to RUNNING" in log.read_text(encoding="utf-8"))


def _options(options: Mapping[str, str]) -> str:
    return ", ".join(f"'{key}' = '{value}'" for key, value in options.items())


def _service(name: str, pipe: Pipe, program: list[str], ready: Callable[[], bool]) -> Service:
    java = find_java(cache_folder())
    found = jars.ensure_jars(name, lock=jars.read_lock(LOCK), java=java)
    log4j = pipe.folder / "log4j2.properties"
    log4j.write_text(LOG4J, encoding="utf-8")
    options = [f"-Xmx{pipe.heap}", f"-Dlog4j2.configurationFile={log4j}", "-cp", f"{found}/*"]
    return Service(
        name=name,
        argv=[str(java.executable), *options, *program],
        env={**inherited_env(), "FLINK_CONF_DIR": str(pipe.folder), MARK_VARIABLE: uuid.uuid4().hex},
        cwd=pipe.folder,
        log=pipe.folder / f"{name}.log",
        ready=ready,
    )


def fetched(names: Iterable[str]) -> list[str]:
    """Return those of the peers whose jars are there, after fetching them if they are not; say which are missing."""
    found = []
    for name in names:
        try:
            jars.ensure_jars(name, lock=jars.read_lock(LOCK))
            found.append(name)
        except StackError as error:
            say(f"\n    !!! {name.upper()} IS NOT MEASURED: {error}\n")
    return found


def copy(lab: Lab, name: str, topic: str, count: int, *, upsert: bool) -> dict[str, Any]:
    """Let a peer copy a topic of `count` records into an empty table; return its times and the table's rows.

    The seconds and CPU seconds are those from the running job to the last commit, and those of the whole process.

    Raises:
        SystemExit: It failed, or did not end in time; the message has the end of its log.
    """
    lake = lab.lake()
    folder = Path(lake["BENCH_FOLDER"])
    table = _create(lake, upsert=upsert)
    catalog = jdbc_catalog(folder / "iceberg.db", folder / "warehouse")
    pipe = Pipe(folder, lab.broker.bootstrap, topic, "db.target", catalog)
    if name == CONNECT:
        feed.create(lab.broker.bootstrap, [f"control-{topic}"], 1)
    service = connect(pipe) if name == CONNECT else flink(pipe, COLUMNS, upsert=upsert)
    before = Whole.mark()
    process = start_and_wait(service)
    try:
        ready, start_cpu = time.time(), sum(psutil.Process(process.pid).cpu_times()[:2])
        end = time.monotonic() + PATIENCE_S
        while process.poll() is None and time.monotonic() < end:
            # Connect goes on for ever: it has copied all when the table has as many rows.
            if name == CONNECT and _records(table.refresh()) >= count:
                break
            time.sleep(0.5)
        if process.poll() not in (0, None) or time.monotonic() >= end:
            raise SystemExit(f"{name} did not copy the topic; the end of its log:\n{last_lines(service.log)}")
    finally:
        stop_service(process, service.env[MARK_VARIABLE], grace=20)
    whole = Whole.mark().since(before)
    table.refresh()
    seconds = table.metadata.last_updated_ms / 1000 - ready
    found = {"seconds": seconds, "cpu": whole.cpu - start_cpu, "whole": whole, "parts": {}}
    if upsert:  # PyIceberg does not read equality deletes
        counted = lab.drive(lake, "bench.peers")
        deletes = int(table.current_snapshot().summary["total-equality-deletes"])
        found |= {
            "rows": counted["rows"],
            "parts": {f"{deletes:,} equality deletes left, counting": counted["seconds"]},
        }
    else:
        found["rows"] = table.scan().count()
    lab.drop(lake)
    return found


def _records(table: Any) -> int:
    snapshot = table.current_snapshot()
    return int(snapshot.summary["total-records"]) if snapshot else 0


def _create(lake: Mapping[str, str], *, upsert: bool) -> Any:
    """Create the table, with the columns that the hand-written job gives it, and Iceberg's own settings in Java."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.schema import Schema
    from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType, TimestamptzType

    types = {
        "id": StringType(),
        "n": LongType(),
        "amount": DoubleType(),
        "at": TimestamptzType(),
        "note": StringType(),
        "_kafka_topic": StringType(),
        "_kafka_partition": IntegerType(),
        "_kafka_offset": LongType(),
        "_kafka_timestamp": TimestamptzType(),
    }
    fields = [
        NestedField(number, name, kind, required=upsert and number == 1)
        for number, (name, kind) in enumerate(types.items(), 1)
    ]
    settings = {name: lake[f"PYICEBERG_CATALOG__LAKE__{name.upper()}"] for name in ("type", "uri", "warehouse")}
    catalog = load_catalog("lake", **settings)
    catalog.create_namespace("db")
    schema = Schema(*fields, identifier_field_ids=[1] if upsert else [])
    properties = {"format-version": "2", "write.parquet.compression-codec": "zstd"}
    return catalog.create_table("db.target", schema, properties=properties)


def main() -> dict[str, Any]:
    """Count the rows of the table in the driver, which merges equality deletes."""
    from bench.spark import session

    spark = session()
    spark.range(1000).selectExpr("sum(id)").collect()
    began = time.monotonic()
    rows = spark.table("lake.db.target").count()
    return {"rows": rows, "seconds": time.monotonic() - began}


if __name__ == "__main__":
    relock.write_lock(LOCK, SETS, HEADER)
