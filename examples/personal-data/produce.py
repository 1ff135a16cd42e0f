"""Sends support tickets with personal data as JSON. One of them does not fit its contract."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # examples/
from sending import send

TOPIC = "examples.tickets"
ANN = {"email": "ann@example.com", "name": "Ann Berg", "country": "NO"}
BOB = {"email": "bob@example.com", "name": "Bob Rossi", "country": "IT"}
TICKETS = [
    {"id": 1, **ANN, "message": "My parcel went to Harbour Street 5."},
    {"id": 2, **BOB, "message": "Please call me."},
    {"id": 3, **ANN, "message": "It has arrived."},
    {"id": "four", **BOB, "message": "This one has no number."},
]

send(TOPIC, ({"value": json.dumps(ticket)} for ticket in TICKETS))
