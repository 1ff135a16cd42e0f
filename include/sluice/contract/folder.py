"""Reads the folder of contracts: a YAML file per table, `defaults.yaml`, and `groups.yaml` with groups' settings.

DAG files load without `strict` and use the valid contracts; jobs and `contract check` get all problems as one error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, ValidationError

from sluice.contract.checks_across import check_across_contracts
from sluice.contract.contract import Contract, expand_template, with_group
from sluice.contract.document import Document, Problem, read_document
from sluice.contract.fields import KeyFormat, ValueFormat
from sluice.contract.groups import GROUPS_FILE, CommonSettings, GroupSettings, merge, read_groups
from sluice.contract.settings import ErrorPolicy, Limits, Maintenance, SchemaPolicy
from sluice.contract.suggestions import did_you_mean
from sluice.contract.validation_messages import describe_errors
from sluice.contract.values import (
    NAMESPACE_PREFIX,
    Duration,
    GroupName,
    Properties,
    StartPosition,
    StrictBool,
    StrictModel,
    find_prefix_problem,
)
from sluice.errors import ContractError, SluiceError, first_line

NO_CONTRACTS = "has no contracts: add one *.yaml file per table"
FOLDER_VARIABLE = "SLUICE_CONTRACTS"
"""Environment variable that names the folder of contracts."""

DEFAULTS_FILE = "defaults.yaml"
"""File with the fields that contracts share, beside them."""

_MISNAMED = {"groups.yml": GROUPS_FILE, "defaults.yml": DEFAULTS_FILE}
_T = TypeVar("_T")


class ContractDefaults(StrictModel):
    """The fields of a contract that `defaults.yaml` may have: those that say nothing of a table's rows."""

    group: GroupName | None = None
    owner: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    key: KeyFormat = KeyFormat()
    value: ValueFormat = ValueFormat()
    properties: Properties = Field(default_factory=dict)
    start: StartPosition = "earliest"
    limits: Limits = Limits()
    transactional: StrictBool = False
    errors: ErrorPolicy = ErrorPolicy()
    expectations_show_values: StrictBool = False
    freshness: Duration | None = None
    maintenance: Maintenance = Maintenance()
    schema_policy: SchemaPolicy = SchemaPolicy()


@dataclass(frozen=True)
class Group:
    """Tables that one DAG run and one Spark application ingest.

    Attributes:
        name: Its name; the DAG is `ingest_<name>`, after `dag_ids.PREFIX`.
        settings: Its settings, with defaults filled in.
        contracts: Its tables' contracts, sorted by table name.
        templates: Contracts whose tables depend on the topics in Kafka.
    """

    name: str
    settings: GroupSettings
    contracts: tuple[Contract, ...]
    templates: tuple[Contract, ...] = ()

    @property
    def all_contracts(self) -> tuple[Contract, ...]:
        """Contracts and templates; there is at least one."""
        return (*self.contracts, *self.templates)

    @property
    def seconds(self) -> int:
        """Seconds of a run after which no further batch starts."""
        return min(c.limits.seconds_per_run for c in self.all_contracts)


@dataclass(frozen=True)
class TopicSettings:
    """The settings of a topic, equal in all contracts that read it.

    Attributes:
        topic: The Kafka topic.
        group: Group that ingests it.
        start: Where its first batch starts.
        limits: Bounds of its batches.
        transactional: Whether it is written in transactions, so that offsets may be missing.
        tables: Names of the tables that it feeds, sorted.
    """

    topic: str
    group: str
    start: StartPosition
    limits: Limits
    transactional: bool
    tables: tuple[str, ...]


