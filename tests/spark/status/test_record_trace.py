"""What `sluice find` says of records, at each place where one may be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from sluice.cli import main
from sluice.status.record_trace import Place
from tests.support import runbook
from tests.support.lake import Lake


def find(it: Lake, table: str, at: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        runbook.run_command(
            it, "find TABLE --offset PARTITION:OFFSET", "--json", **{"TABLE": table, "PARTITION:OFFSET": at}
        )
    )
    return answer


def test_a_record_is_followed_to_its_row_its_quarantine_or_the_reason_for_neither(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    appended = it.contract(errors={"max_ratio": 1.0, "max_count": 10}, freshness="1d")
    merged = it.contract(mode="upsert", errors={"max_ratio": 1.0, "max_count": 10})
    strict = it.contract(freshness="1s")
    it.send([(0, "a", {"n": 1}), (0, "b", {"n": "no number"}), (0, "a", {"n": 2}), (0, "c", {"n": 3})])
    assert find(it, appended, "0:1")["place"] == Place.UNREAD
    assert find(it, appended, "0:9")["place"] == Place.FUTURE
    planned = it.plan("frozen")
    assert find(it, appended, "0:1")["place"] == Place.PLANNED
    assert planned.topics[it.topic].to_stage[0].seq == 1
    it.run()

    row = find(it, appended, "0:0")
    head = it.catalog.load_table(appended).metadata
    assert row["place"] == Place.ROW
    assert (row["batch"], row["raw"], row["kafka"], row["planned_by"]) == (1, True, [0, 4], "frozen")
    assert row["snapshot_id"] == head.current_snapshot_id
    assert row["published_at"] and row["staged_at"]
    sent_at, published_at = (datetime.fromisoformat(row[name]) for name in ("timestamp", "published_at"))
    assert row["delay_seconds"] == (published_at - sent_at).total_seconds() > 0
    assert (row["target_seconds"], row["late"]) == (86_400, False)
    bad = find(it, appended, "0:1")
    assert (bad["place"], bad["error_class"], bad["field"]) == (Place.QUARANTINED, "malformed", "n")
    assert find(it, merged, "0:0")["place"] == Place.MERGED
    assert find(it, merged, "0:2")["place"] == Place.ROW
    blocked = find(it, strict, "0:0")
    assert blocked["place"] == Place.BLOCKED
    assert blocked["error"]
    assert (blocked["late"], blocked["published_at"]) == (True, None)
    assert bad["late"] is False and find(it, merged, "0:0")["late"] is None

    by_key = runbook.run_command(it, "find TABLE --key VALUE", TABLE=merged, VALUE="a")
    assert by_key.startswith(f"{it.topic} partition 0 offset 2: in the table")
    assert re.search(r"arrival +its batch was published \d+s after the record's Kafka timestamp, 20", by_key)
    assert f"snapshot    {it.catalog.load_table(merged).metadata.current_snapshot_id} of {merged}" in by_key
    it.send([(0, "c", None)])
    it.run()
    deleted = runbook.run_command(it, "find TABLE --key VALUE", TABLE=merged, VALUE="c")
    assert deleted.startswith(f"{it.topic} partition 0 offset 4: published, without a row of its own")
    assert "has no row of this key" in runbook.run_command(it, "find TABLE --key VALUE", TABLE=merged, VALUE="z")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--offset", "4711"], "is no PARTITION:OFFSET"),
        (["--offset", "0:1", "--topic", "other"], "Name the record's topic, one of"),
        (["--key", "a"], "none: name the record by --offset"),
    ],
)
def test_a_record_that_is_named_wrongly_is_an_error(
    lake: Callable[..., Lake],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    error: str,
) -> None:
    it = lake()
    it.create_topic(1)
    table = it.contract()
    monkeypatch.setenv("SLUICE_CONTRACTS", str(it.folder))
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", it.bootstrap)
    assert main.main(["find", table, *arguments]) == 3
    assert error in capsys.readouterr().err
