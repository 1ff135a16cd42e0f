"""`run`, `tables`, `quarantine`, `contract diff`, `backfill run`, `maintain run`, `compare`: without Airflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from sluice.cli import main
from sluice.embedded import jars
from sluice.embedded.home import REPOSITORY, cache_folder
from sluice.embedded.java import find_java
from sluice.usage import costs_table
from tests.support import read_only
from tests.support.light_lake import LightLake

pytestmark = pytest.mark.system

Run = Callable[..., tuple[int, str, str]]
TOLERANT = {"errors": {"max_ratio": 1.0}}
HOSTILE = '{"n": "\x1b[2J\u202e<b>"}'


@pytest.fixture
def sluice(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main.main(arguments)
        told = capfd.readouterr()
        return code, told.out, told.err

    return run


def send(lake: LightLake, *values: str) -> None:
    producer = Producer({"bootstrap.servers": lake.bootstrap})
    for value in values:
        producer.produce(lake.topic, value, key="k", partition=0)
    assert producer.flush(30) == 0


def run_read_only(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a command that can write to the folder and to temporary files only, as in a container."""
    command = [sys.executable, "-m", "sluice", *arguments]
    if read_only.is_possible():  # a test of tests/system/airflow says where it is not
        command = read_only.command([folder, Path(tempfile.gettempdir())], command)
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "include"), "JAVA_HOME": str(find_java(cache_folder()).home)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_table_without_airflow(
    light_lake: LightLake, sluice: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_JARS", str(jars.ensure_jars(jars.SPARK)))
    groups = {"groups": {"events": {"spark": {"driver_memory": "1g"}}}}
    (light_lake.folder / "groups.yaml").write_text(yaml.safe_dump(groups))
    light_lake.contract(**TOLERANT)
    code, out, _ = sluice("tables")
    assert code == 0 and out.splitlines()[1].split() == ["db.events", light_lake.topic, "append", "events", "new"]
    assert sluice("contract", "diff", "db.events")[1] == "db.events does not exist yet: the next run creates it.\n"
    assert "has no quarantined records" in sluice("quarantine", "db.events")[1]
    send(light_lake, '{"n": 1}', HOSTILE, '{"n": 3}')

    code, out, err = run_read_only(tmp_path, "run", "events")
    assert code == 0, (out, err)
    lines = out.splitlines()
    assert lines[0].startswith(f"stage   {light_lake.topic} batch 1 ")
    assert "published  db.events" in lines
    shown = {line[2:19].rstrip(): line[20:] for line in lines if line.startswith("  ")}
    assert shown["rows"] == "2" and shown["quarantined"] == "1" and shown["lag"] == "0 offsets"
    assert json.loads(shown["committed offsets"])["0"] == 3 and "batch 1 staged in" in shown["steps"]

    code, out, _ = sluice("run", "events", "--json")  # nothing to do: no JVM
    assert code == 0 and json.loads(out)["tables"]["db.events"]["state"] == "idle"
    assert json.loads(sluice("tables", "--json")[1])["tables"][0]["state"] == "fresh"

    quarantined(light_lake, sluice)
    changed(light_lake, sluice)
    replayed(light_lake, sluice)
    priced(light_lake, sluice, tmp_path, monkeypatch)
    compared(light_lake, sluice, tmp_path)


def priced(lake: LightLake, sluice: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both applications, of the run and of the slice, have left what they cost, their start above all."""
    rows = costs_table.read_costs(lake.catalog, datetime.now(UTC) - timedelta(hours=1))
    by_application = {(row.application, row.step): row for row in rows}
    assert {step for _, step in by_application} == {"application", "stage", "check", "publish", "backfill"}
    start = by_application["sluice ingest events", "application"]
    assert start.driver_cpu_seconds and start.driver_cpu_seconds > 2 and start.wall_seconds > 2
    assert by_application["sluice ingest events", "stage"].records == 3 and sum(row.catalog_calls for row in rows) > 10
    monkeypatch.delenv("SLUICE_PRICES", raising=False)
    code, out, err = sluice("cost", "db.events", "--json")
    assert code == 0, err
    (day,) = json.loads(out)["days"][-1:]
    assert day["price"] is None and day["cpu_seconds"] > 2 and day["records"] > 0
    prices = folder / "prices.yaml"
    monkeypatch.setenv("SLUICE_PRICES", str(prices))
    prices.write_text("currency: EUR\nper_cpu_hour: 3600\n")
    assert json.loads(sluice("cost", "--json")[1])["tables"]["db.events"]["price"] > 2
    shown = sluice("cost", "db.events", "--days", "30")[1]
    assert "EUR" in shown.splitlines()[0] and "typed db.events: " in shown and "EUR a month" in shown
    code, _, err = sluice("cost", "db.events", "--what-if", "every=1m")
    assert code == 3 and "1 measured runs with records; an estimate needs 8" in err
    prices.write_text("currency: EUR\nper_cpu_hours: 1\n")
    code, _, err = sluice("cost")
    assert code == 3 and "prices.yaml:2: per_cpu_hours: unknown field (did you mean 'per_cpu_hour'?)" in err


def quarantined(lake: LightLake, sluice: Run) -> None:
    code, out, _ = sluice("quarantine", "db.events")
    assert code == 0 and "malformed" in out and "<b>" not in out
    row = [line for line in out.splitlines() if line.startswith(lake.topic)]
    assert row[0].split()[:5] == [lake.topic, "0", "1", "1", "malformed"]
    shown = sluice("quarantine", "db.events", "--show-values")[1]
    assert "\\x1b[2J\\u202e<b>" in shown and "\x1b" not in shown and "\u202e" not in shown
    facts = json.loads(sluice("quarantine", "db.events", "--json", "--show-values", "--limit", "1")[1])
    error = {"error_class": "malformed", "field": "n", "records": 1, "ranges": {}, "waiting": False}
    assert facts["errors"][0] | {"ranges": {}} == error
    (record,) = facts["records"]
    assert (record["key"], record["value"], record["offset"]) == ("k", HOSTILE, 1)
    assert "value" not in json.loads(sluice("quarantine", "db.events", "--json")[1])["records"][0]


def changed(lake: LightLake, sluice: Run) -> None:
    assert json.loads(sluice("contract", "diff", "db.events", "--json")[1])["next_run"] == "changes nothing"
    lake.contract(**TOLERANT, columns=[{"name": "n", "type": "long"}, {"name": "more", "type": "string"}])
    facts: dict[str, Any] = json.loads(sluice("contract", "diff", "db.events", "--json")[1])
    assert facts["changes"] == [
        {"kind": "add_column", "column": "more", "change": "adds column more (string)", "policy": "auto"}
    ]
    assert facts["next_run"] == "applies the changes as version 2"
    assert "change    adds column more (string)" in sluice("contract", "diff", "db.events")[1]
    lake.contract(**TOLERANT)


def replayed(lake: LightLake, sluice: Run) -> None:
    ranges = ("--ranges", '{"0": [0, 3]}')
    assert "Nothing was changed." in sluice("backfill", "run", "db.events", *ranges)[1]
    code, out, err = sluice("backfill", "run", "db.events", *ranges, "--why", "test", "--yes", "--json")
    assert code == 0, (out, err)
    (slice_,) = json.loads(out)["slices"]
    assert slice_["snapshot_id"] and lake.catalog.load_table("db.events").scan().count() == 2
    code, out, _ = sluice("maintain", "run", "rewrite_data_files", "db.events")  # nothing is due: no JVM
    assert code == 0 and out.startswith("skipped  db.events: ")


def compared(lake: LightLake, sluice: Run, folder: Path) -> None:
    """Compare with a copy that lacks a row."""
    rows = lake.catalog.load_table("db.events").scan().to_arrow()
    report = folder / "report.html"
    lake.catalog.create_table("db.old", rows.schema).append(rows.slice(0, 1))
    code, out, err = sluice("compare", "db.events", "--with", "db.old", "--output", str(report), "--json")
    assert code == 3, (out, err)
    found = json.loads(out)
    assert (found["equal"], found["only_ours"]["count"], found["theirs"]["rows"]) == (False, 1, 1)
    assert found["verdict"] == "different: 1 key is missing in db.old"
    assert found["verdict"] in report.read_text()
    code, out, _ = sluice("decide", "db.events")
    assert "Pilot 3: parallel run compared: with db.old at " in out and out.endswith(
        "Add --why REASON --yes to apply it.\n"
    )