@dataclass(frozen=True)
class Contracts:
    """All contracts of a folder.

    Attributes:
        folder: Where they were read.
        tables: Contract by table name, sorted.
        groups: Group by name, sorted; each has at least one table or template.
        topics: Settings by topic, sorted; `plan.resolve_topics` adds the topics that match patterns.
        templates: Template by its table name, with the placeholder.
        stopped: Tables and templates that can't run with the resolved topics, with the error.
        resolved: Whether the topics of all patterns are known.
        problems: The folder's problems, if read without `strict`. Contracts and groups with problems are in none of the
            maps.
        common: Settings for all groups: maintenance schedules and alerts.
    """

    folder: Path
    tables: Mapping[str, Contract]
    groups: Mapping[str, Group]
    topics: Mapping[str, TopicSettings]
    templates: Mapping[str, Contract] = field(default_factory=dict)
    stopped: Mapping[str, SluiceError] = field(default_factory=dict)
    resolved: bool = True
    problems: tuple[Problem, ...] = ()
    common: CommonSettings = field(default_factory=CommonSettings)

    def table(self, name: str) -> Contract:
        """Return the contract of a table.

        Raises:
            ContractError: There is none.
        """
        if name not in self.tables and self.templates:
            hint = did_you_mean(name, self.tables)
            more = f"; tables of {', '.join(self.templates)} exist once their topics do"
            raise ContractError(f"no contract in {self.folder} defines the table {name!r}{hint}{more}")
        return _get_or_suggest("table", name, self.tables, self.folder)

    def group(self, name: str) -> Group:
        """Return a group.

        Raises:
            ContractError: No table is in a group of that name.
        """
        return _get_or_suggest("group", name, self.groups, self.folder)

    def merge_groups(self, names: Iterable[str]) -> Group:
        """Return one group with the tables of several, and default settings.

        Raises:
            ContractError: No table is in a group of one of the names.
        """
        groups = [self.group(name) for name in names]
        contracts = tuple(c for g in groups for c in g.contracts)
        templates = tuple(c for g in groups for c in g.templates)
        return Group(", ".join(g.name for g in groups), GroupSettings(), contracts, templates)

    def with_topics(self, tables: Iterable[Contract], stopped: Mapping[str, SluiceError]) -> Contracts:
        """Return a copy with the resolved topics and tables; the templates stay as they are."""
        settings = {g.name: g.settings for g in self.groups.values()}
        found = _assemble(self.folder, [*tables, *self.templates.values()], settings, self.common, self.problems)
        return replace(found, stopped=stopped, resolved=True)


def _get_or_suggest(kind: str, name: str, known: Mapping[str, _T], folder: Path) -> _T:
    if name not in known:
        hint = did_you_mean(name, known) or f" (known: {', '.join(known) or 'none'})"
        raise ContractError(f"no contract in {folder} defines the {kind} {name!r}{hint}")
    return known[name]


