"""The DAG `compare`."""

from __future__ import annotations

from sluice_airflow import dags

dags.build_part(globals(), "compare")
