"""(g) The backlog of (a) as one batch, without expectations, with six, and with a seventh that needs a shuffle."""

from __future__ import annotations

import time
from typing import Any

from bench import backlog, feed
from bench.lab import Lab, contract, say

TARGET = 0.30
SIX: list[dict[str, Any]] = [
    {"type": "expect_column_values_to_not_be_null", "column": "id", "severity": "block"},
    {
        "type": "expect_column_values_to_be_between",
        "column": "amount",
        "min_value": 0,
        "max_value": 10_000,
        "severity": "quarantine_rows",
    },
    {"type": "expect_column_values_to_match_regex", "column": "note", "regex": "^[a-l]*"},
    {"type": "expect_column_mean_to_be_between", "column": "amount", "drift": {"tolerance": 0.5}},
    {"type": "expect_table_row_count_to_be_between", "min_value": 1, "severity": "block"},
    {"type": "expect_column_max_to_be_between", "column": "_kafka_timestamp", "max_age": "1d"},
]
UNIQUE = {"type": "expect_compound_columns_to_be_unique", "column_list": ["_kafka_partition", "_kafka_offset"]}
CASES = {"none": [], "six": SIX, "six and unique": [*SIX, UNIQUE]}


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:
    """Run each case in a separate driver; the seconds are those of a whole run, from plan to settle."""
    count = records or (300_000 if quick else 5_000_000)
    keys = max(count // 5 // 4, 1) * 4
    say(f"\n(g) expectations: {count:,} JSON records of 100 B as one batch")
    topic = backlog.TOPIC
    feed.create(lab.broker.bootstrap, [f"{topic}-g"])
    feed.backlog(lab.broker.bootstrap, f"{topic}-g", count, keys)
    limits = {"records_per_batch": count, "seconds_per_run": 3000}
    for mode in ("append",) if quick else ("append", "upsert"):
        base: dict[str, Any] = {}
        for name, expectations in CASES.items():
            lake = lab.lake()
            contract(lake, "db.target", f"{topic}-g", mode=mode, limits=limits, expectations=expectations)
            began = time.monotonic()
            found = lab.drive(lake, "bench.backlog", who="sluice", what=mode, cap=count)
            lab.drop(lake)
            base = base or found
            more = found["seconds"] / base["seconds"] - 1
            say(
                f"    {mode:7} {name:15} {found['seconds']:6.1f} s   CPU {found['cpu']:4.0f} s   {more:+.0%} "
                f"elapsed, {found['cpu'] / base['cpu'] - 1:+.0%} CPU (target at most {TARGET:.0%}; with the driver's "
                f"start {time.monotonic() - began:.0f} s)"
            )
