"""Sends prices of products as JSON. The last one comes late, after its successor."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # examples/
from sending import send

TOPIC = "examples.prices"
PRICES = [
    ("lamp", {"price": "40.00", "since": "2026-01-01T00:00:00Z"}),
    ("desk", {"price": "300.00", "since": "2026-01-01T00:00:00Z"}),
    ("lamp", {"price": "45.00", "since": "2026-06-01T00:00:00Z"}),
    ("desk", {"price": "280.00", "since": "2026-09-01T00:00:00Z"}),
    ("lamp", {"price": "35.00", "since": "2026-03-01T00:00:00Z"}),  # between the two prices before
]

send(TOPIC, ({"key": product, "value": json.dumps(price)} for product, price in PRICES))
