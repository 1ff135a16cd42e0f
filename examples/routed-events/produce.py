"""Sends events of several types to one topic, as JSON."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # examples/
from sending import send

TOPIC = "examples.events"
EVENTS = [
    {"id": 1, "type": "signup", "data": {"user": "ann", "plan": "free"}},
    {"id": 2, "type": "purchase", "data": {"user": "ann", "total": "12.50"}},
    {"id": 3, "type": "signup", "data": {"user": "bob", "plan": "pro"}},
    {"id": 4, "type": "review", "data": {"user": "ann", "stars": 5}},
]

send(TOPIC, ({"value": json.dumps(event)} for event in EVENTS))
