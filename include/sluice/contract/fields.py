"""The fields of a contract, each checked by itself, and the properties derived from them.

`contract.contract.Contract` adds the checks that compare fields with one another; those checks are typed against this
class, so that no module imports the one that calls it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_serializer

from sluice.contract.change_events import Cdc
from sluice.contract.columns import PLAIN, Auto, Column, Format, Input, key_holds
from sluice.contract.expectations import Expectation
from sluice.contract.partitioning import PartitionField, parse_partition
from sluice.contract.settings import ErrorPolicy, Limits, Maintenance, SchemaPolicy
from sluice.contract.topic_pattern import TopicPattern, names_only, pattern_only
from sluice.contract.values import (
    TEMPLATE,
    Duration,
    Flag,
    GroupName,
    Identifier,
    ListField,
    Properties,
    Start,
    Strict,
    TableName,
    Topic,
)


class KeyFormat(Strict):
    """How the record's key is read: `string` (UTF-8, the default), `bytes` (as it is), or as a value may be."""

    format: Format = "string"


class ValueFormat(Strict):
    """How the record's value is read: `json`, an object without a schema, unless another format is named.

    Attributes:
        types: Of a topic with several record types, the names of those that the table takes, as the schemas have them:
            Avro's and Protobuf's full names, a JSON Schema's title. Default: all are read alike.
    """

    format: Format = "json"
    types: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], ListField] = ()


class ContractFields(Strict):  # type: ignore[no-redef] # two of its fields are read from one key
    """The fields of a contract, and what follows from them alone. Field by field: `docs/contracts.md`."""

    table: TableName
    topic: Annotated[tuple[Topic, ...], BeforeValidator(names_only)]
    # The same key of the YAML, read as the other thing that it may be;
    # `plan.resolve_topics` fills in `topic` by it.
    matching: Annotated[TopicPattern | None, BeforeValidator(pattern_only)] = Field(
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
    start: Start = "earliest"
    limits: Limits = Limits()
    transactional: Flag = False
    errors: ErrorPolicy = ErrorPolicy()
    expectations: Annotated[tuple[Expectation, ...], ListField] = ()
    expectations_show_values: Flag = False
    freshness: Duration | None = None
    maintenance: Maintenance = Maintenance()
    schema_policy: SchemaPolicy = SchemaPolicy()
    doc: str | None = None

    @field_serializer("topic")
    def _as_written(self, names: tuple[str, ...]) -> tuple[str, ...] | TopicPattern:
        return names or self.matching or ()

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that feed the table; by a pattern those that were found, none before anybody has looked."""
        return self.topic

    @property
    def template(self) -> bool:
        """Whether it stands for a table of each of its topics."""
        return TEMPLATE in self.table

    @property
    def mixed(self) -> bool:
        """Whether several topics may feed one table."""
        return not self.template and (self.matching is not None or len(self.topic) > 1)

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
    def keyed(self) -> bool:
        """Whether `identifier` tells which records are about the same thing: one row each, or all of its versions."""
        return self.mode != "append"

    @property
    def valid_to(self) -> str | None:
        """The column that says when a version ended, in mode history."""
        return next((c.name for c in self.columns if c.ends), None)

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
    def drops_raw(self) -> bool:
        """Whether the quarantine holds no raw keys, values and headers: what a mask hides must not stand there."""
        return self.personal and self.errors.raw != "keep"

    @property
    def personal(self) -> bool:
        """Whether raw records hold what is not for the table's readers: a column is masked, or the quarantine hides."""
        return self.errors.raw == "drop" or any(c.mask for c in self.columns)

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


def rows_at(contract: ContractFields) -> tuple[tuple[str, ...], ...]:
    """Where in the value a row's fields may stand."""
    return (("after",), ("before",)) if contract.cdc and contract.cdc.format == "debezium" else ((),)
