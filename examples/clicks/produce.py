"""Sends clicks of two days as JSON. The last one is late: a phone without a network kept it for a day."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # examples/
from sending import send

TOPIC = "examples.clicks"
CLICKS = [
    {"at": "2026-11-25T22:10:00Z", "visitor": "v1", "page": "/"},
    {"at": "2026-11-25T22:11:30Z", "visitor": "v1", "page": "/shoes"},
    {"at": "2026-11-26T08:00:05Z", "visitor": "v2", "page": "/"},
    {"at": "2026-11-26T08:01:00Z", "visitor": "v2", "page": "/cart"},
    {"at": "2026-11-26T09:45:00Z", "visitor": "v3", "page": "/"},
    {"at": "2026-11-25T23:59:00Z", "visitor": "v4", "page": "/shoes"},
]

send(
    TOPIC,
    ({"value": json.dumps(click), "headers": {"trace-id": f"t-{number}"}} for number, click in enumerate(CLICKS)),
)
