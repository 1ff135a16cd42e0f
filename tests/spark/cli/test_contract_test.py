"""`contract test` shows each sample record's result and the expectations, and writes nothing."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice.cli import main
from sluice.cli.contract import sample_test
from sluice.errors import ConfigError
from sluice.iceberg import table_names, tables
from tests.support import runbook
from tests.support.lake import Lake

EXPECTED = [
    {"type": "expect_column_values_to_be_between", "column": "n", "max_value": 9, "severity": "quarantine_rows"},
    {"type": "expect_table_row_count_to_be_between", "min_value": 100, "severity": "block"},
    {"type": "expect_column_max_to_be_between", "column": "n", "max_value": 1, "severity": "block"},
]


def test_a_file_and_the_end_of_a_topic_are_tried(
    lake: Callable[..., Lake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    it = lake()
    it.create_topic(3)
    table = it.contract(mode="upsert", expectations=EXPECTED)
    # The command's own session would stop the one that all tests share.
    kept = type("Kept", (), {"__getattr__": lambda _, name: getattr(it.spark, name), "stop": lambda _: None})
    monkeypatch.setattr(sample_test, "local_session", kept)
    monkeypatch.setenv("SLUICE_CONTRACTS", str(it.folder))
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", it.bootstrap)
    lines = [
        {"key": "a", "value": {"n": 1, "text": "<b>'; DROP TABLE"}},
        {"key": "b", "value": {"n": 10}, "headers": {"h": "x"}},
        {"key": "c", "value": "{not json"},
        {"key": "d", "value": None},
        {"key_base64": base64.b64encode(b"e").decode(), "value_base64": base64.b64encode(b'{"n": 2}').decode()},
    ]
    file = tmp_path / "records.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    assert main.main(["contract", "test", table, "--file", str(file)]) == 3
    out = capsys.readouterr().out
    told = out.splitlines()
    assert told[0] == '0:1  row: {"id":"a","n":1,"text":"<b>\'; DROP TABLE"}'
    assert told[1] == "0:2  quarantined: expectation (field n, expect_column_values_to_be_between(n))"
    assert told[2].startswith("0:3  quarantined: malformed")
    assert told[3] == '0:4  deleted: {"id":"d","n":null,"text":null}'
    assert told[4] == '0:5  row: {"id":"e","n":2,"text":null}'
    assert re.search(r"block +FAILED +expect_column_max_to_be_between\(n\)", out), out
    assert re.search(r"block +not evaluated +expect_table_row_count_to_be_between\(\)", out), (
        out
    )  # a sample is no batch
    assert told[-1] == "5 records: 2 rows, 2 quarantined, 1 deleted"
    assert main.main(["contract", "test", table, "--file", str(file), "--json"]) == 3
    facts = json.loads(capsys.readouterr().out)
    assert [each["outcome"] for each in facts["records"]] == ["row", "quarantined", "quarantined", "deleted", "row"]
    assert [each["success"] for each in facts["expectations"]] == [False, None, False]
    # The newest of the topic; the count is no promise of each partition.
    it.send((2 * (n % 2), f"k{n}", {"n": n % 5}) for n in range(20))
    it.contract(table=table, mode="upsert", expectations=EXPECTED[:1])
    assert main.main(["contract", "test", table, "--from-topic", "6"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == "6 records: 6 rows"
    assert all(int(line.split(":")[1].split()[0]) >= 4 for line in told[:6])
    # Where one partition has less to give, the others give more.
    assert main.main(["contract", "test", table, "--from-topic", "12"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "12 records: 12 rows"
    runbook.run_command(it, "contract check")
    assert "20 records: 20 row" in runbook.run_command(it, "contract test TABLE --from-topic 1000", TABLE=table)
    # A moment is told in UTC, whatever the machine's zone; digits and bytes as they are.
    kinds = {"at": "timestamptz", "local": "timestamp", "cost": "decimal(20, 2)", "raw": "binary"}
    it.contract(table=table, columns=[{"name": name, "type": kind} for name, kind in kinds.items()])
    sent = {"at": "2026-11-26T09:00:00.000001+01:00", "local": "2026-11-26T09:00:00", "cost": "123456789012345678.90"}
    file.write_text(json.dumps({"value": sent | {"raw": "AP8="}}))
    assert main.main(["contract", "test", table, "--file", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        '0:1  row: {"at":"2026-11-26T08:00:00.000001Z","local":"2026-11-26T09:00:00.000000",'
        '"cost":123456789012345678.90,"raw":"AP8="}'
    )
    # Nothing was written.
    assert tables.load(it.catalog, table_names.typed(it.contract_of(table))) is None
    assert tables.load(it.catalog, table_names.staging(it.topic)) is None
    assert tables.load(it.catalog, table_names.QUALITY) is None


@pytest.mark.parametrize(
    "line",
    [
        *("[1]", "{", '{"n": 1}', '{"value": 1, "valu": 2}', '{"value_base64": "%"}', '{"value_base64": 1}'),
        '{"value": 1, "timestamp": 1.5}',
        '{"value": 1, "timestamp": 9223372036854775808}',
        pytest.param('{"value": ' + "[" * 100_000, id="deep"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text('{"value": {}}\n\n' + line)
    with pytest.raises(ConfigError, match=r"Line 3 of .* is not a record"):
        sample_test.read_file(file)


def test_a_line_ends_where_json_lines_do(tmp_path: Path) -> None:
    file, text = tmp_path / "r.jsonl", "a\u2028b\x85c\x0bd"
    file.write_text("\r\n".join(json.dumps({"value": each}, ensure_ascii=False) for each in (text, "e")), newline="")
    assert [value.decode() for *_, value, _, _ in sample_test.read_file(file)] == [text, "e"]


def test_workers_of_the_sample_use_the_command_s_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protobuf is decoded in Python; whatever `python3` is, it may lack the libraries."""

    class StartedError(Exception):
        pass

    def start(_: SparkSession.Builder) -> None:
        raise StartedError

    monkeypatch.setenv("PYSPARK_PYTHON", "")
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", start)
    with pytest.raises(StartedError):
        sample_test.local_session()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
