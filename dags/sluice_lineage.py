"""OpenLineage: which offsets of which topics went into which snapshot of a table, by Airflow's own provider."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from sluice_connections import kafka_config

from sluice.model import decode_ranges

CATALOG = os.environ.get("SLUICE_CATALOG", "lake")


def emit(found: Mapping[str, Any]) -> None:
    """Tell what the run published into a table; nothing where OpenLineage is not installed, or not set up.

    A topic is named by the first of Kafka's bootstrap servers, a table by where its files are, as OpenLineage's
    integration of Spark names them, with its name in the catalog beside it.

    Args:
        found: the outcome that settle tells of the table.
    """
    try:
        from airflow.providers.openlineage.api import emit_dataset_lineage, is_openlineage_active
    except ImportError:
        return
    if found.get("location") and is_openlineage_active():
        emit_dataset_lineage(inputs=_topics(found), outputs=[_table(found)])


def _topics(found: Mapping[str, Any]) -> list[Any]:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import base_subset_dataset as subset

    from sluice import broker

    server = broker.client_config(kafka_config())["bootstrap.servers"].split(",")[0]
    topics = []
    for topic, batches in found["ranges"].items():
        read = [
            subset.Partition({"partition": p, "start_offset": r.start, "end_offset": r.end})
            for each in batches
            for p, r in decode_ranges(each).items()
        ]
        facet = subset.InputSubsetInputDatasetFacet(subset.PartitionSubsetCondition(read))
        topics.append(InputDataset(f"kafka://{server}", topic, inputFacets={"subset": facet}))
    return topics


def _table(found: Mapping[str, Any]) -> Any:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import dataset_version_dataset, symlinks_dataset

    place = urlsplit(found["location"])
    named = symlinks_dataset.Identifier(f"iceberg://{CATALOG}", found["table"], "TABLE")
    facets = {
        "version": dataset_version_dataset.DatasetVersionDatasetFacet(str(found["snapshot_id"])),
        "symlinks": symlinks_dataset.SymlinksDatasetFacet([named]),
    }
    namespace = f"{place.scheme}://{place.netloc}" if place.netloc else place.scheme or "file"
    return OutputDataset(namespace, place.path if namespace == "file" else place.path.strip("/"), facets=facets)
