"""Table `sluice.pilot`: comparisons with other tables, rehearsed failures, and the decision to rely on a table. No JVM.

In: what a comparison, a rehearsal or a person found. Out: the rows of a table, oldest first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, NestedField, StringType, TimestamptzType

from sluice.iceberg import own_table, table_names, tables
from sluice.iceberg.filters import equal


class Stage(StrEnum):
    """The stages of a pilot that leave rows."""

    COMPARED = "compared"
    REHEARSED = "rehearsed"
    DECIDED = "decided"


SCHEMA = Schema(
    NestedField(1, "at", TimestamptzType(), required=True, doc="when it was recorded"),
    NestedField(2, "run_id", StringType(), required=True, doc="the Airflow run, or who ran the command"),
    NestedField(3, "table", StringType(), required=True, doc="the typed table"),
    NestedField(4, "stage", StringType(), required=True, doc=", ".join(Stage)),
    NestedField(
        5, "ok", BooleanType(), required=True, doc="whether the tables are equal, the outcome is as expected, or yes"
    ),
    NestedField(6, "verdict", StringType(), required=True, doc="the result in one sentence"),
    NestedField(7, "evidence", StringType(), required=True, doc="the facts behind it, as JSON; no values of records"),
    NestedField(8, "who", StringType(), doc="who started or decided it"),
    NestedField(9, "why", StringType(), doc="the reason of the decision"),
)


@dataclass(frozen=True)
class PilotRow:
    """One comparison, one rehearsed scenario, or one decision.

    Attributes:
        table: the typed table.
        ok: whether the tables are equal, the scenario ended as expected, or the decision is yes.
        verdict: the result in one sentence.
        evidence: the facts behind it, of JSON's types; no values of records.
        who: who started or decided it.
        why: the reason of a decision.
    """

    table: str
    stage: Stage
    ok: bool
    verdict: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    who: str = ""
    why: str = ""
    run_id: str = ""
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


def record(catalog: Catalog, *rows: PilotRow) -> None:
    """Append rows in one commit. The first row creates the table."""
    records = [asdict(row) | {"evidence": json.dumps(dict(row.evidence), default=str)} for row in rows]
    if records:
        table = tables.ensure_table(catalog, table_names.PILOT, SCHEMA)
        own_table.append(table, pa.Table.from_pylist(records, schema=table.schema().as_arrow()))


def read(catalog: Catalog, name: str) -> list[PilotRow]:
    """Return the rows of a table, oldest first."""
    table = tables.load(catalog, table_names.PILOT)
    if table is None:
        return []
    rows = table.scan(row_filter=equal("table", name)).to_arrow().sort_by([("at", "ascending")])
    return [
        PilotRow(**each | {"stage": Stage(each["stage"]), "evidence": json.loads(each["evidence"])})
        for each in rows.to_pylist()
    ]
