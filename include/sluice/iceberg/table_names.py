"""Names of the catalog and of Sluice's tables. In: a contract or a topic. Out: an Iceberg identifier.

DAG files import this module, so it imports no PyIceberg.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING

from sluice.contract.values import NAMESPACE_PREFIX
from sluice.iceberg.sql_literals import quote_identifier

if TYPE_CHECKING:
    from pyiceberg.typedef import Identifier

    from sluice.contract.contract import Contract

OWN = f"{NAMESPACE_PREFIX}sluice"
STAGING, QUARANTINE, DELETES = f"{OWN}_staging", f"{OWN}_quarantine", f"{OWN}_deletes"
LEDGER: Identifier = (OWN, "offsets")
COSTS: Identifier = (OWN, "costs")
MAINTENANCE: Identifier = (OWN, "maintenance")
PILOT: Identifier = (OWN, "pilot")
QUALITY: Identifier = (OWN, "quality")
SCHEMAS: Identifier = (OWN, "schemas")
WRITER_SCHEMAS: Identifier = (OWN, "writer_schemas")


def safe_identifier(name: str) -> str:
    """Return a topic's or table's name as one Iceberg identifier, distinct for distinct names."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if plain == name:
        return plain
    # Topic names have up to 249 characters; Hive, Glue and file names up to 255.
    return f"{plain[:248]}_{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def typed(contract: Contract) -> Identifier:
    """Return the typed table: the one that people query."""
    return tuple(contract.table.split("."))


def staging(topic: str) -> Identifier:
    """Return the topic's staging table: its raw records, one partition per batch."""
    return (STAGING, safe_identifier(topic))


def quarantine(contract: Contract) -> Identifier:
    """Return the table's quarantine: records that could not be written to the typed table."""
    return (QUARANTINE, safe_identifier(contract.table))


def deletes(contract: Contract) -> Identifier:
    """Return an upsert table's deletes table: which keys were deleted, and at which offset."""
    return (DELETES, safe_identifier(contract.table))


def spark_name(catalog: str, identifier: Identifier, branch: str | None = None) -> str:
    """Return the quoted name of a table, or of a branch of it, for Spark's SQL and DataFrame APIs."""
    parts = [catalog, *identifier, *([f"branch_{branch}"] if branch else [])]
    return ".".join(map(quote_identifier, parts))


def catalog_name() -> str:
    """Return the catalog's name, which PyIceberg and Spark share."""
    return os.environ.get("SLUICE_CATALOG", "lake")
