"""Drafts a contract of a schema object of a data contract; comments show what is guessed, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from open_data_contract_standard.model import DataQuality, SchemaObject, SchemaProperty, Team
from pydantic import TypeAdapter, ValidationError

from sluice.contract.checks_expectations import find_errors
from sluice.contract.columns import KAFKA_TYPES
from sluice.contract.expectations import Expectation
from sluice.contract.fields import ContractFields
from sluice.contract.partitioning import PartitionField, parse_partition, type_mismatch
from sluice.contract.types import IcebergType
from sluice.contract.values import TableName, Topic, quote_name
from sluice.draft.model import Draft, DraftColumn, Lines, Proposal
from sluice.draft.naming import ColumnNames, table_name
from sluice.odcs import left_out
from sluice.odcs.export_contract import COLUMN_FIELDS, STANDARD_FIELDS
from sluice.odcs.property_types import read_type
from sluice.odcs.quality import NoCounterpartError, Rule, position_of, read_rule, rules_of_options
from sluice.odcs.service_levels import is_latency, read_freshness
from sluice.odcs.standard_file import StandardFile, own_values

_SETTINGS = frozenset(ContractFields.model_fields) - STANDARD_FIELDS - {"topic_pattern"}
_FIRST = ("table", "topic", "group", "owner", "mode", "key", "value", "doc")
_FORMATS = {"avro": "avro", "protobuf": "protobuf"}


@dataclass(frozen=True)
class Wishes:
    """What the author asks for; empty where the data contract decides.

    Attributes:
        topic: The topic.
        namespace: The namespace of the table.
        group: The group.
        owner: Who is responsible.
        default_owner: Who is responsible if the data contract names nobody.
    """

    topic: str = ""
    namespace: str = ""
    group: str = ""
    owner: str = ""
    default_owner: str = ""


@dataclass(frozen=True)
class ImportedColumn(DraftColumn):
    """A column with the fields that a draft of a topic does not propose."""

    fields: dict[str, Any] = field(default_factory=dict)

    def entry(self) -> dict[str, Any]:
        """The column as the contract has it."""
        return self.fields


@dataclass(frozen=True)
class _Column:
    """A property as a column."""

    name: str
    kind: IcebergType
    given: SchemaProperty
    draft: ImportedColumn


class _Import:
    """The import of one schema object, which collects what is left out."""

    def __init__(self, file: StandardFile, table: SchemaObject, raw: dict[str, Any], wishes: Wishes) -> None:
        self.file, self.table, self.raw, self.wishes = file, table, raw, wishes
        self.notes: list[str] = []
        given = own_values(table.customProperties, f"schema object {table.name}")
        self.own = {name: each for name, each in given.items() if name in _SETTINGS}
        self._leave_out("the custom property sluice", [str(name) for name in given if name not in _SETTINGS])
        self._leave_out("the data contract", left_out.of_root(file.raw))
        self._leave_out(f"{table.name}", left_out.of_object(raw))
        self.columns = list(self._columns())
        self.types = {**{each.name: each.kind for each in self.columns}, **KAFKA_TYPES}

    def _leave_out(self, of: str, names: list[str]) -> None:
        if names:
            self.notes.append(f"left out of {of}: {', '.join(names)}")

    def draft(self) -> Draft:
        found = {**self._settings(), **self._keys(), **self._partitions(), **self._expectations()}
        found |= {name: Proposal(each) for name, each in self.own.items() if name not in (*found, "auto")}
        columns: list[DraftColumn] = [each.draft for each in self.columns]
        if "auto" in self.own:
            columns.append(ImportedColumn("auto", "", fields={"auto": self.own["auto"]}))
        return Draft(
            head=self._head(),
            settings={name: found[name] for name in _FIRST if name in found},
            columns=tuple(columns),
            closing={name: each for name, each in found.items() if name not in _FIRST},
            notes=tuple(self.notes),
        )

    def _head(self) -> tuple[str, ...]:
        name = f"Imported by `contract import` from the schema object {self.table.name} of {self.file.name}."
        if "topic" in self.own or self.wishes.topic or self._topic():
            return (name, "Correct what you know better, then run `contract check`.")
        return (name, "Add the line `topic: …`: the Kafka topic that the table is filled from.")

    def _settings(self) -> dict[str, Proposal]:
        found: dict[str, Proposal] = {"table": self._table()}
        if self.wishes.topic:
            found["topic"] = Proposal(self.wishes.topic)
        elif "topic" not in self.own and (topic := self._topic()):
            found["topic"] = Proposal(topic, "the schema object's physical name")
        if self.wishes.group:
            found["group"] = Proposal(self.wishes.group)
        owner = self.wishes.owner or self._owner()
        if owner:
            found["owner"] = Proposal(owner)
        elif self.wishes.default_owner:
            found["owner"] = Proposal(self.wishes.default_owner, "guessed: the data contract names no team")
        if self.table.description is not None:
            found["doc"] = Proposal(self.table.description)
        if not self.own and (form := self._format()):
            found["value"] = Proposal({"format": form}, "the format of the data contract's Kafka server")
        return {**found, **self._freshness()}

    def _table(self) -> Proposal:
        name = self.table.physicalName or str(self.table.name)
        if not self.wishes.namespace and (not self._topic() or self.own):
            try:
                return Proposal(TypeAdapter(TableName).validate_python(name))
            except ValidationError:
                pass
        made = table_name(name, self.wishes.namespace)
        why = "" if made == name or self.wishes.namespace else f"guessed: {name} in the data contract has no namespace"
        return Proposal(made, why)

    def _topic(self) -> str:
        """The object's name if it is a topic."""
        if (self.table.physicalType or "").lower() != "topic":
            return ""
        try:
            return TypeAdapter[str](Topic).validate_python(self.table.physicalName or self.table.name)
        except ValidationError:
            return ""

    def _owner(self) -> str:
        team = self.file.contract.team
        if isinstance(team, Team):
            return team.name or ""
        owners = [each for each in team or () if "owner" in (each.role or "").lower()]
        return str(owners[0].name or owners[0].username or "") if owners else ""

    def _format(self) -> str:
        servers = self.file.contract.servers or ()
        return next((_FORMATS[each.format] for each in servers if each.type == "kafka" and each.format in _FORMATS), "")

    def _freshness(self) -> dict[str, Proposal]:
        found: dict[str, Proposal] = {}
        names = {self.table.name, self.table.physicalName}
        for level in self.file.contract.slaProperties or ():
            duration = read_freshness(level) if is_latency(level, names) and not found else None
            shown = " ".join(str(each) for each in (level.value, level.unit) if each is not None)
            if duration:
                found["freshness"] = Proposal(duration, f"{level.property} {shown} in the data contract")
            else:
                self.notes.append(f"left out of the service levels: {level.property} {shown}")
        return found

    def _columns(self) -> Iterator[_Column]:
        names = ColumnNames()
        for given, raw in zip(self.table.properties or (), self.raw.get("properties") or (), strict=True):
            if given.semanticType == "measure":
                self.notes.append(f"left out: {given.name} is a measure, not a column")
                continue
            wanted = given.physicalName or str(given.name)
            name = names.make(wanted)
            kind, why = read_type(given)
            fields: dict[str, Any] = {"name": name, "type": str(kind)}
            if name != wanted:
                fields["source"] = quote_name(wanted)
            own = own_values(given.customProperties, f"column {name}")
            known = {"transformLogic"} if own.get("expression") else set()
            more = (f"sluice.{each}" for each in own if each not in COLUMN_FIELDS)
            self._leave_out(f"column {name}", [*left_out.of_property(raw, known), *more])
            fields |= {each: own[each] for each in COLUMN_FIELDS if each in own}
            if given.required:
                fields["required"] = True
            if given.description is not None:
                fields["doc"] = given.description
            level = (given.classification or "").lower()
            personal = "" if level in ("", "public") or "mask" in own else f"classified as {given.classification}"
            entry = ImportedColumn(
                name, str(kind), str(fields.get("source", "")), evidence=(why,), personal=personal, fields=fields
            )
            yield _Column(name, kind, given, entry)

    def _keys(self) -> dict[str, Proposal]:
        keys = [each for each in self.columns if each.given.primaryKey]
        keys.sort(key=lambda each: place if (place := each.given.primaryKeyPosition or 0) > 0 else len(keys))
        if not keys or "identifier" in self.own:
            return {}
        found = {"identifier": Proposal([each.name for each in keys])}
        if "mode" not in self.own:
            found["mode"] = Proposal(
                "upsert", "guessed: the data contract has a primary key; append would keep every record"
            )
        return found

    def _partitions(self) -> dict[str, Proposal]:
        given = [each for each in self.columns if each.given.partitioned]
        given.sort(key=lambda each: place if (place := each.given.partitionKeyPosition or 0) > 0 else len(given))
        if (own := self._own_partitions()) is not None and own & self.types.keys() == {each.name for each in given}:
            return {}
        self.own.pop("partition_by", None)
        found = []
        for each in given:
            timestamp = str(each.kind) in ("timestamp", "timestamptz")
            field = PartitionField(each.name, "day" if timestamp else "identity")
            if why := type_mismatch(field, each.kind):
                self.notes.append(f"left out of the partitions: {why}")
            else:
                found.append(str(field))
        days = any("(" in each for each in found)
        return {"partition_by": Proposal(found, "guessed: timestamps by day" if days else "")} if found else {}

    def _own_partitions(self) -> set[str] | None:
        """The columns of the contract's own partitions; None if it has none, or if they are no list of partitions."""
        own = self.own.get("partition_by")
        if not isinstance(own, list):
            return None
        try:
            return {parse_partition(str(each)).column for each in own} - KAFKA_TYPES.keys()
        except ValueError:
            return None

    def _expectations(self) -> dict[str, Proposal]:
        found: list[tuple[float, Rule, str]] = []
        columns = {each.given.name: each.name for each in self.columns}
        for rule, column in self._rules():
            name = rule.name or rule.id or rule.metric or rule.rule or rule.type or "a rule"
            of = f"{column or self.table.name}: {name}"
            try:
                made = read_rule(rule, column)
            except NoCounterpartError as why:
                self.notes.append(f"left out of the quality rules of {of} ({why})")
                continue
            if isinstance(listed := made.get("column_list"), list):
                made["column_list"] = [columns.get(each, each) for each in listed]
            if self._usable(made, of):
                place = position_of(rule)
                severe = place == float("inf") and (rule.severity or "").lower() not in ("", "info", "warn", "warning")
                shown = f"severity {rule.severity} in the data contract: see block and quarantine_rows"
                found.append((place, made, shown if severe else ""))
        for each in self.columns:
            for options, made in rules_of_options(each.given, each.name):
                if self._usable(made, f"{each.name}: {options}"):
                    found.append((float("inf"), made, f"{options} in the data contract"))
        found.sort(key=lambda each: each[0])
        rules = [made for _, made, _ in found]
        lines = Lines((made, why) for at, (_, made, why) in enumerate(found) if made not in rules[:at])
        return {"expectations": Proposal(lines)} if lines else {}

    def _rules(self) -> Iterator[tuple[DataQuality, str | None]]:
        yield from ((rule, None) for rule in self.table.quality or ())
        for each in self.columns:
            yield from ((rule, each.name) for rule in each.given.quality or ())

    def _usable(self, rule: Rule, of: str) -> bool:
        """Whether a contract takes the expectation; with columns from the registry, that is checked later."""
        try:
            expectation = Expectation.model_validate(rule)
            errors = [] if "auto" in self.own else [message for _, message in find_errors(expectation, self.types)]
        except ValidationError as error:
            errors = [str(each["msg"]) for each in error.errors()]
        if errors:
            self.notes.append(f"left out of the quality rules of {of} ({errors[0]})")
        return not errors


def draft_contract(file: StandardFile, table: SchemaObject, raw: dict[str, Any], wishes: Wishes) -> Draft:
    """Return the draft of a contract.

    Args:
        file: The data contract.
        table: One of its schema objects.
        raw: The object's plain values.
        wishes: What the author asks for.

    Raises:
        ContractError: A custom property of Sluice's is not a map.
    """
    return _Import(file, table, raw, wishes).draft()
