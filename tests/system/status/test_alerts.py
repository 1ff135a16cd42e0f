"""The DAG `alerts` mails each incident once, with Airflow's notifier, from a real broker and catalog."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from sluice.embedded.home import REPOSITORY
from sluice.iceberg import tables
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from tests.support.airflow_process import isolated_airflow_env
from tests.support.airflow_stack import MAIL_NOTIFIER
from tests.support.light_lake import LightLake, only_batch
from tests.support.services.mailbox import Mailbox

pytestmark = pytest.mark.system

AIRFLOW = "https://airflow.example.org"
PROGRAM = """
import sys
from airflow.utils.db import initdb
initdb()
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
DagBundlesManager().sync_bundles_to_db()
bag = DagBag(sys.argv[1], bundle_name="dags-folder")
sync_bag_to_db(bag, "dags-folder", None)
for _ in sys.stdin:
    print("the run is", bag.dags["alerts"].test().state, flush=True)
"""
Look = Callable[[], str]


@contextmanager
def alerts(folder: Path, stack: dict[str, str], port: int) -> Iterator[Look]:
    """Runs of the DAG, one after the other, in an Airflow of their own: each returns what it came to."""
    plain = {"disable_ssl": True, "disable_tls": True}
    server = {"conn_type": "smtp", "host": "127.0.0.1", "port": port, "extra": plain}
    env = {
        **isolated_airflow_env(folder),
        **stack,
        "SLUICE_CONTRACTS": os.environ["SLUICE_CONTRACTS"],
        "AIRFLOW__API__BASE_URL": AIRFLOW,
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
        "AIRFLOW_CONN_SMTP_DEFAULT": json.dumps(server),
    }
    told = folder / "told.txt"
    command = [sys.executable, "-c", PROGRAM, str(REPOSITORY / "dags" / "alerts.py")]
    with told.open("w") as stderr, subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
    ) as running:  # fmt: skip

        def look() -> str:
            assert running.stdin and running.stdout
            print(file=running.stdin, flush=True)
            lines = []
            for line in running.stdout:
                lines.append(line)
                if line.startswith("the run is "):
                    return line.split()[-1]
            raise AssertionError("".join(lines)[-3000:] + told.read_text()[-3000:])

        yield look
        assert running.stdin
        running.stdin.close()


@pytest.mark.timeout(300)
def test_what_is_late_at_risk_rejecting_and_failing_again_is_told_once_each(
    light_lake: LightLake, sluice_env: dict[str, str], tmp_path: Path
) -> None:
    (light_lake.folder / "groups.yaml").write_text(
        f"events: {{schedule: '@hourly'}}\nalerts: {{failed_runs: 2, notifiers: [{json.dumps(MAIL_NOTIFIER)}]}}\n"
    )
    # What came two hours ago is gone in an hour, before the schedule has passed twice.
    retention = ConfigEntry("retention.ms", str(3 * 3600 * 1000), incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, light_lake.topic, incremental_configs=[retention])
    light_lake.admin.incremental_alter_configs([topic])[topic].result(30)
    ledger, late = Ledger(light_lake.catalog), 2 * 3600
    light_lake.send(0, 50, age_s=late)
    first = only_batch(light_lake.plan(), light_lake.topic)
    light_lake.stage(first)
    light_lake.publish(first)
    ledger.append(
        [
            LedgerRow(
                light_lake.topic,
                LedgerState.PUBLISHED,
                first.topic_id,
                batch_seq=1,
                table="db.events",
                records=50,
                rejected=5,
            )
        ],
        run_id="first",
    )
    set_apart(light_lake, 5)
    with Mailbox() as mailbox, alerts(tmp_path, sluice_env, mailbox.port) as look:

        def told() -> set[str]:
            """What the messages since the last time were about, each with the link to what happened."""
            found = [(str(m["Subject"]), str(m.get_body().get_content())) for m in mailbox.messages]  # type: ignore[union-attr]
            mailbox.messages.clear()
            link = f"{AIRFLOW}/sluice/tables/db.events/timeline"
            assert [re.findall(r'href="([^"]+)"', text) for _, text in found] == [[link]] * len(found)
            assert len({subject for subject, _ in found}) == len(found)
            return {subject for subject, _ in found}

        # A twentieth and more of what was published is set apart.
        assert (look(), told()) == ("failed", {"Sluice: db.events quarantines too many records"})
        # The promise of 15 minutes is broken, Kafka is about to delete what broke it, and a run failed at it: once.
        light_lake.send(1, 30, age_s=late)
        second = only_batch(light_lake.plan(), light_lake.topic)
        failed = LedgerRow(
            light_lake.topic, LedgerState.FAILED, second.topic_id, batch_seq=2, table="db.events", error="no space left"
        )
        ledger.append([failed], run_id="second")
        late_and_at_risk = {"Sluice: db.events is late", f"Sluice: db.events is at risk (unread: {light_lake.topic})"}
        assert (look(), told()) == ("failed", late_and_at_risk)
        assert (look(), told()) == ("success", set())
        # Twice in a row is what somebody asked to be told of.
        ledger.append([failed], run_id="third")
        assert (look(), told()) == ("failed", {f"Sluice: db.events is failed (batch 2 of {light_lake.topic})"})
        assert (look(), told()) == ("success", set())


def set_apart(light_lake: LightLake, count: int) -> None:
    """So many records of the first batch are in quarantine."""
    held = tables.ensure_quarantine(light_lake.catalog, light_lake.contracts.table("db.events"))
    record = {
        "batch_seq": 1, "_kafka_topic": light_lake.topic, "_kafka_partition": 0, "error_class": "misfit", "field": "n",
        "_kafka_timestamp": datetime.now(UTC), "quarantined_at": datetime.now(UTC),
    }  # fmt: skip
    rows = [{**record, "_kafka_offset": offset} for offset in range(count)]
    held.append(pa.Table.from_pylist(rows, schema=held.schema().as_arrow()))
