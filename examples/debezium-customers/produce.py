"""Sends change events as Debezium's connector for PostgreSQL does. `produce.py deletes` also sends a delete."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # examples/
from sending import send

TOPIC = "examples.public.customers"


def row(id_: int, name: str | None, city: str | None, credit: str | None, hour: int | None) -> dict[str, object]:
    """Return a row of the table."""
    updated_at = None if hour is None else f"2026-11-26T{hour:02}:00:00.000000Z"
    return {"id": id_, "name": name, "city": city, "credit": credit, "updated_at": updated_at}


def event(op: str, lsn: int, before: dict[str, object] | None, after: dict[str, object] | None) -> dict[str, object]:
    """Return a change event: r is a row of the snapshot, c an insert, u an update, d a delete."""
    at = 1_795_680_000_000 + lsn
    time = {"ts_ms": at, "ts_us": at * 1000, "ts_ns": at * 1_000_000}
    source = {"version": "3.0.8.Final", "connector": "postgresql", "name": "examples", "db": "shop", **time}
    source |= {"snapshot": "true" if op == "r" else "false", "schema": "public", "table": "customers"}
    source |= {"sequence": f'[null,"{lsn}"]', "txId": 700 + lsn, "lsn": lsn, "xmin": None}
    return {"before": before, "after": after, "source": source, "transaction": None, "op": op, **time}


EVENTS = [
    (1, event("r", 100, None, row(1, "Ann", "Oslo", "100.00", 8))),
    (2, event("r", 100, None, row(2, "Bob", "Rome", "50.00", 8))),
    (3, event("c", 110, None, row(3, "Cem", None, "0.00", 9))),
    (1, event("u", 120, None, row(1, "Ann", "Bergen", "80.50", 10))),
]
DELETES = [
    # With the default REPLICA IDENTITY, a delete has only the key of the row. A tombstone follows it.
    (2, event("d", 130, row(2, None, None, None, None), None)),
    (2, None),
]

records = EVENTS + DELETES if "deletes" in sys.argv else EVENTS
send(TOPIC, ({"key": json.dumps({"id": key}), "value": json.dumps(value) if value else None} for key, value in records))
