"""What a table promises: the contract, one YAML file per table, as a frozen value.

Stands before the first step: the DAGs are generated from contracts, and every step is given one. Only pydantic and the
standard library are imported, because DAG files are parsed every few seconds. `sluice.contracts` reads the files,
`sluice.schema` turns a contract into what Iceberg wants to know, and `docs/contracts.md` is the reference.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sluice.contract_checks import check_contract, key_holds
from sluice.contract_fields import (
    KAFKA_COLUMNS,
    KEY_SOURCE,
    ColumnName,
    Duration,
    Flag,
    Flaws,
    GroupName,
    Identifier,
    ListField,
    OneOrMore,
    Properties,
    Source,
    Start,
    Strict,
    TableName,
    Topic,
    Type,
    Whole,
)
from sluice.contract_policy import SchemaPolicy
from sluice.partitioning import PartitionField, parse_partition

__all__ = [
    "KAFKA_COLUMNS",
    "KEY_SOURCE",
    "Column",
    "Contract",
    "ErrorPolicy",
    "KeyFormat",
    "Limits",
    "Maintenance",
    "SchemaPolicy",
    "ValueFormat",
]

ORPHAN_FLOOR = timedelta(days=1)
"""Files younger than this are never taken for orphans: somebody may be about to commit them."""


class Column(Strict):
    """One column of the typed table.

    Attributes:
        name: Letters, digits and `_`; unique without regard to case; not a reserved name.
        type: As Iceberg writes it, for example `decimal(10, 2)` or `list<string>`.
        required: Whether null is refused (the record is an error). Default false; true for identifier columns.
        source: Field of the value, a dotted path of nested fields, or `$key` for the record's key. Default: the name.
        doc: Comment kept in the table's schema.
        renamed_from: The name that this column had in the table before: it is renamed, and keeps its values. May stay
            when that is done.
    """

    name: ColumnName
    type: Type
    required: Flag = False
    source: Annotated[Source, Field(validate_default=False)] = ""
    doc: str | None = None
    renamed_from: Identifier | None = None

    @model_validator(mode="before")
    @classmethod
    def _source_is_name(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("source") is None and isinstance(data.get("name"), str):
            return {**data, "source": data["name"]}
        return data

    @property
    def from_key(self) -> bool:
        """Whether the column holds the record's key."""
        return self.source == KEY_SOURCE

    @property
    def path(self) -> tuple[str, ...]:
        """The source as field names from the outside in; empty for the key."""
        return () if self.from_key else tuple(self.source.split("."))


class KeyFormat(Strict):
    """How the record's key is read: `string` (UTF-8, the default) or `bytes` (as it is)."""

    format: Literal["string", "bytes"] = "string"


class ValueFormat(Strict):
    """How the record's value is read: `json`, an object without a schema."""

    format: Literal["json"] = "json"


class Limits(Strict):
    """Bounds of one run.

    Attributes:
        records_per_batch: Most records of one batch of a topic. Default 1,000,000.
        seconds_per_run: No further batch is begun after so many seconds of a run. Default 240.
        batches_per_run: Most batches of a topic in one run. Default 20.
        batches_per_commit: Most waiting batches that one commit brings into the table together. Default 10.
    """

    records_per_batch: Whole = 1_000_000
    seconds_per_run: Whole = 240
    batches_per_run: Whole = 20
    batches_per_commit: Whole = 10


class ErrorPolicy(Strict):
    """What happens to a record that cannot be decoded.

    Attributes:
        tolerance: `quarantine` sets it aside, to be replayed (the default); `none` stops the table at the first.
        max_ratio: Share of a batch, 0 to 1, above which the table stops in spite of quarantine. Default 0.01.
    """

    tolerance: Literal["none", "quarantine"] = "quarantine"
    max_ratio: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.01


