"""What a deployment sets for all of Sluice's DAGs: an owner, and more tags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice_airflow.services import SparkService


@dataclass(frozen=True)
class DagOptions:
    """Options for all DAGs.

    Attributes:
        owner: Airflow owner of tasks that no contract has an owner for. Default: Airflow's, `sluice` for ingestion.
        more_tags: Tags of each DAG beside its own.
        service: What submits Spark applications instead of spark-submit.
    """

    owner: str | None = None
    more_tags: tuple[str, ...] = ()
    service: SparkService | None = None

    def tags(self, *own: str) -> list[str]:
        """Return all tags of a DAG."""
        return list(dict.fromkeys(("sluice", *own, *self.more_tags)))

    @property
    def owner_argument(self) -> dict[str, str]:
        """The owner for a DAG's `default_args`; empty if none is set."""
        return {"owner": self.owner} if self.owner else {}
