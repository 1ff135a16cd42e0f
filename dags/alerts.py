"""The DAG `alerts`, if `groups.yaml` has `alerts`."""

from __future__ import annotations

from sluice_airflow import dags

dags.build_part(globals(), "alerts")
