"""Fits a draft to a table that exists: its columns and partitions, read from the fields that the sample has."""

from __future__ import annotations

from dataclasses import replace

from pyiceberg.table import Table

from sluice.contract.contract import Contract
from sluice.contract.values import KAFKA_COLUMNS
from sluice.draft.model import Draft, DraftColumn, Proposal
from sluice.iceberg import schema


def fit_to_table(draft: Draft, table: Table) -> Draft:
    """Return the draft with the columns of a table, in its order and with its types, and its partitions.

    A column is read from the field that the draft would make a column of that name of, in any case of letters.

    Raises:
        ContractError: contracts have no type like that of a column.
    """
    drafted = {c.name.lower(): c for c in draft.columns}
    have = table.schema()
    columns = []
    for field in have.fields:
        if field.name in KAFKA_COLUMNS:
            continue
        kind = str(schema.contract_type(field.field_type))
        if (same := drafted.pop(field.name.lower(), None)) is None:
            columns.append(
                DraftColumn(field.name, kind, evidence=("no field of the sample has this name: set source",))
            )
            continue
        source = same.source or same.name
        if same.expression and same.type != kind:  # it computes another type: the column is the field that it reads
            source = next(i.source for i in draft.inputs if i.name in same.expression)
        named = replace(same, name=field.name, source=source)
        if same.type != kind:
            named = replace(named, type=kind, expression="", unit=None)
            named = named.with_evidence(f"the sample alone would make it {same.type}")
        columns.append(named)
    names = {c.name for c in columns}
    partitions = list(map(str, schema.partition_fields(table.spec(), have)))
    notes = [f"the table has no column for the field {c.source or c.name}" for c in drafted.values()]
    settings = dict(draft.settings)
    if table.format_version > Contract.model_fields["format_version"].default:
        settings["format_version"] = Proposal(table.format_version, "as the table has it")
    if missing := set(settings["identifier"].value if "identifier" in settings else ()) - names:
        notes.append(f"mode upsert would need the columns {', '.join(sorted(missing))} of the record's key")
        settings = {n: p for n, p in settings.items() if n not in ("identifier", "deletes", "order")}
        settings["mode"] = Proposal("append", "the table has no column for the record's key")
    return replace(
        draft,
        settings=settings,
        columns=tuple(columns),
        inputs=tuple(i for i in draft.inputs if any(i.name in c.expression for c in columns)),
        closing={"partition_by": Proposal(partitions, "as the table is")} if partitions else {},
        options=(),
        notes=(*draft.notes, *notes),
    )
