"""Writes a contract as an ODCS document; what the standard has no field for is in custom properties named `sluice`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from open_data_contract_standard.model import (
    DataQuality,
    OpenDataContractStandard,
    SchemaObject,
    SchemaProperty,
    Server,
    Team,
)

from sluice.contract.columns import Column
from sluice.contract.contract import Contract
from sluice.odcs.property_types import describe_type
from sluice.odcs.quality import columns_of, write_rule
from sluice.odcs.service_levels import write_freshness
from sluice.odcs.standard_file import API_VERSION, own_property

STANDARD_FIELDS = frozenset({"table", "owner", "columns", "expectations", "freshness", "doc"})
"""Fields of a contract that the standard has fields for; `identifier` and `partition_by` only in part."""

COLUMN_FIELDS = ("source", "unit", "expression", "mask", "renamed_from")
"""Fields of a column that the standard has no field for."""


def as_standard(contract: Contract, version: str = "1.0.0", servers: Iterable[Server] = ()) -> OpenDataContractStandard:
    """Return the ODCS document of a contract.

    Args:
        contract: The contract.
        version: The document's version, which Sluice's contracts do not have.
        servers: Where Kafka and the catalog are.
    """
    values = plain_values(contract)
    rules: dict[str | None, list[DataQuality]] = {}
    names = {each.name for each in contract.columns}
    for position, rule in enumerate(values.get("expectations", ()), 1):
        (column,) = about if len(about := columns_of(rule)) == 1 and about[0] in names else (None,)
        rules.setdefault(column, []).append(write_rule(position, rule, column))
    table = SchemaObject(
        name=contract.name,
        physicalName=contract.table,
        logicalType="object",
        physicalType="table",
        description=contract.doc,
        customProperties=own_property(_own_settings(contract, values)),
        properties=[_property(each, contract, rules.get(each.name)) for each in contract.columns],
        quality=rules.get(None),
    )
    return OpenDataContractStandard(
        version=version,
        kind="DataContract",
        apiVersion=API_VERSION,
        id=contract.table,
        name=contract.table,
        servers=list(servers) or None,
        schema=[table],
        team=Team(name=contract.owner),
        slaProperties=[write_freshness(contract.freshness, contract.name)] if contract.freshness else None,
    )


def plain_values(contract: Contract) -> dict[str, Any]:
    """Return the fields that a contract sets, as its YAML has them."""
    found: dict[str, Any] = _plain(contract.model_dump(exclude_unset=True))
    if isinstance(topics := found["topic"], list) and len(topics) == 1:
        found["topic"] = topics[0]
    return {name: each for name, each in found.items() if each is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _own_settings(contract: Contract, values: dict[str, Any]) -> dict[str, Any]:
    own = {name: each for name, each in values.items() if name not in STANDARD_FIELDS}
    types = {each.name: str(each.type) for each in contract.columns}
    if types.keys() >= set(contract.identifier):
        own.pop("identifier", None)
    # A timestamp that says no more than `partitioned` is read as a partition for each day.
    plain = {name for name, kind in types.items() if kind not in ("timestamp", "timestamptz")}
    if all(each.transform == "identity" and each.column in plain for each in contract.partitioning):
        own.pop("partition_by", None)
    return own


def _property(column: Column, contract: Contract, rules: list[DataQuality] | None) -> SchemaProperty:
    values = column.model_dump(include=set(COLUMN_FIELDS), exclude_none=True)
    own = {name: values[name] for name in COLUMN_FIELDS if values.get(name)}
    if own.get("source") == column.name:
        del own["source"]
    keys, partitions = contract.identifier, [each.column for each in contract.partitioning]
    return SchemaProperty(
        name=column.name,
        description=column.doc,
        customProperties=own_property(own),
        primaryKey=column.name in keys or None,
        primaryKeyPosition=keys.index(column.name) + 1 if column.name in keys else None,
        required=column.required or None,
        partitioned=column.name in partitions or None,
        partitionKeyPosition=partitions.index(column.name) + 1 if column.name in partitions else None,
        transformLogic=column.expression,
        quality=rules,
        **describe_type(column.type),
    )
