"""TODO docstring of sluice.contract.shape."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sluice.contract.columns import Column
from sluice.contract.contract import Contract

OPERATIONAL = frozenset(
    {
        "table", "topic", "matching", "group", "owner", "properties", "format_version", "start", "limits",
        "transactional", "errors", "expectations", "expectations_show_values", "freshness", "maintenance",
        "schema_policy", "doc",
    }
)  # fmt: skip
"""Fields that say how a table is run. All others are its shape, those to come among them."""


def shape(contract: Contract) -> dict[str, Any]:
    """What of a contract decides how its table looks and how records are read, in JSON's own types."""
    body = contract.model_dump(mode="json", exclude=set(OPERATIONAL), exclude_defaults=True)
    for column in body["columns"]:
        column.pop("renamed_from", None)
    return body


def shape_id(contract: Contract) -> str:
    """A name for the shape: the same for the same shape, whatever else the contracts say."""
    return hashlib.sha256(json.dumps(shape(contract), sort_keys=True).encode()).hexdigest()[:12]


def origins(old: Contract, new: Contract) -> dict[str, Column]:
    """Per column of the new contract the column of the old one that it was; those that are new are not in it."""
    before = {c.name: c for c in old.columns}
    # What is to be renamed and is there has not been renamed yet, even where the new name is there, too.
    was = {c.name: c.renamed_from if c.renamed_from in before else c.name for c in new.columns}
    return {name: before[at] for name, at in was.items() if at in before}
