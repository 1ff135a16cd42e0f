"""The command line without services: usage, exit codes, `contract check`, and the text of `status`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sluice.cli import main
from sluice.cli import status as status_commands
from sluice.embedded.home import REPOSITORY
from sluice.errors import BrokerUnavailableError, OffsetsLostError
from sluice.offsets import OffsetRange
from sluice.operate import operator_input
from sluice.status import text as status_text
from sluice.status.model import (
    LastError,
    MaintenanceStatus,
    PartitionStatus,
    SnapshotStatus,
    Status,
    TableStatus,
    TopicStatus,
)
from sluice.status.open_work import OpenBatch

pytestmark = pytest.mark.unit

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
GOOD = """table: a.b
topic: t
group: g
owner: me
columns: [{name: n, type: long}]
"""


def sluice(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYICEBERG_", "SLUICE_", "KAFKA_"))}
    return subprocess.run(
        [sys.executable, "-m", "sluice", *arguments],
        env={**clean, "PYTHONPATH": str(REPOSITORY / "include"), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_usage():
    assert sluice("--help").returncode == 0
    wrong = sluice("stauts")
    assert wrong.returncode == 64
    assert "stauts" in wrong.stderr


def test_the_demo_has_its_usage_as_other_commands_have(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    asked: list[bool] = []

    def demo(*, keep: bool) -> int:
        asked.append(keep)
        return 1

    monkeypatch.setattr("sluice.demo.main", demo)
    assert main.main(["demo", "--x"]) == 64
    assert "--x" in capsys.readouterr().err
    assert main.main(["demo", "--help"]) == 0
    assert "--keep" in capsys.readouterr().out
    assert asked == []
    assert [main.main(["demo"]), main.main(["demo", "--keep"])] == [1, 1]
    assert asked == [False, True]


@pytest.mark.parametrize(
    ("command", "bad", "good"),
    [
        (("status", "--patience"), ("nan", "inf", "-1", "0", "1e9", "soon"), {"0.5": 0.5, "86400": 86_400.0}),
        (("ledger", "show", "-n"), ("0", "-5", "1.5"), {"1": 1}),
        (("contract", "test", "a.b", "--from-topic"), ("0", "-3", "x"), {"3": 3}),
    ],
)
def test_numbers_that_mean_nothing_are_wrong_usage(
    command: tuple[str, ...], bad: tuple[str, ...], good: dict[str, float], capsys: pytest.CaptureFixture[str]
):
    for text in bad:
        assert main.main([*command, text]) == 64
        said = capsys.readouterr().err
        assert f"argument {command[-1]}" in said and f"'{text}' is not a" in said and "above 0" in said
    for text, number in good.items():
        assert number in vars(main.make_parser().parse_args([*command, text])).values()


def test_the_command_line_is_light_until_a_command_needs_more():
    code = (
        "import sys, sluice.cli.main; "
        "print(*sorted({'pyspark', 'pyiceberg', 'confluent_kafka', 'yaml'} & set(sys.modules)))"
    )
    env = {"PYTHONPATH": str(REPOSITORY / "include")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_projects_own_contracts_are_sound(tmp_path: Path):
    done = sluice("contract", "check", HOME=str(tmp_path), SLUICE_CATALOG="nowhere")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 contracts in" in done.stdout
    assert "The tables were not checked" in done.stdout


def test_contract_check_names_file_and_line_and_goes_on_with_the_sound(tmp_path: Path):
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(GOOD.replace("a.b", "a.c").replace("type: long", "type: bigint"))
    done = sluice("contract", "check", str(tmp_path), SLUICE_CATALOG="nowhere")
    assert done.returncode == 3
    assert "bad.yaml:5" in done.stdout
    assert "did you mean 'long'?" in done.stdout
    assert "1 of the contracts" in done.stdout
    assert "Traceback" not in done.stderr


def test_contract_check_tells_what_would_be_created(tmp_path: Path, sluice_catalog: dict[str, str]):
    (tmp_path / "good.yaml").write_text(GOOD)
    done = sluice("contract", "check", str(tmp_path), **sluice_catalog)
    assert done.returncode == 0, done.stderr
    assert "would create a.b" in done.stdout
    assert "would create sluice_staging.t" in done.stdout


def test_contract_check_finds_a_table_that_does_not_fit(tmp_path: Path, sluice_catalog: dict[str, str]):
    from pyiceberg.catalog import load_catalog
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField, StringType

    (tmp_path / "good.yaml").write_text(GOOD)
    options = {k.rsplit("__", 1)[1].lower(): v for k, v in sluice_catalog.items()}
    catalog = load_catalog("lake", **options)
    catalog.create_namespace("a")
    catalog.create_table("a.b", Schema(NestedField(1, "n", StringType())))
    done = sluice("contract", "check", str(tmp_path), **sluice_catalog)
    assert done.returncode == 3
    assert "column n is string in the table, long in the contract" in done.stdout


@pytest.fixture
def sluice_catalog(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("lake")
    return {
        "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
        "PYICEBERG_CATALOG__LAKE__URI": f"sqlite:///{folder}/iceberg.db",
        "PYICEBERG_CATALOG__LAKE__WAREHOUSE": f"file://{folder}",
    }


def test_errors_are_one_clear_message_with_the_exit_code_of_their_family(capsys: pytest.CaptureFixture[str]):
    def lost() -> int:
        raise OffsetsLostError("Gone.", topic="t", partitions=[1])

    def away() -> int:
        raise BrokerUnavailableError("Away.")

    def bug() -> int:
        raise KeyError("x")

    assert [main._run_guarded(step) for step in (lambda: 0, away, lost, bug)] == [0, 2, 3, 1]
    told = capsys.readouterr().err
    assert "error: Gone.\n  where: topic t, partitions [1]\n  next step: Raise the topic's retention." in told
    assert "This is a bug in Sluice" in told
    assert "Traceback" not in told


def test_no_catalog_and_no_broker_are_said_not_thrown(tmp_path: Path):
    (tmp_path / "good.yaml").write_text(GOOD)
    env = {"SLUICE_CONTRACTS": str(tmp_path), "SLUICE_CATALOG": "nowhere", "HOME": str(tmp_path)}
    done = sluice("status", **env)
    assert done.returncode == 3
    assert "a.b" in done.stdout
    assert "No Kafka cluster is configured." in done.stdout
    assert "Traceback" not in done.stderr


def table(**changes: object) -> TableStatus:
    partitions = [PartitionStatus(p, 0, 1_234_567, 1_300_000, 1_400_000, 165_433) for p in range(3)]
    topic = TopicStatus("clicks", "id", 7, 8, partitions, 496_299, 30.0, NOW, NOW - timedelta(seconds=30), {0: 5})
    ranges = {p: OffsetRange(1_000_000, 1_234_567) for p in range(12)}
    values: dict[str, object] = {
        "topics": [topic],
        "snapshot": SnapshotStatus(2**62, NOW, 300.0, "clicks", 7, ranges, 703_701, "run", "publish", 1_005),
        "open_batches": [OpenBatch("clicks", 8, "staged", ranges)],
        "quarantined": 17,
        "maintenance": [MaintenanceStatus("rewrite_data_files", NOW, "done", "done, data files 1,234 → 5, " * 8)],
        "last_error": LastError(NOW, "blocked", "clicks", 8, "9 of 10 records can't be read. " * 8, "run", open=True),
        "freshness_promised_seconds": 900.0,
        "freshness_now_seconds": 30.0,
        "freshness_kept": False,
        "totals": {"records": 703_701, "delete files": 1, "deleted records": 1_005},
        **changes,
    }
    return TableStatus("web.clicks_of_all_customers", "web", "append", "team", exists=True, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("details", [False, True])
def test_a_status_reads_within_a_hundred_columns(details: bool):
    status = Status(NOW, [table(), table(snapshot=None, last_error=None)], [BrokerUnavailableError("Away. " * 30)])
    text = status_text.as_text(status, details=details)
    assert max(map(len, text.splitlines())) <= 100, text
    for expected in ("web.clicks_of_all_customers", "blocked", "496,299", "17", "not available: Away."):
        assert expected in text
    if details:
        assert str(2**62) in text
        # The guide waits for the first of these words.
        assert "clicks: batch 7 published, batch 8 staged; lag 496,299 offsets" in text
        assert "703,701 rows added, 1,005 removed" in " ".join(text.split())
        assert "  rows        703,701 in data files; delete files mark 1,005 as deleted\n" in text
        shown = status_text.as_text(Status(NOW, [table(topics=[TopicStatus("c", "id", 7, 7, [], 1)])]), details=True)
        assert "c: batch 7 published; lag 1 offset\n" in shown
        assert "clicks batch 8 is staged, not published" in text
        assert "LATE: older records are unread" in text
        assert "maintained  rewrite_data_files at 2026-01-02 03:04:05 UTC: done, data files 1,234 → 5" in text


def test_a_status_tells_of_the_tables_that_belong_to_one_and_of_those_that_belong_to_none():
    of = MaintenanceStatus("expire_snapshots", NOW, "done", "done", "sluice_staging.clicks")
    text = status_text.as_text(Status(NOW, [table(maintenance=[of])]), details=True)
    assert "maintained  expire_snapshots of sluice_staging.clicks at 2026-01-02 03:04:05 UTC: done" in text
    text = status_text.as_text(Status(NOW, [table()], unclaimed=["sluice_staging.old (topic old)"]), details=False)
    assert "! no contract reads it: sluice_staging.old (topic old); its records are never trimmed" in text


def test_a_status_as_json_holds_everything_in_jsons_own_types():
    told = json.loads(json.dumps(status_text.as_json(Status(NOW, [table()], [BrokerUnavailableError("Away.")]))))
    one = told["tables"][0]
    assert one["snapshot"]["ranges"]["0"] == [1_000_000, 1_234_567]
    assert one["topics"][0]["partitions"][1]["published"] == 1_234_567
    assert one["lag_records"] == 496_299
    assert one["last_error"]["at"] == "2026-01-02T03:04:05+00:00"
    assert told["unavailable"][0].startswith("Away.")


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "?"), (0, "0s"), (119, "119s"), (120, "2m"), (7_300, "2h"), (200_000, "2d")]
)
def test_durations(seconds: float | None, text: str):
    assert status_text.duration(seconds) == text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gap", "accept", "db.t", "--yes"), "--yes needs --why"),
        (("schema", "approve", "db.t", "--yes", "--why", " "), "--yes needs --why"),
        (("backfill", "run", "db.t", "--yes"), "--yes needs --why"),
        (("ledger", "retire-consumer", "db.t", "t", "--yes"), "--yes needs --why"),
        (("maintain", "run", "compact", "db.t"), "rewrite_data_files"),
        (("doctor", "kafak"), "'kafak' is not one of versions, java"),
        (("gap", "accept", "db.t", "--why", "x", "--ranges", '{"0": [1]}'), "Partition 0: '[1]' is not a range"),
        (("gap", "accept", "db.t", "--why", "x", "--ranges", "0:1-5"), "is not valid JSON"),
        (("backfill", "plan", "db.t", "--ranges", '{"0": [1, 1e999]}'), "Partition 0"),
        (("rollback", "db.t", "--why", "x"), "--to-snapshot"),
        (("rollback", "db.t", "--why", "x", "--to-snapshot", "1", "--before-run", "r"), "not allowed with"),
    ],
)
def test_acts_need_their_reason_and_their_object(arguments: tuple[str, ...], says: str):
    done = sluice(*arguments)
    assert done.returncode == 64
    assert says in done.stderr


def test_an_act_by_a_user_without_a_name_is_told_by_its_number(
    tmp_path: Path, sluice_catalog: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """As in a container that runs as any number."""
    (tmp_path / "good.yaml").write_text(GOOD)
    for name, value in {**sluice_catalog, "SLUICE_CONTRACTS": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 1_234_567)
    assert operator_input.current_user() == "uid 1234567"
    assert main.main(["ledger", "rebuild"]) == 0, capsys.readouterr().err


def test_a_terminal_does_not_obey_what_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        print("row: \x9b2J\u202e\ttext")
        print("stopped: \x1b[2J\ud800", file=sys.stderr)
        raise OffsetsLostError("no field \x1b]0;t\x07", topic="\x1b[31m\n  next step: x")

    monkeypatch.setattr(status_commands, "load_contracts", fails)
    assert main.main(["status"]) == 3
    shown = capsys.readouterr()
    assert shown.out == "row: \\x9b2J\\u202e\ttext\n"
    assert shown.err.startswith(
        "stopped: \\x1b[2J\\ud800\nerror: no field \\x1b]0;t\\x07\n  where: topic \\x1b[31m\\n  next step: x\n"
    )