def default_folder() -> Path:
    """Return the folder in `SLUICE_CONTRACTS`, else `contracts` beside this package."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder).expanduser() if folder else Path(__file__).resolve().parents[2] / "contracts"


def load_contracts(folder: Path | None = None, *, strict: bool = True) -> Contracts:
    """Read every contract of a folder.

    Args:
        folder: The folder of the YAML files. Default: `default_folder()`.
        strict: Raise an error for any problem. Otherwise the problems are in the result, and the contracts and groups
            with problems are left out.

    Raises:
        ContractError: With `strict`, all problems, one per line: `file:line: field: message`.
    """
    where = folder or default_folder()
    problems: list[Problem] = []
    if wrong := find_prefix_problem():
        problems.append(Problem(str(where), 0, "", wrong))
    valid: list[tuple[Document, Contract]] = []
    group_names: set[str] = set()
    defaults = read_defaults(where, problems)
    for path in _files(where, problems):
        document = read_document(path, str(path))
        if isinstance(document.data, dict):
            document.data = body = _with_prefix(with_group(merge(defaults or {}, document.data)))
            group_names.add(str(body["group"]))
        contract = _validated(document, defaults or {}, problems)
        if contract is not None:
            valid += [(document, each) for each in expand_template(contract)]
    settings, broken_groups, common = read_groups(where, group_names, problems)
    conflicts = check_across_contracts(valid, settings)
    problems += [each for found in conflicts.values() for each in found]
    if strict and problems:
        raise ContractError("\n".join(str(each) for each in sorted(set(problems))))
    complete = settings is not None and defaults is not None and not wrong
    usable = [c for d, c in valid if complete and d.file not in conflicts and c.group not in broken_groups]
    return _assemble(where, usable, settings or {}, common, tuple(sorted(set(problems))))


def _with_prefix(data: dict[str, object]) -> dict[str, object]:
    """Return the contract's plain values with the prefix of namespaces before the table's name."""
    table = data.get("table")
    return {**data, "table": f"{NAMESPACE_PREFIX}{table}"} if NAMESPACE_PREFIX and isinstance(table, str) else data


def read_defaults(folder: Path, problems: list[Problem]) -> dict[str, object] | None:
    """Read `defaults.yaml`.

    Args:
        folder: The folder of contracts.
        problems: Where to add problems.

    Returns:
        The fields as they are written, none without the file; None if the file is unusable.
    """
    path = folder / DEFAULTS_FILE
    if not path.exists():
        return {}
    document = read_document(path, str(path))
    problems += document.problems
    if document.problems:
        return None
    given = {} if document.data is None else document.data
    if not isinstance(given, dict):
        problems.append(Problem(document.file, 1, "", "must be a map of fields of contracts, such as 'owner:'"))
        return None
    try:
        ContractDefaults.model_validate(given)
    except ValidationError as error:
        for location, message in describe_errors(error, ContractDefaults, given):
            problems.append(document.problem(location, message))
        return None
    return given


def _files(folder: Path, problems: list[Problem]) -> list[Path]:
    try:
        names = sorted(
            each.name for each in folder.iterdir() if each.suffix in {".yaml", ".yml"} and each.name[0] != "."
        )
    except OSError as error:
        create = "create it, or name another: " if isinstance(error, FileNotFoundError) else ""
        hint = f"; {create}{FOLDER_VARIABLE} names the folder of contracts"
        problems.append(Problem(str(folder), 0, "", f"cannot be read: {error.strerror}{hint}"))
        return []
    tables = [folder / name for name in names if name not in {GROUPS_FILE, DEFAULTS_FILE, *_MISNAMED}]
    problems += [
        Problem(str(folder / name), 0, "", f"is not read: rename it to {right}")
        for name, right in _MISNAMED.items()
        if name in names
    ]
    if not tables:
        problems.append(Problem(str(folder), 0, "", NO_CONTRACTS))
    return tables


def _validated(document: Document, defaults: Mapping[str, object], problems: list[Problem]) -> Contract | None:
    problems += document.problems
    if document.problems:
        return None
    if not isinstance(document.data, dict):
        problems.append(Problem(document.file, 1, "", "must be a map with fields such as 'table:' and 'topic:'"))
        return None
    try:
        return Contract.model_validate(document.data)
    except ValidationError as error:
        for location, message in describe_errors(error, Contract, document.data):
            shared = bool(location) and location[:1] not in document.lines and location[0] in defaults
            origin = f" (the value is from {DEFAULTS_FILE})" if shared else ""
            problems.append(document.problem(location, message + origin))
    except Exception as error:  # noqa: BLE001 - one contract must not make the others unusable
        problems.append(Problem(document.file, 1, "", f"cannot be read: {type(error).__name__}: {first_line(error)}"))
    return None


def _assemble(
    folder: Path,
    contracts: list[Contract],
    settings: dict[str, GroupSettings],
    common: CommonSettings,
    problems: tuple[Problem, ...],
) -> Contracts:
    contracts = sorted(contracts, key=lambda each: each.table)
    tables = {each.table: each for each in contracts if not each.is_template}
    templates = {each.table: each for each in contracts if each.is_template}
    groups = {}
    for name in sorted({each.group for each in contracts}):
        members = [tuple(c for c in each.values() if c.group == name) for each in (tables, templates)]
        groups[name] = Group(name, settings[name], *members)
    readers: dict[str, list[Contract]] = {}
    for contract in tables.values():
        for topic in contract.topics:
            readers.setdefault(topic, []).append(contract)
    topics = {}
    for topic in sorted(readers):
        first = readers[topic][0]
        names = tuple(c.table for c in readers[topic])
        topics[topic] = TopicSettings(topic, first.group, first.start, first.limits, first.transactional, names)
    resolved = all(each.topic_pattern is None for each in contracts)
    return Contracts(folder, tables, groups, topics, templates, {}, resolved, problems, common)
