"""The shape of a contract: the fields that decide the table's schema and how records are read.

A changed shape is a schema change (`evolve`); all other fields take effect with the next run.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sluice.contract.columns import Column
from sluice.contract.contract import Contract

OPERATIONAL = frozenset(
    {
        "table", "topic", "topic_pattern", "group", "owner", "properties", "start", "limits",
        "transactional", "errors", "expectations", "expectations_show_values", "freshness", "maintenance",
        "schema_policy", "doc", "other_writers",
    }
)  # fmt: skip
"""Fields that are not part of the shape; new fields are part of it unless listed here."""


def shape(contract: Contract) -> dict[str, Any]:
    """Return the contract's shape as JSON values."""
    body = contract.model_dump(mode="json", exclude=set(OPERATIONAL), exclude_defaults=True)
    for column in body["columns"]:
        column.pop("renamed_from", None)
    return body


def shape_id(contract: Contract) -> str:
    """Return a hash of the contract's shape, 12 hexadecimal digits."""
    return hashlib.sha256(json.dumps(shape(contract), sort_keys=True).encode()).hexdigest()[:12]


def previous_columns(old: Contract, new: Contract) -> dict[str, Column]:
    """Return, by name of a new contract's column, its column in the old contract; added columns are left out."""
    before = {c.name: c for c in old.columns}
    # If the earlier name still exists, the rename has not happened, even if the new name exists too.
    old_names = {c.name: c.renamed_from if c.renamed_from in before else c.name for c in new.columns}
    return {name: before[old_name] for name, old_name in old_names.items() if old_name in before}
