"""The file with settings and contracts for a driver on another machine."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sluice import driver_files
from sluice.embedded.home import REPOSITORY
from sluice.ingest import application

pytestmark = pytest.mark.unit

DRIVER = """
import json, os
from sluice import driver_files
from sluice.contract import folder
driver_files.unpack()
folder_of_contracts = os.environ["SLUICE_CONTRACTS"]
print(json.dumps({
    "secret": os.environ["SLUICE_KAFKA_CONFIG"],
    "tables": [each.table for each in folder.load_contracts().groups["shop"].contracts],
    "catalogs": open(os.path.join(os.environ["PYICEBERG_HOME"], ".pyiceberg.yaml")).read(),
    "mode": os.stat(os.path.dirname(folder_of_contracts)).st_mode & 0o777,
    "folder": folder_of_contracts,
}))
"""


def test_a_driver_elsewhere_has_the_settings_and_contracts_of_the_worker(tmp_path: Path) -> None:
    contracts, sent = tmp_path / "contracts", tmp_path / "sent"
    contracts.mkdir(), sent.mkdir()
    (contracts / "shop.orders.yaml").write_text(
        "table: shop.orders\ntopic: orders\ngroup: shop\nowner: me\ncolumns: [{name: id, type: long}]\n"
    )
    (contracts / "notes.txt").write_text("no contract")
    catalogs = tmp_path / ".pyiceberg.yaml"
    catalogs.write_text("catalog: {}")
    path = driver_files.pack(sent, {"SLUICE_KAFKA_CONFIG": "s3cret"}, contracts, catalogs)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY / "include"), driver_files.VARIABLE: path.name}
    command = [sys.executable, "-c", DRIVER]
    done = subprocess.run(command, env=env, cwd=sent, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["secret"], found["tables"], found["catalogs"]) == ("s3cret", ["shop.orders"], "catalog: {}")
    assert found["mode"] == 0o700
    assert not Path(found["folder"]).exists(), "it ends with the driver"


def test_a_file_that_did_not_arrive_needs_action(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(driver_files.VARIABLE, str(tmp_path / "none.zip"))

    @application.as_job
    def never(_: list[str] | None) -> int:
        raise AssertionError("it has no settings")

    assert never([]) == 3
    assert "The driver's settings can't be read from" in caplog.text and "spark-submit --files" in caplog.text
