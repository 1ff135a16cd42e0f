"""Sends orders as JSON, with the order's number as key. `produce.py changes` also sends an update and a delete."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # examples/
from sending import send

TOPIC = "examples.orders"


def order(customer: str, total: str, status: str, minute: int) -> dict[str, object]:
    """Return the value of a record."""
    placed_at = f"2026-11-26T09:{minute:02}:00Z"
    return {"customer": customer, "total": total, "status": status, "meta": {"placed_at": placed_at}}


ORDERS = [
    ("1", order("ann", "12.50", "placed", 30)),
    ("2", order("bob", "7.00", "placed", 31)),
    ("3", order("ann", "99.90", "placed", 32)),
    ("1", order("ann", "12.50", "paid", 30)),
]
CHANGES = [
    ("2", order("bob", "7.00", "paid", 31)),
    ("3", None),  # a tombstone: the order is deleted
]

records = ORDERS + CHANGES if "changes" in sys.argv else ORDERS
send(TOPIC, ({"key": key, "value": json.dumps(value) if value else None} for key, value in records))
