"""TODO docstring of sluice.iceberg.table_names."""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.typedef import Identifier

    from sluice.contract.contract import Contract

STAGING, QUARANTINE, DELETES = "sluice_staging", "sluice_quarantine", "sluice_deletes"
LEDGER: Identifier = ("sluice", "offsets")
MAINTENANCE: Identifier = ("sluice", "maintenance")
QUALITY: Identifier = ("sluice", "quality")
SCHEMAS: Identifier = ("sluice", "schemas")


def safe(name: str) -> str:
    """A topic's or table's name as one Iceberg identifier, distinct for distinct names."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if plain == name:
        return plain
    # A file's name, and a name in Hive's or Glue's catalog, has 255 characters at most; a topic's has 249.
    return f"{plain[:248]}_{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def typed(contract: Contract) -> Identifier:
    """The table that people query."""
    return tuple(contract.table.split("."))


def staging(topic: str) -> Identifier:
    """The topic's raw records, one partition per batch."""
    return (STAGING, safe(topic))


def quarantine(contract: Contract) -> Identifier:
    """The records that could not enter the typed table."""
    return (QUARANTINE, safe(contract.table))


def deletes(contract: Contract) -> Identifier:
    """Upsert tables: which keys were deleted, and at which offset."""
    return (DELETES, safe(contract.table))


def spark_name(catalog: str, identifier: Identifier, branch: str | None = None) -> str:
    """The quoted name that Spark's SQL and DataFrame APIs take, of a table or of a branch of it."""
    parts = [catalog, *identifier, *([f"branch_{branch}"] if branch else [])]
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def catalog_name() -> str:
    """The catalog's name, the same in PyIceberg and in Spark."""
    return os.environ.get("SLUICE_CATALOG", "lake")
