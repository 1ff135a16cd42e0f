"""(f) The cost of decoding staged bytes into typed columns, for the same records in each format."""

from __future__ import annotations

import io
import json
import struct
import time
from pathlib import Path
from typing import Any

from bench.lab import COLUMNS, Lab, say, value

ROUNDS = 3
FIELDS = {"n": "long", "amount": "double", "at": {"type": "long", "logicalType": "timestamp-millis"}, "note": "string"}
AVRO = {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in FIELDS.items()]}
PROTO = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
message R { int64 n = 1; double amount = 2; google.protobuf.Timestamp at = 3; string note = 4; }"""


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:
    """Print records per second of CPU time for each format."""
    from sluice.embedded.schema_registry import EmbeddedRegistry

    count = records or (50_000 if quick else 1_000_000)
    lake = lab.lake()
    with EmbeddedRegistry(lab.folder / "registry") as registry:
        lake |= {"SCHEMA_REGISTRY_URL": registry.url, "SLUICE_SCHEMAS": f"{lake['BENCH_FOLDER']}/schemas"}
        found = lab.drive(lake, "bench.formats", count=count)
    say(f"\n(f) decoding {count:,} records into 5 columns, best of {ROUNDS - 1} rounds after the first")
    base = found["json"]["cpu"]
    for name, each in found.items():
        speed = count / each["cpu"]
        say(
            f"    {name:12} {each['bytes']:4.0f} B  {each['seconds']:6.1f} s  CPU {each['cpu']:6.1f} s  "
            f"{speed:9,.0f} records/s of a core  {base / each['cpu']:5.2f} x json   "
            f"search for rejected records: CPU {each['rejected']:.1f} s"
        )
    lab.drop(lake)


def main(count: int) -> dict[str, Any]:
    """Decode in the driver; return the seconds and CPU seconds of the best round by format."""
    import os

    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

    from bench.spark import cpu_seconds, session
    from sluice.formats.decode import decode
    from sluice.ingest import quarantine

    spark = session()
    client = SchemaRegistryClient({"url": os.environ["SCHEMA_REGISTRY_URL"], "timeout": 30})
    kinds = {
        "json_schema": ("JSON", '{"title": "R", "type": "object", "properties": {}}'),
        "avro": ("AVRO", json.dumps(AVRO)),
        "protobuf": ("PROTOBUF", PROTO),
    }
    ids = {name: client.register_schema(name, Schema(text, kind)) for name, (kind, text) in kinds.items()}
    folder, sizes = Path(os.environ["BENCH_FOLDER"]), {}
    for name in ("json", *kinds):
        sizes[name] = _write(folder / name, name, ids.get(name, 0), count)
    best: dict[str, Any] = {}
    # The formats take turns, so that other load on the machine affects all of them.
    for round_ in range(ROUNDS):
        for name, size in sizes.items():
            contract = _contract(name)
            began, before = time.monotonic(), cpu_seconds()
            decoded = decode(spark.read.parquet(str(folder / name)), contract, "t")
            decoded.write.format("noop").mode("overwrite").save()
            cpu, seconds = cpu_seconds() - before, time.monotonic() - began
            quarantine.rejected_rows(decoded, contract).write.format("noop").mode("overwrite").save()
            rejected = cpu_seconds() - before - cpu
            if round_ and (name not in best or cpu < best[name]["cpu"]):
                best[name] = {"cpu": cpu, "seconds": seconds, "bytes": size, "rejected": rejected}
    spark.stop()
    return best


def _contract(form: str) -> Any:
    from sluice.contract.contract import Contract

    body = {"table": "db.t", "topic": "t", "group": "g", "owner": "o", "columns": COLUMNS, "value": {"format": form}}
    return Contract.model_validate(body)


def _write(folder: Path, form: str, number: int, count: int) -> float:
    """Write records as Parquet in staging's schema; return the mean size of a value in bytes."""
    from datetime import UTC, datetime

    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    encode, total = _encoder(form, number), 0
    for part, start in enumerate(range(0, count, 250_000)):
        numbers = range(start, min(start + 250_000, count))
        values = [encode(n) for n in numbers]
        total += sum(map(len, values))
        table = pa.table(
            {
                "batch_seq": pa.array([1] * len(values), pa.int64()),
                "_kafka_partition": pa.array([0] * len(values), pa.int32()),
                "_kafka_offset": pa.array(numbers, pa.int64()),
                "_kafka_timestamp": pa.array([datetime.now(UTC)] * len(values), pa.timestamp("us", "UTC")),
                "key": pa.array([f"order-{n:010d}".encode() for n in numbers]),
                "value": pa.array(values),
                "headers": pa.array(
                    [None] * len(values), pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
                ),
            }
        )
        pq.write_table(table, folder / f"{part}.parquet", row_group_size=50_000)
    return total / count


def _encoder(form: str, number: int) -> Any:
    from datetime import UTC, datetime

    prefix = struct.pack(">bI", 0, number)
    if form == "json":
        return value
    if form == "json_schema":
        return lambda n: prefix + value(n)

    def fields(n: int) -> dict[str, Any]:
        found = json.loads(value(n))
        return {**found, "at": datetime.fromisoformat(found["at"]).replace(tzinfo=UTC)}

    if form == "avro":
        from fastavro import parse_schema, schemaless_writer

        schema = parse_schema(AVRO)

        def avro(n: int) -> bytes:
            stream = io.BytesIO(prefix)
            stream.seek(5)
            schemaless_writer(stream, schema, fields(n))
            return stream.getvalue()

        return avro
    from google.protobuf import message_factory

    from sluice.formats import protobuf_descriptors
    from sluice.kafka.registry import WriterSchema

    files = protobuf_descriptors.descriptor_files(WriterSchema(0, "PROTOBUF", PROTO))
    made = message_factory.GetMessageClass(protobuf_descriptors.find_descriptor(files, "R"))

    def proto(n: int) -> bytes:
        found = fields(n)
        message = made(n=found["n"], amount=found["amount"], note=found["note"])
        message.at.FromDatetime(found["at"])
        return bytes(prefix + b"\0" + message.SerializeToString())

    return proto
