"""Several tables read one topic, each with its own condition, columns and masks."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

import pytest

from sluice.backfill import backfill_plan
from sluice.errors import RefusedError
from sluice.formats import masks
from sluice.iceberg import table_names
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.slices import Origin
from sluice.plan.model import PlanInputs
from tests.support.backfills import backfill_request
from tests.support.lake import Lake

SECRET = "x" * 70


def masked(text: str) -> str:
    return hmac.new(SECRET.encode(), text.encode(), hashlib.sha256).hexdigest()


def test_one_topic_feeds_several_tables(lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(masks.KEY_VARIABLE, SECRET)
    it = lake()
    it.create_topic(1)
    kind, n = {"name": "kind", "type": "string"}, {"name": "n", "type": "int"}
    mail = {"name": "mail", "type": "string", "mask": "sha256"}
    bills = it.contract(
        columns=[n, {"name": "gross", "type": "decimal(9, 2)", "expression": "n * 1.19", "required": True}],
        inputs=[kind],
        where="kind = 'bill'",
        errors={"max_ratio": 0.6, "raw": "drop"},
    )
    people = it.contract(
        mode="upsert",
        columns=[{**mail, "source": "$key"}, {**kind, "mask": "redact"}, n],
        identifier=["mail"],
        where="kind LIKE 'p%' AND 10 / n > 0",
        errors={"max_ratio": 0.6},
    )
    everything = it.contract(columns=[kind, n], errors={"max_ratio": 0.6})
    it.send(
        (0, key, value)
        for key, value in [
            ("a@x", {"kind": "person", "n": 1}),
            ("a@x", {"kind": "person", "n": 2}),
            ("b@x", {"kind": "person", "n": 1}),
            ("b@x", None),
            ("never", None),
            ("c@x", {"kind": "bill", "n": 100}),
            ("d@x", {"kind": "bill"}),
            ("e@x", {"kind": "bill", "n": "much"}),
            ("f@x", {"kind": "person", "n": 0}),
            ("g@x", {"n": 5}),
        ]
    )
    outcomes = it.run()
    assert {o["state"] for o in outcomes.values()} == {"published"}, outcomes
    assert [(r["n"], str(r["gross"])) for r in it.rows(bills)] == [(100, "119.00")]
    assert {(r["mail"], r["kind"], r["n"]) for r in it.rows(people)} == {(masked("a@x"), "[redacted]", 2)}
    assert sorted(str(r["n"]) for r in it.rows(everything)) == ["0", "1", "1", "100", "2", "5", "None"]

    why = {r["_kafka_offset"]: (r["error_class"], r["field"]) for r in it.quarantined(people)}
    assert why == {7: ("malformed", "n"), 8: ("expression", "where")}
    dropped = {r["_kafka_offset"]: (r["error_class"], r["key"], r["value"]) for r in it.quarantined(bills)}
    assert dropped == {
        3: ("null_value", None, None),
        4: ("null_value", None, None),
        6: ("misfit", None, b""),
        7: ("malformed", None, b""),
    }
    request = backfill_request(bills, origin=Origin.QUARANTINE)
    with pytest.raises(RefusedError, match="holds no raw records"):
        backfill_plan.plan_backfill(request, PlanInputs(it.contracts, it.catalog, it.admin, Ledger(it.catalog)))

    # With another key the same address would get another hash: the table stops, and those without hashes go on.
    monkeypatch.setenv(masks.KEY_VARIABLE, "y" * 70)
    it.send([(0, "a@x", {"kind": "person", "n": 3})])
    outcomes = it.run()
    assert {n: o["state"] for n, o in outcomes.items() if o["state"] != "published"} == {people: "failed"}
    assert "SLUICE_MASK_KEY is not the one" in outcomes[people]["error"]
    monkeypatch.setenv(masks.KEY_VARIABLE, SECRET)
    it.run()
    assert [(r["mail"], r["n"]) for r in it.rows(people)] == [(masked("a@x"), 3)]

    # What was set apart before a mask was thought of is taken out by hand, as docs/guides/personal-data.md says.
    held = table_names.spark_name("lake", table_names.quarantine(it.contract_of(everything)))
    it.spark.sql(f"UPDATE {held} SET key = NULL, headers = NULL, value = IF(value IS NULL, NULL, X'')")
    it.send([(0, "h@x", {"n": "much"})])
    it.run()
    found = {r["_kafka_offset"]: (r["error_class"], r["key"], r["value"]) for r in it.quarantined(everything)}
    assert found == {
        3: ("null_value", None, None),
        4: ("null_value", None, None),
        7: ("malformed", None, b""),
        11: ("malformed", b"h@x", b'{"n": "much"}'),
    }
