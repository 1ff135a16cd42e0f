"""Makes a table that another writer has filled one of Sluice's: columns, contract and offsets in one commit. No JVM."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table, Transaction

from sluice.batch import (
    ADOPT_STEP,
    PUBLISHED_THROUGH,
    RUN_ID,
    STEP,
    PublishedOffsets,
    encode_published_through,
)
from sluice.contract.contract import Contract
from sluice.errors import SchemaChangeError
from sluice.evolve import apply
from sluice.iceberg import compat, schema
from sluice.iceberg.active_contract import (
    CONTRACT_PROPERTY,
    ContractVersion,
    find_schema_mismatches,
    promise_properties,
)
from sluice.iceberg.cursor import ADOPTED
from sluice.iceberg.tables import SLICES_SINCE


@dataclass(frozen=True)
class StagedColumns:
    """The changes of a table's columns, not yet committed.

    Attributes:
        table: the table as it was read.
        contract: the contract that the table gets.
        transaction: has the changes staged.
        descriptions: one sentence each.
    """

    table: Table
    contract: Contract
    transaction: Transaction
    descriptions: tuple[str, ...]


def stage_columns(table: Table, contract: Contract) -> StagedColumns:
    """Stage what the table's columns lack for the contract. Rows that are there have null in new columns.

    Added are the Kafka coordinates and columns of the contract that the table lacks, all of them optional. Columns that
    the contract does not require become optional; those that identify a row become required.

    Raises:
        SchemaChangeError: a column has another type, or the table requires a column that the contract lacks.
    """
    wanted, have = schema.typed_schema(contract), table.schema()
    names = {f.name for f in have.fields}
    transaction = table.transaction()
    changes = []
    with transaction.update_schema(allow_incompatible_changes=True) as update:
        for column in wanted.fields:
            if column.name not in names:
                update.add_column(column.name, column.field_type, doc=column.doc)
                changes.append(f"adds column {column.name}")
            elif have.find_field(column.name).required and not column.required:
                update.make_column_optional(column.name)
                changes.append(f"makes column {column.name} optional")
    if contract.upsert and set(have.identifier_field_names()) != set(contract.identifier):
        with transaction.update_schema(allow_incompatible_changes=True) as update:
            for name in contract.identifier:
                update.update_column(name, required=True)
            update.set_identifier_fields(*contract.identifier)
        changes.append(f"identifies rows by {', '.join(contract.identifier)}")
    problems = find_schema_mismatches(transaction.table_metadata.schema(), contract)
    if (mine := schema.partition_fields(table.spec(), have)) != list(contract.partitioning):
        problems.append(
            f"partition_by is {list(map(str, mine))} in the table, {list(contract.partition_by)} in the contract"
        )
    if problems:
        raise SchemaChangeError(
            "The contract does not fit the table: " + "; ".join(problems) + ".",
            table=contract.table,
            next_step="Correct the contract, or ALTER TABLE. `sluice contract init --like` drafts one that fits.",
        )
    return StagedColumns(table, contract, transaction, tuple(changes))


def commit_adoption(
    catalog: Catalog,
    staged: StagedColumns,
    published: Mapping[str, PublishedOffsets],
    version: ContractVersion,
    *,
    run_id: str,
) -> None:
    """Adopt a table in one commit, provided that its schema and main are still as they were read.

    Args:
        catalog: where the table is.
        staged: the result of `stage_columns`.
        published: per topic where Sluice continues.
        version: what the table stores as its active contract; `schema_id` is filled in.
        run_id: the run that the snapshot names.

    Raises:
        CommitFailedException: another commit came first; nothing was changed.
    """
    table, transaction = staged.table, staged.transaction
    through = {PUBLISHED_THROUGH: encode_published_through(published)}
    compat.add_empty_snapshot(transaction, {STEP: ADOPT_STEP, RUN_ID: run_id, **through})
    active = replace(version, schema_id=transaction.table_metadata.schema().schema_id)
    transaction.set_properties(
        {
            **schema.LARGE_RECORDS,
            **staged.contract.properties,
            **promise_properties(staged.contract, active.version),
            CONTRACT_PROPERTY: active.to_json(),
            SLICES_SINCE: str(int(time.time() * 1000)),
            ADOPTED: json.dumps({t: dict(p.next_offsets) for t, p in published.items()}, separators=(",", ":")),
        }
    )
    apply.commit_as_read(catalog, table, transaction, table.format_version)
