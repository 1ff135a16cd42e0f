"""The DAG `watch_tables`, which keeps the watchers of tables going. See `sluice_airflow.dags.watch`."""

from __future__ import annotations

from sluice_airflow import dags

dags.build_part(globals(), "watch")