class Maintenance(Strict):
    """What keeps the table, and the tables that belong to it, fast and small.

    Attributes:
        target_file_size: Bytes that a rewritten data file should have. Default 128 MB.
        min_input_files: Files of one partition that must be too small before they are rewritten. Default 5.
        delete_ratio: Share of a data file's rows, above 0 and up to 1, that deleted makes it worth rewriting.
            Default 0.3.
        strategy: How files are put together: `binpack` (the default) as they are, `sort` by `sort_by`, `zorder` by
            several columns alike.
        sort_by: Columns to sort by; not for binpack.
        rewrite_after: A partition by time is left alone until nothing was written into it for so long, unless it is
            overfull. Default 1 hour.
        snapshot_age: The rollback window: the table can be put back to any moment within it. Default 5 days.
        min_snapshots: Snapshots that are kept however old they are. Default 10.
        staging_retention: How long staging keeps the raw records of a batch after all tables of its topic have
            published it. Default 30 days.
        orphan_age: Files that no snapshot names are removed when they are older; at least a day. Default 3 days.
    """

    target_file_size: Annotated[int, Field(strict=True, ge=1 << 20)] = 128 << 20
    min_input_files: Annotated[int, Field(strict=True, ge=2)] = 5
    delete_ratio: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.3
    strategy: Literal["binpack", "sort", "zorder"] = "binpack"
    sort_by: Annotated[tuple[Identifier, ...], ListField] = ()
    rewrite_after: Duration = timedelta(hours=1)
    snapshot_age: Duration = timedelta(days=5)
    min_snapshots: Whole = 10
    staging_retention: Duration = timedelta(days=30)
    orphan_age: Duration = timedelta(days=3)

    @model_validator(mode="after")
    def _safe(self) -> Self:
        flaws = Flaws()
        if self.orphan_age < ORPHAN_FLOOR:
            flaws.add("orphan_age", message="must be 1d or more: a younger file may be about to be committed")
        if self.staging_retention < self.snapshot_age:
            message = "must be no less than snapshot_age: what is rolled back is published again from staging"
            flaws.add("staging_retention", message=message)
        if self.strategy == "binpack" and self.sort_by:
            flaws.add(
                "sort_by", message="strategy binpack sorts nothing: use strategy: sort or zorder, or leave it out"
            )
        elif len(self.sort_by) < (least := {"binpack": 0, "sort": 1, "zorder": 2}[self.strategy]):
            needs = "the columns to sort by" if least == 1 else "two columns or more; sort does for one"
            flaws.add("sort_by", message=f"strategy {self.strategy} needs {needs}")
        flaws.raise_any("Maintenance")
        return self


class Contract(Strict):
    """The promise of one table. Field by field: `docs/contracts.md`."""

    table: TableName
    topic: Annotated[tuple[Topic, ...], OneOrMore, Field(min_length=1)]
    group: GroupName
    owner: Annotated[str, Field(min_length=1)]
    mode: Literal["append", "upsert"] = "append"
    key: KeyFormat = KeyFormat()
    value: ValueFormat = ValueFormat()
    columns: Annotated[tuple[Column, ...], ListField, Field(min_length=1)]
    identifier: Annotated[tuple[Identifier, ...], ListField] = ()
    order: Annotated[tuple[Identifier, ...], ListField] = ()
    deletes: Literal["tombstone", "ignore"] = "tombstone"
    partition_by: Annotated[tuple[str, ...], ListField] = ()
    properties: Properties = Field(default_factory=dict)
    format_version: Literal[2] = 2
    start: Start = "earliest"
    limits: Limits = Limits()
    transactional: Flag = False
    errors: ErrorPolicy = ErrorPolicy()
    freshness: Duration | None = None
    maintenance: Maintenance = Maintenance()
    schema_policy: SchemaPolicy = SchemaPolicy()
    doc: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        flaws = Flaws()
        check_contract(self, flaws)
        flaws.raise_any("Contract")
        keys = set(self.identifier)
        columns = tuple(c.model_copy(update={"required": True}) if c.name in keys else c for c in self.columns)
        # A key without a value identifies nothing. The model is frozen for everybody but its own construction.
        object.__setattr__(self, "columns", columns)
        return self

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that feed the table."""
        return self.topic

    @property
    def namespace(self) -> tuple[str, ...]:
        """All parts of the table's name but the last."""
        return tuple(self.table.split(".")[:-1])

    @property
    def name(self) -> str:
        """The last part of the table's name."""
        return self.table.rsplit(".", 1)[-1]

    @property
    def upsert(self) -> bool:
        """Whether rows are merged on `identifier`."""
        return self.mode == "upsert"

    @property
    def partitioning(self) -> tuple[PartitionField, ...]:
        """`partition_by`, parsed."""
        return tuple(parse_partition(text) for text in self.partition_by)

    @property
    def tombstone_column(self) -> str | None:
        """The identifier column that a tombstone's key gives.

        None if the table takes no deletes, or if the key alone cannot name a row (an identifier of several columns):
        a tombstone is then an error of that record, never skipped in silence.
        """
        if not self.upsert or self.deletes == "ignore" or len(self.identifier) != 1:
            return None
        name = self.identifier[0]
        return name if key_holds(self.column(name).type, self.key.format) else None

    def column(self, name: str) -> Column:
        """Return the column of that name.

        Raises:
            KeyError: If there is none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)
