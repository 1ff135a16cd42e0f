"""The fields of a contract, each checked by itself, and the properties derived from them.

`contract.contract.Contract` adds the checks between fields, which use this class as their argument's type.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_serializer

from sluice.contract.change_events import Cdc
from sluice.contract.columns import TEXT_AND_BYTES, Auto, Column, Format, Input, is_readable_as
from sluice.contract.expectations import Expectation
from sluice.contract.partitioning import PartitionField, parse_partition
from sluice.contract.settings import ErrorPolicy, Limits, Maintenance, SchemaPolicy
from sluice.contract.topic_pattern import TopicPattern, read_names, read_pattern
from sluice.contract.values import (
    TEMPLATE,
    Duration,
    GroupName,
    Identifier,
    ListField,
    Properties,
    StartPosition,
    StrictBool,
    StrictModel,
    TableName,
    Topic,
)

Topics = Topic | list[Topic] | TopicPattern
"""What `topic:` may be in the YAML."""


class KeyFormat(StrictModel):
    """Format of the record's key: `string` (UTF-8, the default), `bytes`, or any format of a value."""

    format: Format = "string"


class ValueFormat(StrictModel):
    """Format of the record's value.

    Attributes:
        format: Default `json`, an object without a schema.
        types: The record types that the table takes of a topic with several: Avro's and Protobuf's full names, a JSON
            Schema's title. Default: all records are read alike.
    """

    format: Format = "json"
    types: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], ListField] = ()


class ContractFields(StrictModel):  # type: ignore[no-redef] # two of its fields are read from one key
    """The fields of a contract. Field by field: `docs/contracts.md`."""

    table: TableName
    topic: Annotated[tuple[Topic, ...], BeforeValidator(read_names, json_schema_input_type=Topics)]
    # The YAML's `topic` if it is a pattern; `plan.resolve_topics` then sets `topic` to the matching topics.
    topic_pattern: Annotated[TopicPattern | None, BeforeValidator(read_pattern, json_schema_input_type=Topics)] = Field(
        None, validation_alias="topic", exclude=True
    )
    group: GroupName
    owner: Annotated[str, Field(min_length=1, max_length=200)]
    mode: Literal["append", "upsert", "history"] = "append"
    key: KeyFormat = KeyFormat()
    value: ValueFormat = ValueFormat()
    columns: Annotated[tuple[Column, ...], ListField]
    auto: Auto | None = None
    identifier: Annotated[tuple[Identifier, ...], ListField] = ()
    order: Annotated[tuple[Identifier, ...], ListField] = ()
    valid_from: Identifier = "_kafka_timestamp"
    deletes: Literal["tombstone", "ignore", "hard", "soft"] = "tombstone"
    cdc: Cdc | None = None
    inputs: Annotated[tuple[Input, ...], ListField] = ()
    where: Annotated[str, Field(min_length=1)] | None = None
    partition_by: Annotated[tuple[str, ...], ListField] = ()
    properties: Properties = Field(default_factory=dict)
    format_version: Literal[2] = 2
    start: StartPosition = "earliest"
    limits: Limits = Limits()
    transactional: StrictBool = False
    errors: ErrorPolicy = ErrorPolicy()
    expectations: Annotated[tuple[Expectation, ...], ListField] = ()
    expectations_show_values: StrictBool = False
    freshness: Duration | None = None
    maintenance: Maintenance = Maintenance()
    schema_policy: SchemaPolicy = SchemaPolicy()
    doc: str | None = None

    @field_serializer("topic")
    def _as_written(self, names: tuple[str, ...]) -> tuple[str, ...] | TopicPattern:
        return names or self.topic_pattern or ()

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that feed the table; for a pattern those that were resolved, none before."""
        return self.topic

    @property
    def is_template(self) -> bool:
        """Whether each of its topics gets its own table."""
        return TEMPLATE in self.table

    @property
    def reads_several_topics(self) -> bool:
        """Whether several topics may feed one table."""
        return not self.is_template and (self.topic_pattern is not None or len(self.topic) > 1)

    @property
    def namespace(self) -> tuple[str, ...]:
        """The parts of the table's name without the last."""
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
    def keyed(self) -> bool:
        """Whether rows are identified by `identifier` (modes upsert and history)."""
        return self.mode != "append"

    @property
    def valid_to(self) -> str | None:
        """In mode history, the column that holds when a version ended."""
        return next((c.name for c in self.columns if c.is_valid_to), None)

    @property
    def partitioning(self) -> tuple[PartitionField, ...]:
        """`partition_by`, parsed."""
        return tuple(parse_partition(text) for text in self.partition_by)

    @property
    def key_names_rows(self) -> bool:
        """Whether all identifier columns are read from the record's key, so that a tombstone identifies its row."""
        return self.upsert and all(self.column(name).from_key for name in self.identifier)

    @property
    def tombstone_column(self) -> str | None:
        """The identifier column that holds a tombstone's whole key.

        None if tombstones delete nothing, or if the key can't identify a row (say, an identifier of several columns); a
        tombstone is then an error of that record, never skipped silently.
        """
        if not self.upsert or not self.tombstones_delete or len(self.identifier) != 1:
            return None
        name = self.identifier[0]
        column = self.column(name)
        if column.expression or (self.key.format not in TEXT_AND_BYTES and not column.from_key):
            return None
        return name if is_readable_as(column.type, self.key.format) else None

    @property
    def has_expressions(self) -> bool:
        """Whether it has expressions or `where`."""
        return self.where is not None or any(column.expression for column in self.columns)

    @property
    def drops_raw_records(self) -> bool:
        """Whether the quarantine table holds no raw keys, values and headers, which would show masked data."""
        return self.has_personal_data and self.errors.raw != "keep"

    @property
    def has_personal_data(self) -> bool:
        """Whether raw records hold personal data: a column is masked, or `errors.raw` is `drop`."""
        return self.errors.raw == "drop" or any(c.mask for c in self.columns)

    @property
    def tombstones_delete(self) -> bool:
        """Whether a record without a value deletes the row of its key; otherwise it is skipped."""
        return self.deletes != "ignore" and (self.cdc is None or self.cdc.tombstones_delete)

    def column(self, name: str) -> Column:
        """Return the column of that name.

        Raises:
            KeyError: There is none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


def row_paths(contract: ContractFields) -> tuple[tuple[str, ...], ...]:
    """Return the paths in the value under which a row's fields may be."""
    return (("after",), ("before",)) if contract.cdc and contract.cdc.has_envelope else ((),)
