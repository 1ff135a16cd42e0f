"""A fresh start for the demo: its topics and tables are made anew, and nothing else in the stack is touched."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyiceberg.catalog import Catalog

from sluice.contract.folder import Contracts
from sluice.demo.api import Airflow
from sluice.demo.source import TOPICS
from sluice.embedded.failure import StackError
from sluice.embedded.home import Home
from sluice.iceberg import table_names, tables
from sluice.iceberg.filters import one_of
from sluice.ledger.offsets_table import Ledger

MARK = "demo"
PATIENCE_S = 120.0


def fresh(home: Home, catalog: Catalog, contracts: Contracts, bootstrap: str, airflow: Airflow, dag: str) -> None:
    """Remove an earlier demo's topics, tables and ledger rows, and make the topics.

    Raises:
        StackError: Topics or tables of these names are there that no demo has made, or a run does not end.
    """
    client = AdminClient({"bootstrap.servers": bootstrap})
    there = sorted(set(client.list_topics(timeout=30).topics) & set(TOPICS))
    mark = home.root / MARK
    if there and not mark.exists():
        raise StackError(
            f"this stack holds topics that the demo did not make: {', '.join(there)}",
            way_out="run the demo in a folder of its own: SLUICE_HOME=/some/folder make demo",
        )
    mark.write_text("The topics and tables of the demo are its own: each run makes them anew.\n", encoding="utf-8")
    _wait_for_runs(airflow, dag)
    _drop_tables(home, catalog, contracts)
    ledger = Ledger(catalog)
    if ledger.table.metadata.current_snapshot_id is not None:
        ledger.table.delete(one_of("topic", TOPICS))
    _topics(client, there)


def _wait_for_runs(airflow: Airflow, dag: str) -> None:
    """A run of an earlier demo must not write into the new tables."""
    if not airflow.open_runs(dag):
        return
    airflow.pause(dag, False)  # else it would never end
    until = time.monotonic() + PATIENCE_S
    while airflow.open_runs(dag):
        if time.monotonic() > until:
            raise StackError(f"an earlier run of {dag} is still at work", way_out="wait for it, or end it in Airflow")
        time.sleep(2)
    airflow.pause(dag, True)


def _drop_tables(home: Home, catalog: Catalog, contracts: Contracts) -> None:
    names = [table_names.staging(topic) for topic in TOPICS]
    for topic in TOPICS:
        contract = contracts.table(f"aviation.{topic}")
        names += [table_names.typed(contract), table_names.quarantine(contract), table_names.deletes(contract)]
    for name in names:
        table = tables.load(catalog, name)
        if table is not None:
            catalog.drop_table(name)
            folder = Path(urlsplit(table.location()).path)
            if folder.is_relative_to(home.warehouse) and folder != home.warehouse:
                shutil.rmtree(folder, ignore_errors=True)


def _topics(client: AdminClient, there: Iterable[str]) -> None:
    for future in client.delete_topics(list(there)).values() if there else ():
        future.result()
    left = set(TOPICS)
    until = time.monotonic() + PATIENCE_S
    while left:
        wanted = [NewTopic(t, TOPICS[t]["partitions"], 1, config=TOPICS[t]["config"]) for t in sorted(left)]
        for topic, future in client.create_topics(wanted).items():
            try:
                future.result()
                left.discard(topic)
            except KafkaException as error:
                # The deletion of the old one is still under way.
                if error.args[0].name() != "TOPIC_ALREADY_EXISTS" or time.monotonic() > until:
                    raise
        if left:
            time.sleep(0.5)
