"""Removes the topics, tables and ledger rows of an earlier demo, and creates its topics; touches nothing else."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from sluice.demo.api import AirflowClient
from sluice.demo.context import DAG, GROUP, DemoContext
from sluice.demo.source import TOPICS
from sluice.embedded.failure import StackError
from sluice.iceberg import table_names, tables
from sluice.iceberg.filters import one_of
from sluice.ledger.offsets_table import Ledger

# A file in the stack's folder: the topics and tables in this stack are the demo's own.
MARK_FILE = "demo"
PATIENCE_S = 120.0


def reset_demo(demo: DemoContext) -> None:
    """Remove an earlier demo's topics, tables and ledger rows, and create the topics.

    Raises:
        StackError: The stack has topics of these names that no demo created, or an earlier run does not end.
    """
    client = AdminClient({"bootstrap.servers": demo.bootstrap})
    existing = sorted(set(client.list_topics(timeout=30).topics) & set(TOPICS))
    mark = demo.home.root / MARK_FILE
    if existing and not mark.exists():
        raise StackError(
            f"this stack has topics that the demo did not create: {', '.join(existing)}",
            next_step="run the demo in another folder: SLUICE_HOME=/some/folder make demo",
        )
    mark.write_text("Each run of the demo removes its topics and tables and creates them again.\n", encoding="utf-8")
    _wait_for_runs(demo.airflow)
    _drop_tables(demo)
    ledger = Ledger(demo.catalog)
    if ledger.table.metadata.current_snapshot_id is not None:
        ledger.table.delete(one_of("topic", TOPICS))
    _recreate_topics(client, existing)


def _wait_for_runs(airflow: AirflowClient) -> None:
    """Wait for runs of an earlier demo, which must not write into the new tables."""
    if not airflow.open_runs(DAG):
        return
    airflow.pause(DAG, False)  # a queued run of a paused DAG never starts
    until = time.monotonic() + PATIENCE_S
    while airflow.open_runs(DAG):
        if time.monotonic() > until:
            raise StackError(
                f"an earlier run of {DAG} has not ended", next_step="wait for it, or mark it as failed in Airflow"
            )
        time.sleep(2)
    airflow.pause(DAG, True)


def _drop_tables(demo: DemoContext) -> None:
    names = [table_names.staging(topic) for topic in TOPICS]
    for topic in TOPICS:
        contract = demo.contracts.table(f"{GROUP}.{topic}")
        names += [table_names.typed(contract), table_names.quarantine(contract), table_names.deletes(contract)]
    warehouse = demo.home.warehouse
    for name in names:
        table = tables.load(demo.catalog, name)
        if table is not None:
            demo.catalog.drop_table(name)
            folder = Path(urlsplit(table.location()).path)
            if folder.is_relative_to(warehouse) and folder != warehouse:
                shutil.rmtree(folder, ignore_errors=True)


def _recreate_topics(client: AdminClient, existing: Iterable[str]) -> None:
    for future in client.delete_topics(list(existing)).values() if existing else ():
        future.result()
    remaining = set(TOPICS)
    until = time.monotonic() + PATIENCE_S
    while remaining:
        wanted = [NewTopic(t, TOPICS[t]["partitions"], 1, config=TOPICS[t]["config"]) for t in sorted(remaining)]
        for topic, future in client.create_topics(wanted).items():
            try:
                future.result()
                remaining.discard(topic)
            except KafkaException as error:
                # Kafka has not finished deleting the old topic.
                if error.args[0].name() != "TOPIC_ALREADY_EXISTS" or time.monotonic() > until:
                    raise
        if remaining:
            time.sleep(0.5)
