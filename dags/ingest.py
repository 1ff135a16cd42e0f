"""The DAGs `ingest_…`: one per group of contracts. Broken contracts are shown by `contracts_check.py`."""

from __future__ import annotations

from sluice_airflow import dags

dags.build_part(globals(), "ingest")
