"""The DAGs `maintain_…`: one per maintenance action."""

from __future__ import annotations

from sluice_airflow import dags

dags.build_part(globals(), "maintain")
