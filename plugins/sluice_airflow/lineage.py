"""OpenLineage: which offsets of which topics a run put into a table, by Airflow's own provider."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from sluice.batch import Batch
from sluice.iceberg import table_names
from sluice.offsets import OffsetRange, decode_gaps, decode_ranges
from sluice_airflow.connections import kafka_config

log = logging.getLogger(__name__)


def emit(found: Mapping[str, Any]) -> None:
    """Tell what the run published into a table; nothing where OpenLineage is not installed, or not set up.

    A topic is named by the first of Kafka's bootstrap servers, a table by where its files are, as OpenLineage's
    integration of Spark names them, with its name in the catalog beside it. What goes wrong is a line in the log.

    Args:
        found: the outcome that settle tells of the table.
    """
    try:
        from airflow.providers.openlineage.api import emit_dataset_lineage, is_openlineage_active
    except ImportError:
        return
    if not found.get("location") or not is_openlineage_active():
        return
    try:
        emit_dataset_lineage(inputs=_topics(found), outputs=[_table(found)])
    except Exception as error:  # noqa: BLE001 - the table is published; its text may quote a setting of Kafka's
        log.warning("%s: OpenLineage was not told (%s).", found["table"], type(error).__name__)


def _topics(found: Mapping[str, Any]) -> list[Any]:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import base_subset_dataset as subset

    from sluice.kafka import broker

    server = broker.client_config(kafka_config())["bootstrap.servers"].split(",")[0]
    topics = []
    for topic in found["ranges"]:
        read = [
            subset.Partition({"partition": p, "start_offset": r.start, "end_offset": r.end})
            for p, r in _read(found, topic)
        ]
        facet = subset.InputSubsetInputDatasetFacet(subset.PartitionSubsetCondition(read))
        topics.append(InputDataset(f"kafka://{server}", topic, inputFacets={"subset": facet}))
    return topics


def _read(found: Mapping[str, Any], topic: str) -> Iterator[tuple[int, OffsetRange]]:
    """The ranges of a topic's batches, partition by partition, without what was given up of them."""
    gaps = [(p, gap) for text in found["gaps"].get(topic, ()) for p, each in decode_gaps(text).items() for gap in each]
    for text in found["ranges"][topic]:
        ranges = decode_ranges(text)
        here = {p: tuple(g for q, g in gaps if q == p and r.start <= g.start < r.end) for p, r in ranges.items()}
        batch = Batch(topic, "", 0, ranges, {}, {p: each for p, each in here.items() if each})
        yield from batch.to_read.items()


def _table(found: Mapping[str, Any]) -> Any:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import dataset_version_dataset, symlinks_dataset

    namespace, name = _place(found["location"])
    named = symlinks_dataset.Identifier(f"iceberg://{table_names.catalog_name()}", found["table"], "TABLE")
    facets: dict[str, Any] = {"symlinks": symlinks_dataset.SymlinksDatasetFacet([named])}
    if found["snapshot_id"]:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(found["snapshot_id"]))
    return OutputDataset(namespace, name, facets=facets)


def _place(location: str) -> tuple[str, str]:
    """A location as OpenLineage's naming has it: namespace and name."""
    place = urlsplit(location)
    scheme = "s3" if place.scheme in ("s3a", "s3n") else place.scheme or "file"
    server = place.netloc.rpartition("@")[2] if place.password else place.netloc  # a container stays, no password does
    path = place.path.rstrip("/")
    return (f"{scheme}://{server}" if server else scheme), path.lstrip("/") if scheme in ("s3", "gs", "wasbs") else path
