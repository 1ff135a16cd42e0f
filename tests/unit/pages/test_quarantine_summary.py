"""The page of rejected records, from a real quarantine table in a local catalog."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from sluice.batch import PublishedOffsets
from sluice.contract.contract import Contract
from sluice.iceberg import tables
from sluice.pages import quarantine_summary

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 22, 6, 0, tzinfo=UTC)


def bad(offset: int, field: str | None = "id", topic: str = "t", partition: int = 0, batch: int = 1) -> dict[str, Any]:
    return {
        "_kafka_topic": topic, "_kafka_partition": partition, "_kafka_offset": offset, "_kafka_timestamp": NOW,
        "batch_seq": batch, "error_class": "misfit" if field else "malformed", "field": field,
        "error": f"at {offset}", "quarantined_at": NOW + timedelta(seconds=offset), "value": b"secret",
    }  # fmt: skip


def test_records_are_told_by_what_is_wrong_with_them_and_where_they_can_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/warehouse")
    body = {"table": "db.t", "topic": ["t", "u"], "group": "g", "owner": "me"}
    contract = Contract.model_validate(body | {"columns": [{"name": "id", "type": "long"}]})
    assert quarantine_summary.read_quarantine(catalog, contract) == quarantine_summary.QuarantineSummary()
    table = tables.ensure_quarantine(catalog, contract)
    assert quarantine_summary.read_quarantine(catalog, contract) == quarantine_summary.QuarantineSummary()
    rows = [bad(n) for n in (*range(5, 25), 90)]
    rows += [bad(7, topic="u"), bad(40, batch=-1), bad(3, partition=1), bad(95, batch=2)]  # the last is not published
    rows += [bad(6, field=None), bad(99, field=None, batch=2)]
    names = {f.name for f in table.schema().fields}
    rows = [{name: row.get(name) for name in names} for row in rows]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))

    found = quarantine_summary.read_quarantine(
        catalog, contract, {topic: PublishedOffsets(1, "id", {0: 95}) for topic in "tu"}
    )
    # What a batch has that is not published yet is a group of its own, with records and without ranges to replay.
    assert [(g.error_class, g.field, g.waiting, g.records) for g in found.groups] == [
        ("malformed", "", True, 1), ("misfit", "id", True, 1), ("misfit", "id", False, 24), ("malformed", "", False, 1),
    ]  # fmt: skip
    assert [(g.ranges, [row["_kafka_offset"] for row in g.newest]) for g in found.groups] == [
        ({}, [99]), ({}, [95]),
        ({"t": {0: [5, 91], 1: [3, 4]}, "u": {0: [7, 8]}}, [90, 40, *range(24, 16, -1)]), ({"t": {0: [6, 7]}}, [6]),
    ]  # fmt: skip
    # The query of each group names its batches: those that wait are not among the others.
    spans = [
        sorted(re.findall(r"_kafka_topic = '(.)' AND batch_seq BETWEEN (-?\d+) AND (\d+)", g.sql)) for g in found.groups
    ]
    both = [("t", "2", "2")]
    assert spans == [both, both, [("t", "-1", "1"), ("u", "1", "1")], [("t", "1", "1")]]
    assert found.by_batch == {("t", 1): 23, ("u", 1): 1, ("t", -1): 1, ("t", 2): 2} and found.counted is None
    # Over the same time for all groups: 94 s in parts of a fortieth of it.
    assert (found.first, found.last) == (NOW + timedelta(seconds=3), NOW + timedelta(seconds=99))
    parts = [{part: count for part, count in enumerate(g.by_time) if count} for g in found.groups]
    assert [len(g.by_time) for g in found.groups] == [quarantine_summary.BARS] * 4
    assert [parts[0], parts[1], parts[3]] == [{39: 1}, {38: 1}, {1: 1}] and sum(parts[2].values()) == 24
    assert parts[2][0] == 2 and found.part_begin(0) == found.first and found.part_begin(40) == found.last
    assert not any("secret" in str(row) for wrong in found.groups for row in wrong.newest)
    shown = quarantine_summary.read_quarantine(catalog, contract, with_values=True).groups
    assert {(row["key"], row["value"]) for wrong in shown for row in wrong.newest} == {(None, "secret")}
    # Of a table whose offsets nobody can tell, nothing is offered to be replayed, nor said to wait.
    unknown = quarantine_summary.read_quarantine(catalog, contract).groups
    assert [(each.ranges, each.waiting, each.records) for each in unknown] == [({}, False, 25), ({}, False, 2)]
    # Of one that has published nothing, every record waits.
    assert {g.waiting for g in quarantine_summary.read_quarantine(catalog, contract, {}).groups} == {True}
    monkeypatch.setattr(quarantine_summary, "MAX_COUNTED", 4)
    few = quarantine_summary.read_quarantine(catalog, contract)
    assert "BETWEEN" not in few.groups[0].sql  # the batches of those that were not counted are not known
    assert few.counted == 4 and sum(each.records for each in few.groups) == 4


def test_the_query_of_an_error_quotes_what_it_is_given() -> None:
    about: dict[str, Any] = {"topic": "t", "group": "g", "owner": "me", "columns": [{"name": "id", "type": "long"}]}
    contract = Contract.model_validate(about | {"table": "db.t"})
    query = quarantine_summary.error_query(contract, "malformed", "")
    assert "FROM `lake`.`sluice_quarantine`.`db_t_" in query
    assert "WHERE error_class = 'malformed' AND field IS NULL\n" in query
    batches = quarantine_summary.error_query(contract, "malformed", "", {"u": (-2, 9), "t'": (4, 4)})
    assert (
        "AND field IS NULL\n  AND (_kafka_topic = CAST(X'7427' AS STRING) AND batch_seq BETWEEN 4 AND 4 OR "
        "_kafka_topic = 'u' AND batch_seq BETWEEN -2 AND 9)\nORDER BY" in batches
    )
    many = {f"t{n}": (1, 1) for n in range(quarantine_summary.MAX_TOPICS_IN_SQL + 1)}
    assert quarantine_summary.error_query(contract, "malformed", "", many) == query
    # Of a table whose quarantine holds no raw records, their place and error are all there is.
    assert ") AS value\nFROM" in query
    masked = Contract.model_validate(about | {"table": "db.t", "errors": {"raw": "drop"}})
    assert " error\nFROM" in quarantine_summary.error_query(masked, "malformed", "")
    field = "a`;\n-- \\"
    hostile = quarantine_summary.error_query(contract, "x' OR 'a'='a", field)
    assert [hostile.count(mark) for mark in ("'", "OR", ";", "--", "\\")] == [8, 1, 0, 0, 0]  # ORDER
    assert f"field = CAST(X'{field.encode().hex()}' AS STRING)" in hostile


def test_the_newest_records_come_with_their_values_only_if_asked_for(tmp_path: Path) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/warehouse")
    body = {"table": "db.t", "topic": ["t", "u"], "group": "g", "owner": "me"}
    contract = Contract.model_validate(body | {"columns": [{"name": "id", "type": "long"}]})
    assert quarantine_summary.read_newest_records(catalog, contract, 5) == []
    table = tables.ensure_quarantine(catalog, contract)
    assert quarantine_summary.read_newest_records(catalog, contract, 5, with_values=True) == []
    # The same record twice, by a batch and by a backfill; and others whose topic, batch and offset cross.
    rows = [bad(n) for n in range(5)] + [bad(4, batch=-1) | {"value": b"replayed"}]
    rows += [bad(3, topic="u", partition=1, batch=2) | {"value": b"other"}]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    newest = quarantine_summary.read_newest_records(catalog, contract, 4)
    assert [(row["_kafka_topic"], row["_kafka_offset"], row["batch_seq"]) for row in newest] == [
        *(("t", 4, 1), ("t", 4, -1), ("u", 3, 2), ("t", 3, 1)),
    ]
    assert all("value" not in row for row in newest)
    valued = quarantine_summary.read_newest_records(catalog, contract, 4, with_values=True)
    assert [row["value"] for row in valued] == [b"secret", b"replayed", b"other", b"secret"]


def test_keys_and_values_are_shown_in_one_short_line() -> None:
    given = (None, b"", b"a\nb", "é".encode(), b"\xff", b"\x00a", b"x" * 201)
    assert [quarantine_summary.shown(each) for each in given] == [
        None, "", "a\\nb", "é", "base64 /w==", "base64 AGE=", "x" * 200 + "…",
    ]  # fmt: skip
