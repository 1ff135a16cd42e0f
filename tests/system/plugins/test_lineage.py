"""OpenLineage events of a table's task, sent by Airflow's own provider into a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.airflow_process import isolated_airflow_env

DAG = """\
import json, os
from airflow.sdk import DAG, task
from sluice_airflow.dags import ingest

with DAG("tells"):
    @task
    def outcome():
        ingest.event(json.loads(os.environ["FOUND"]))
    outcome()
"""
PROGRAM = """\
from airflow.utils.db import initdb
initdb()
import os
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
DagBundlesManager().sync_bundles_to_db()
bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"], bundle_name="dags-folder")
sync_bag_to_db(bag, "dags-folder", None)
assert bag.dags["tells"].test().state == "success"
"""


def sent(folder: Path, found: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a run of the task, with an Airflow of its own."""
    (folder / "dags").mkdir()
    (folder / "contracts").mkdir()
    (folder / "dags" / "tells.py").write_text(DAG)
    events = folder / "events.json"
    kafka = {"bootstrap.servers": "kafka:9092,other:9092", "sasl.password": "s3cret"}
    transport = {"type": "file", "log_file_path": str(events), "append": True}
    env = {
        **isolated_airflow_env(folder),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
        "AIRFLOW_CONN_SLUICE_KAFKA": json.dumps({"conn_type": "kafka", "extra": kafka}),
        "SLUICE_CONTRACTS": str(folder / "contracts"),
        "FOUND": json.dumps(found),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    text = events.read_text()
    assert "s3cret" not in text
    return [json.loads(line) for line in text.splitlines()]


def test_lineage_tells_which_offsets_went_into_which_snapshot(tmp_path: Path) -> None:
    found = {
        "table": "shop.orders", "state": "published", "red": False, "batches": {"orders": [3, 4]},
        "ranges": {"orders": ['{"0":[5,10]}', '{"0":[10,12],"1":[0,3]}']}, "gaps": {"orders": ['{"1":[[0,1]]}']},
        "snapshot_id": 8612345678901234567, "location": "s3a://lake/warehouse/shop/orders", "records": 9,
        "rejected": 0, "expectations": {}, "warnings": [],
        "contract": {
            "doc": "All orders", "owner": "team-shop", "masks": {"email": "sha256"}, "personal_data": True,
            "properties": {"comment": "All orders", "sluice.contract-version": "3", "sluice.freshness": "15m"},
        },
    }  # fmt: skip
    (event,) = [e for e in sent(tmp_path, found) if e["eventType"] == "RUNNING" and e["outputs"]]
    assert event["job"]["name"] == "tells.outcome"
    ((topic,), (table,)) = event["inputs"], event["outputs"]
    assert (topic["namespace"], topic["name"]) == ("kafka://kafka:9092", "orders")
    read = [p["dimensions"] for p in topic["inputFacets"]["subset"]["inputCondition"]["partitions"]]
    assert [(p["partition"], p["start_offset"], p["end_offset"]) for p in read] == [(0, 5, 10), (0, 10, 12), (1, 1, 3)]
    assert (table["namespace"], table["name"]) == ("s3://lake", "warehouse/shop/orders")
    assert table["facets"]["version"]["datasetVersion"] == "8612345678901234567"
    facets = table["facets"]
    assert facets["documentation"]["description"] == "All orders"
    assert [(each["name"], each["type"]) for each in facets["ownership"]["owners"]] == [("team-shop", "OWNER")]
    assert {(each["key"], each["value"], each.get("field")) for each in facets["tags"]["tags"]} == {
        ("sluice.contract-version", "3", None),
        ("sluice.freshness", "15m", None),
        ("sluice.personal-data", "true", None),
        ("sluice.mask", "sha256", "email"),
    }
    (named,) = table["facets"]["symlinks"]["identifiers"]
    assert (named["namespace"], named["name"], named["type"]) == ("iceberg://lake", "shop.orders", "TABLE")
