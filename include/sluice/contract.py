"""What a table promises: the contract, one YAML file per table, as a frozen value.

Stands before the first step: the DAGs are generated from contracts, and every step is given one. Only pydantic and the
standard library are imported, because DAG files are parsed every few seconds. `sluice.contracts` reads the files,
`sluice.schema` turns a contract into what Iceberg wants to know, and `docs/contracts.md` is the reference.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sluice.contract_cdc import Cdc
from sluice.contract_checks import check_contract
from sluice.contract_expectation_checks import check_expectations
from sluice.contract_expectations import Expectation
from sluice.contract_fields import (
    KAFKA_COLUMNS,
    KEY_SOURCE,
    VALUE_SOURCE,
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
from sluice.contract_formats import PLAIN, Format, key_holds
from sluice.partitioning import PartitionField, parse_partition

__all__ = [
    "KAFKA_COLUMNS",
    "KEY_SOURCE",
    "Column",
    "Contract",
    "ErrorPolicy",
    "Expectation",
    "Input",
    "KeyFormat",
    "Limits",
    "Maintenance",
    "ValueFormat",
]

ORPHAN_FLOOR = timedelta(days=1)
"""Files younger than this are never taken for orphans: somebody may be about to commit them."""


class Input(Strict):
    """A field that is read, for expressions and `where`, and is no column of the table.

    Attributes:
        name: Letters, digits and `_`; unique without regard to case among inputs and columns; not a reserved name.
        type: As Iceberg writes it, for example `decimal(10, 2)` or `list<string>`.
        source: Field of the value, a dotted path of nested fields; `$key` for the record's key, `$key.a` for a field of
            it; `$value` for a value without fields; of a change event also `$op`, `$deleted`, `$source.lsn` and alike.
            Default: the name.
    """

    name: ColumnName
    type: Type
    source: Annotated[Source, Field(validate_default=False)] = ""

    @model_validator(mode="before")
    @classmethod
    def _source_is_name(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("source") is None and isinstance(data.get("name"), str):
            return data if data.get("expression") else {**data, "source": data["name"]}
        if isinstance(data, dict) and data.get("expression") and data.get("source") == "":
            return {k: v for k, v in data.items() if k != "source"}  # as it is written out
        return data

    @property
    def from_key(self) -> bool:
        """Whether it holds the record's key, or a field of it."""
        return self.source == KEY_SOURCE or self.source.startswith(f"{KEY_SOURCE}.")

    @property
    def key_path(self) -> tuple[str, ...]:
        """A source in the key as field names from the outside in, `$key` alone for the whole; empty for the value."""
        if not self.from_key:
            return ()
        return tuple(self.source.split(".")[1:]) or (KEY_SOURCE,)

    @property
    def special(self) -> bool:
        """Whether it is read from the envelope of a change event, instead of from its row."""
        return self.source.startswith("$") and self.source != VALUE_SOURCE and not self.from_key

    @property
    def path(self) -> tuple[str, ...]:
        """The source as field names from the outside in; empty for the key, and for what is computed."""
        return () if self.from_key or not self.source else tuple(self.source.split("."))


class Column(Input):
    """One column of the typed table: an input that is kept, or an expression over inputs and other columns.

    Attributes:
        required: Whether null is refused (the record is an error). Default false; true for identifier columns.
        expression: Spark SQL that computes it, instead of `source`.
        mask: How personal data is hidden before the table sees it: `sha256`, keyed by the environment's secret, or
            `redact`.
        doc: Comment kept in the table's schema.
    """

    required: Flag = False
    expression: Annotated[str, Field(min_length=1)] | None = None
    mask: Literal["sha256", "redact"] | None = None
    doc: str | None = None


class KeyFormat(Strict):
    """How the record's key is read: `string` (UTF-8, the default), `bytes` (as it is), or as a value may be."""

    format: Format = "string"


class ValueFormat(Strict):
    """How the record's value is read: `json`, an object without a schema, unless another format is named."""

    format: Format = "json"


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
        raw: Whether the quarantine holds raw keys, values and headers: `keep` (the default) or `drop`, for records that
            hold personal data. What was dropped is brought again from staging or Kafka.
    """

    tolerance: Literal["none", "quarantine"] = "quarantine"
    max_ratio: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.01
    raw: Literal["keep", "drop"] = "keep"


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
    deletes: Literal["tombstone", "ignore", "hard", "soft"] = "tombstone"
    cdc: Cdc | None = None
    inputs: Annotated[tuple[Input, ...], ListField] = ()
    where: Annotated[str, Field(min_length=1)] | None = None
    partition_by: Annotated[tuple[str, ...], ListField] = ()
    properties: Properties = Field(default_factory=dict)
    format_version: Literal[2] = 2
    start: Start = "earliest"
    limits: Limits = Limits()
    transactional: Flag = False
    errors: ErrorPolicy = ErrorPolicy()
    expectations: Annotated[tuple[Expectation, ...], ListField] = ()
    expectations_show_values: Flag = False
    freshness: Duration | None = None
    maintenance: Maintenance = Maintenance()
    doc: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        flaws = Flaws()
        check_contract(self, flaws)
        check_expectations(self, flaws)
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
    def key_names_rows(self) -> bool:
        """Whether all identifier columns are taken from the record's key, so that a tombstone names its row."""
        return self.upsert and all(self.column(name).from_key for name in self.identifier)

    @property
    def tombstone_column(self) -> str | None:
        """The identifier column that a tombstone's key gives.

        None if tombstones delete nothing, or if the key alone cannot name a row (an identifier of several columns):
        a tombstone is then an error of that record, never skipped in silence.
        """
        if not self.upsert or not self.tombstones_delete or len(self.identifier) != 1:
            return None
        name = self.identifier[0]
        column = self.column(name)
        if column.expression or (self.key.format not in PLAIN and not column.from_key):
            return None
        return name if key_holds(column.type, self.key.format) else None

    @property
    def computes(self) -> bool:
        """Whether it holds expressions."""
        return self.where is not None or any(column.expression for column in self.columns)

    @property
    def tombstones_delete(self) -> bool:
        """Whether a record without a value deletes the row that its key names, instead of being passed over."""
        return self.deletes != "ignore" and (self.cdc is None or self.cdc.tombstones_delete)

    def column(self, name: str) -> Column:
        """Return the column of that name.

        Raises:
            KeyError: If there is none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)
