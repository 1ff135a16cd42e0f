"""What of a data contract has no counterpart in Sluice's contracts, found in its plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Any

from open_data_contract_standard.model import CustomProperty

from sluice.odcs.property_types import TYPE_FORMATS
from sluice.odcs.quality import READ_OPTIONS
from sluice.odcs.standard_file import OWN

_ROOT = frozenset({"apiVersion", "kind", "schema", "slaProperties", "team", "customProperties"})
_OBJECT = frozenset(
    {"name", "physicalName", "physicalType", "logicalType", "description", "properties", "quality", "customProperties"}
)
_PROPERTY = frozenset(
    {
        *_OBJECT,
        "enum",
        "items",
        "logicalTypeOptions",
        "map",
        "partitionKeyPosition",
        "partitioned",
        "primaryKey",
        "primaryKeyPosition",
        "required",
        "unique",
    }
)
_PART = frozenset(
    {"logicalTypeOptions", "name", "physicalName", "physicalType", "logicalType", "properties", "items", "map"}
)
_NOTHING: tuple[Any, ...] = (None, False, "", [], {})


def of_root(raw: dict[str, Any]) -> list[str]:
    """Return the names of the contract's fields that no contract has."""
    team = raw.get("team")
    inner = team if isinstance(team, dict) else {"members": team}
    more = (f"team.{each}" for each in _unread(inner, {"name"}))
    return [*_unread(raw, _ROOT), *more, *_custom(raw.get("customProperties"))]


def of_object(raw: dict[str, Any]) -> list[str]:
    """Return the names of a schema object's fields that no contract has."""
    return [*_unread(raw, _OBJECT), *_custom(raw.get("customProperties"))]


def of_property(raw: dict[str, Any], known: Set[str]) -> list[str]:
    """Return the names of a property's fields that no column has, with those of its parts.

    Args:
        raw: The property.
        known: Further fields that the column has.
    """
    return [
        *_unread(raw, _PROPERTY | known),
        *_options(raw, READ_OPTIONS),
        *_custom(raw.get("customProperties")),
        *_of_parts(raw, ""),
    ]


def _of_parts(raw: dict[str, Any], path: str) -> Iterator[str]:
    entries = raw.get("map")
    inner = [(f"{path}{each.get('name')}", each) for each in raw.get("properties") or ()]
    inner += [(f"{path}items", raw["items"])] if raw.get("items") else []
    inner += [(f"{path}map.value", entries["value"])] if isinstance(entries, dict) and entries.get("value") else []
    for name, part in inner:
        yield from (f"{name}.{each}" for each in (*_unread(part, _PART), *_options(part, {"timezone"})))
        yield from _of_parts(part, f"{name}.")


def _options(raw: dict[str, Any], read: Set[str]) -> Iterator[str]:
    for name, each in (raw.get("logicalTypeOptions") or {}).items():
        if name not in read and not (name == "format" and each in TYPE_FORMATS):
            yield f"logicalTypeOptions.{name}"


def _unread(raw: dict[str, Any], read: Iterable[str]) -> Iterator[str]:
    return (str(name) for name, each in raw.items() if name not in read and each not in _NOTHING)


def _custom(properties: list[dict[str, Any]] | None) -> Iterator[str]:
    for each in properties or ():
        found = CustomProperty.model_validate(each)
        if found.property != OWN:
            yield f"customProperties.{found.property}"
