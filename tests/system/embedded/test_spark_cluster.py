"""`make up SPARK=…`: the embedded stack sends its applications to a cluster; a master that is away is named."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from sluice.embedded import spark_master
from sluice.embedded.env import load_env
from sluice.embedded.failure import StackError
from sluice.embedded.home import REPOSITORY
from sluice.embedded.ports import HOST, free_port
from tests.conftest import Embedded
from tests.support.airflow_stack import UPSERT_CONTRACT, AirflowStack
from tests.support.services.spark_cluster import SparkCluster

EXAMPLE = REPOSITORY / "examples" / "protobuf"
GROUPS = """\
defaults: {{schedule: null, retries: 0}}
examples: {{spark: {{executor_memory: 768m, conf: {{spark.cores.max: 2, spark.master.ui.port: {page}}}}}}}
"""


@pytest.mark.system
def test_make_passes_the_master_on_and_ignores_a_variable_of_the_shell() -> None:
    command = [
        "make",
        "--no-print-directory",
        f"--eval=shown: ; @printenv {spark_master.VARIABLE} || echo none",
        "shown",
    ]
    env = {name: value for name, value in os.environ.items() if name != spark_master.VARIABLE}
    env["SPARK"] = "/opt/spark"
    for more, expected in [([], "none"), (["SPARK=spark://a:1,b:2"], "spark://a:1,b:2")]:
        done = subprocess.run([*command, *more], env=env, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


@pytest.mark.system
def test_a_master_that_is_away_is_named_within_seconds_and_nothing_is_started(
    embedded: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, began = free_port(), time.monotonic()
    up = embedded("up", env={spark_master.VARIABLE: f"spark://{HOST}:{port}"})
    assert up.returncode == 1
    assert f"Spark's master spark://{HOST}:{port} does not answer: {HOST}:{port}: Connection refused" in up.stderr
    assert "SPARK=local[2]" in up.stderr
    assert time.monotonic() - began < 20
    assert not (tmp_path / "home" / "state.json").exists()
    for master, says in [("yarn", "no master that the embedded stack can use"), ("spark://x", "usually 7077")]:
        with pytest.raises(StackError, match=says):
            spark_master.check_for_stack(master)
    with socket.create_server((HOST, 0)) as listening:
        here = f"{HOST}:{listening.getsockname()[1]}"
        spark_master.check_for_stack(f"spark://{HOST}:{port},{here}")  # one of two masters is enough
        monkeypatch.setattr(spark_master, "_is_here", lambda _: False)
        with pytest.raises(StackError, match="on another machine, whose executors can't reach the stack"):
            spark_master.check_for_stack(f"spark://{here}")


@pytest.mark.infra
@pytest.mark.timeout(600)
def test_a_group_runs_on_the_cluster_that_make_up_names(embedded: Embedded, tmp_path: Path) -> None:
    contracts = tmp_path / "contracts"
    contracts.mkdir()
    (contracts / "payments.yaml").write_text((EXAMPLE / "contract.yaml").read_text())
    latest = UPSERT_CONTRACT.format(table="examples.latest", topic="latest", group="examples")
    (contracts / "latest.yaml").write_text(latest)
    with SparkCluster(tmp_path / "cluster") as cluster:
        (contracts / "groups.yaml").write_text(GROUPS.format(page=cluster.page))
        variables = {spark_master.VARIABLE: cluster.master, "SLUICE_CONTRACTS": str(contracts)}
        up = embedded("up", env=variables)
        assert up.returncode == 0, up.stderr
        assert f"Spark on {cluster.master}" in up.stderr
        other = embedded("up", env={**variables, spark_master.VARIABLE: "local[2]"})
        assert other.returncode == 1 and "make down, then make up SPARK=local[2]" in other.stderr

        env = load_env(tmp_path / "home")
        stack = AirflowStack(env, None)
        run_with_stack = {**os.environ, **env}
        subprocess.run([sys.executable, EXAMPLE / "produce.py"], env=run_with_stack, check=True)
        admin = AdminClient({"bootstrap.servers": env["KAFKA_BOOTSTRAP_SERVERS"]})
        admin.create_topics([NewTopic("latest", 2, 1)])["latest"].result(30)
        sent = [(f"k{n % 70}", n) for n in range(500)]
        stack.send("latest", [json.dumps({"n": n}).encode() for _, n in sent], [key.encode() for key, _ in sent])

        run = stack.trigger("ingest_examples", {"examples.payments", "examples.latest"})
        state, tasks = stack.end("ingest_examples", run)
        assert state == "success", tasks
        assert [each["name"] for each in cluster.state()["completedapps"]] == ["sluice ingest examples"]
        rows = stack.catalog.load_table("examples.latest").scan(selected_fields=("id", "n")).to_arrow().to_pylist()
        assert {row["id"]: row["n"] for row in rows} == dict(sent) and len(rows) == 70
        # Python on the executors decodes these.
        payments = stack.catalog.load_table("examples.payments").scan().to_arrow().sort_by("payment_id").to_pylist()
        wanted = ("payment_id", "amount", "status", "paid_at", "card_brand", "iban")
        assert [tuple(row[name] for name in wanted) for row in payments] == [
            (1, Decimal("12.50"), "SETTLED", datetime(2026, 11, 26, 9, 30, tzinfo=UTC), "visa", None),
            (2, Decimal("7.00"), "PENDING", None, None, "NO9386011117947"),
        ]

        doctor = [sys.executable, "-m", "sluice", "doctor", "airflow", "--json"]
        asked = {"env": run_with_stack, "capture_output": True, "text": True, "timeout": 120}
        done = subprocess.run(doctor, check=False, **asked)
        assert done.returncode == 0, done.stdout + done.stderr
        has = "2 worker(s), the largest with 2 core(s) and 2,048 MiB; 4 of 4 cores and 4,096 of 4,096 MiB are free"
        asks = "an executor of group examples asks 1 core(s) and 768 MiB, with spark.cores.max 2"
        assert f"{cluster.master} answers: {has}; {asks}" in done.stdout
    done = subprocess.run(doctor, check=False, **asked)
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search(rf"by Airflow connection spark_default: {cluster.master} does not answer: ", done.stdout)
