"""The fields of a contract, each checked by itself, and the properties derived from them.

`contract.contract.Contract` adds the checks between fields, which use this class as their argument's type.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_serializer

from sluice.contract.change_events import Cdc
from sluice.contract.columns import TEXT_AND_BYTES, Auto, Column, Format, Input, is_readable_as
from sluice.contract.expectations import Expectation
from sluice.contract.partitioning import PartitionField, parse_partition
from sluice.contract.settings import ErrorPolicy, Limits, Maintenance, Retention, SchemaPolicy
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

_UNNAMED = re.compile(r"--|/\*|(^|[^\w\s)\]'\"`]|\b(all|distinct)\b)\s*\*|\bidentifier\s*\(")
"""What may read columns in an expression without naming them: a `*` that does not multiply, a comment, which may hide
one, and IDENTIFIER()."""

Topics = Topic | list[Topic] | TopicPattern
"""What `topic:` may be in the YAML."""


class KeyFormat(StrictModel):
    """How the record's key is read.

    Attributes:
        format: Format of the key; any format of a value.
    """

    format: Format = "string"


class ValueFormat(StrictModel):
    """How the record's value is read.

    Attributes:
        format: Format of the value.
        types: Of a topic with several record types, those that the table takes: Avro's and Protobuf's full names, a
            JSON Schema's title. Needs the format `avro`, `protobuf` or `json_schema`.
    """

    format: Format = "json"
    types: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], ListField] = ()


class ContractFields(StrictModel):  # type: ignore[no-redef] # two of its fields are read from one key
    """The fields of a contract; `docs/reference/contract.md` is generated from their descriptions.

    Attributes:
        table: Name of the typed table, `namespace.table`. With `{topic}` in the last part, each topic has a table of
            its own.
        topic: The Kafka topic, a list of topics, or a map with a `pattern`.
        topic_pattern: The pattern, if `topic` is one.
        group: Tables of one group share a DAG and a Spark application. Default: the table's namespace, with its dots
            as `_`. It is not a Kafka consumer group.
        owner: Who is responsible for the table.
        mode: `append` keeps every record, `upsert` the newest version of each key, `history` every version with the
            time it was valid.
        key: How the record's key is read.
        value: How the record's value is read.
        columns: The table's columns in their order. `auto`, alone or as the last entry, stands for the fields of the
            newest schema in the registry.
        auto: The columns that `auto` stands for.
        identifier: Modes upsert and history: the columns that identify a row. They become required.
        order: Modes upsert and history: what orders two versions of a key, the greatest wins: required columns, or
            `_kafka_timestamp`. Without it the Kafka offset decides.
        valid_from: Mode history: the required column that says when a version begins, or `_kafka_timestamp`.
        deletes: What removes a row: `tombstone` a record without a value, `hard` a delete event. `soft` keeps a
            deleted row and marks it, `ignore` skips deletes. Default with `cdc`: `hard`.
        cdc: The records are change events, and how they are read.
        inputs: Fields that are read for expressions and `where`, and are not columns.
        where: A condition in Spark SQL: the table takes the records that meet it.
        partition_by: Partition transforms: a column, or `year(c)`, `month(c)`, `day(c)`, `hour(c)`, `bucket(n, c)`,
            `truncate(n, c)`.
        properties: Iceberg table properties, in addition to Sluice's defaults.
        format_version: Iceberg's format version: 3 has deletion vectors and row lineage. A table's can be raised later.
        start: Where the first batch begins: `earliest`, `latest`, an ISO timestamp with a time zone, or
            `{partition: offset}` for a single topic.
        limits: How much one run reads.
        transactional: The topic is written in transactions, so offsets without a record are expected.
        errors: What happens to records that can't become a row.
        expectations: Checks of Great Expectations on each batch.
        expectations_show_values: Whether the table `sluice.quality` may hold values of records: observed values, and
            up to 20 failing ones per expectation.
        freshness: The freshness target: how old unread records may be before the table is `late`.
        maintenance: How the table's files and snapshots are maintained.
        retention: How long rows stay. Default: for ever.
        schema_policy: What happens to a change of this contract once the table exists.
        other_writers: What happens when another engine has changed rows since Sluice's last commit: `warn` names its
            commits and goes on, `allow` says nothing, `stop` publishes nothing.
        doc: A sentence about the table, which Airflow shows at the table's task.
    """

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
    format_version: Literal[2, 3] = 2
    start: StartPosition = "earliest"
    limits: Limits = Limits()
    transactional: StrictBool = False
    errors: ErrorPolicy = ErrorPolicy()
    expectations: Annotated[tuple[Expectation, ...], ListField] = ()
    expectations_show_values: StrictBool = False
    freshness: Duration | None = None
    other_writers: Literal["warn", "allow", "stop"] = "warn"
    maintenance: Maintenance = Maintenance()
    retention: Retention | None = None
    schema_policy: SchemaPolicy = SchemaPolicy()
    doc: str | None = None

    def retention_cutoff(self, now: datetime) -> date | None:
        """The day, in UTC, before which rows are deleted; None if they stay for ever."""
        if self.retention is None:
            return None
        return self.retention.cutoff(now, [p.transform for p in self.partitioning if p.column == self.retention.column])

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


def fields_read(contract: ContractFields, column: Column) -> set[str]:
    """The sources that a column reads; for an expression, those of all names in its text, even inside a literal.

    Only Spark could resolve an expression, and it is not there when contracts are compared: one too many is safe.
    """
    if not column.expression:
        return {column.source}
    text = column.expression.lower()
    names, unnamed = set(re.findall(r"\w+", text)), _UNNAMED.search(text)
    read = [c for c in (*contract.columns, *contract.inputs) if c.source and not c.is_valid_to]
    return {c.source for c in read if unnamed or c.name.lower() in names}


def row_paths(contract: ContractFields) -> tuple[tuple[str, ...], ...]:
    """Return the paths in the value under which a row's fields may be."""
    return (("after",), ("before",)) if contract.cdc and contract.cdc.has_envelope else ((),)
