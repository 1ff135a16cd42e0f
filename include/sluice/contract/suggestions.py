"""Suggestions for misspelt words in contracts and commands."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

KNOWN_ELSEWHERE = {
    "cluster_by": "maintenance.sort_by",
    "comment": "doc",
    "data_type": "type",
    "delete_mode": "deletes",
    "description": "doc",
    "error_handling": "errors",
    "errors_tolerance": "errors.tolerance",
    "exclude": "omit",
    "fields": "columns",
    "filter": "where",
    "format": "value.format",
    "id_columns": "identifier",
    "identifier_fields": "identifier",
    "key_columns": "identifier",
    "key_format": "key.format",
    "keys": "identifier",
    "load_mode": "mode",
    "merge_keys": "identifier",
    "merge_key": "identifier",
    "order_by": "order",
    "ordering_field": "order",
    "partition": "partition_by",
    "partition_spec": "partition_by",
    "partitioned_by": "partition_by",
    "partitioning": "partition_by",
    "partitions": "partition_by",
    "path": "source",
    "pk_fields": "identifier",
    "pk_mode": "mode",
    "precombine_field": "order",
    "primary_key": "identifier",
    "primary_keys": "identifier",
    "quality": "expectations",
    "record_key": "identifier",
    "recordkey_field": "identifier",
    "schema": "columns",
    "sequence_by": "order",
    "sla": "freshness",
    "sort_order": "maintenance.sort_by",
    "starting_offsets": "start",
    "table_name": "table",
    "table_properties": "properties",
    "tbl_properties": "properties",
    "tests": "expectations",
    "topics": "topic",
    "topics_regex": "topic.pattern",
    "unique_key": "identifier",
    "value_format": "value.format",
    "write_disposition": "mode",
    "write_mode": "mode",
}
"""Fields of contracts by the names that users of Kafka Connect, Hudi, dbt, dlt and others know."""


def known_elsewhere(word: str, fields: Iterable[str]) -> str | None:
    """Return the field of a contract that other tools call `word`, if it or the map that it is in is in `fields`."""
    found = KNOWN_ELSEWHERE.get(word.lower().replace("-", "_").replace(".", "_"))
    return found if found and found.split(".")[0] in set(fields) else None


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most like `word`, whatever its case; None if none is like it."""
    lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(word.lower(), lower, n=1)
    return lower[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the known word that is most like `word`, or an empty text."""
    found = closest(word, known)
    return f" (did you mean {found!r}?)" if found else ""
