"""The services and contracts that one run of the demo uses."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.catalog import Catalog

from sluice import dag_ids
from sluice.contract.folder import Contracts
from sluice.demo.api import AirflowClient
from sluice.embedded.home import Home

GROUP = "aviation"
DAG = dag_ids.ingest_dag(GROUP)


@dataclass(frozen=True)
class DemoContext:
    """A running stack, as the demo uses it.

    Attributes:
        home: The stack's folder.
        catalog: Its Iceberg catalog.
        contracts: The contracts of the demo's tables.
        bootstrap: The broker's address.
        airflow: Its Airflow.
    """

    home: Home
    catalog: Catalog
    contracts: Contracts
    bootstrap: str
    airflow: AirflowClient
