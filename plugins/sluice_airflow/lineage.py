"""OpenLineage events by Airflow's provider: which offsets a run published to a table, and what the table promises."""

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

SOURCE = "SLUICE"
"""The source of the tags."""


def emit_lineage(outcome: Mapping[str, Any]) -> None:
    """Emit what a run published to a table; does nothing if OpenLineage is not installed or not configured.

    A topic is named by the first of Kafka's bootstrap servers; a table by its location, as OpenLineage's Spark
    integration does, with its catalog name as a symlink. Errors are only logged.

    Args:
        outcome: the table's outcome from settle.
    """
    try:
        from airflow.providers.openlineage.api import emit_dataset_lineage, is_openlineage_active
    except ImportError:
        return
    if not outcome.get("location") or not is_openlineage_active():
        return
    try:
        emit_dataset_lineage(inputs=_input_topics(outcome), outputs=[_output_table(outcome)])
    except Exception as error:  # noqa: BLE001 - the table is published; the error's text may quote a Kafka setting
        log.warning("%s: the OpenLineage event was not sent (%s).", outcome["table"], type(error).__name__)


def _input_topics(outcome: Mapping[str, Any]) -> list[Any]:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import base_subset_dataset as subset

    from sluice.kafka import broker

    server = broker.librdkafka_config(kafka_config())["bootstrap.servers"].split(",")[0]
    topics = []
    for topic in outcome["ranges"]:
        read = [
            subset.Partition({"partition": p, "start_offset": r.start, "end_offset": r.end})
            for p, r in _read_ranges(outcome, topic)
        ]
        facet = subset.InputSubsetInputDatasetFacet(subset.PartitionSubsetCondition(read))
        topics.append(InputDataset(f"kafka://{server}", topic, inputFacets={"subset": facet}))
    return topics


def _read_ranges(outcome: Mapping[str, Any], topic: str) -> Iterator[tuple[int, OffsetRange]]:
    """The ranges of a topic's batches per partition, without accepted gaps."""
    gaps = [
        (p, gap) for text in outcome["gaps"].get(topic, ()) for p, each in decode_gaps(text).items() for gap in each
    ]
    for text in outcome["ranges"][topic]:
        ranges = decode_ranges(text)
        here = {p: tuple(g for q, g in gaps if q == p and r.start <= g.start < r.end) for p, r in ranges.items()}
        batch = Batch(topic, "", 0, ranges, {}, {p: each for p, each in here.items() if each})
        yield from batch.ranges_to_read.items()


def _output_table(outcome: Mapping[str, Any]) -> Any:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import dataset_version_dataset, symlinks_dataset

    namespace, name = _dataset_name(outcome["location"])
    name_in_catalog = symlinks_dataset.Identifier(f"iceberg://{table_names.catalog_name()}", outcome["table"], "TABLE")
    facets: dict[str, Any] = {"symlinks": symlinks_dataset.SymlinksDatasetFacet([name_in_catalog])}
    if outcome["snapshot_id"]:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(outcome["snapshot_id"]))
    return OutputDataset(namespace, name, facets=facets | _promise_facets(outcome.get("contract") or {}))


def _promise_facets(contract: Mapping[str, Any]) -> dict[str, Any]:
    """Owner, description and tags of a table; a masked column has a tag of its own. Empty if nothing is known."""
    from openlineage.client.facet_v2 import documentation_dataset, ownership_dataset, tags_dataset

    if not contract:
        return {}
    tag = tags_dataset.TagsDatasetFacetFields
    tags = [tag(name, value, SOURCE) for name, value in contract["properties"].items() if name.startswith("sluice.")]
    tags += [tag("sluice.personal-data", "true", SOURCE)] if contract["personal_data"] else []
    tags += [tag("sluice.mask", mask, SOURCE, column) for column, mask in contract["masks"].items()]
    owners = [ownership_dataset.Owner(contract["owner"], "OWNER")]
    facets: dict[str, Any] = {
        "ownership": ownership_dataset.OwnershipDatasetFacet(owners),
        "tags": tags_dataset.TagsDatasetFacet(tags),
    }
    if contract["doc"]:
        facets["documentation"] = documentation_dataset.DocumentationDatasetFacet(contract["doc"])
    return facets


def _dataset_name(location: str) -> tuple[str, str]:
    """Split a location into namespace and name by OpenLineage's naming rules."""
    url = urlsplit(location)
    scheme = "s3" if url.scheme in ("s3a", "s3n") else url.scheme or "file"
    server = url.netloc.rpartition("@")[2] if url.password else url.netloc  # keeps an Azure container, drops a password
    path = url.path.rstrip("/")
    return (f"{scheme}://{server}" if server else scheme), path.lstrip("/") if scheme in ("s3", "gs", "wasbs") else path
