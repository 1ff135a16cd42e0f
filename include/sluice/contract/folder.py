"""Reads the folder of contracts: one YAML file per table, and `groups.yaml` for the groups' settings.

The first thing on the data's way: DAG files call `load(strict=False)` and go on with what is sound, `contract check`
and the jobs call `load()` and get every problem of every file at once. Light: PyYAML and pydantic only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from sluice.contract.checks_between import cross_problems
from sluice.contract.contract import Contract
from sluice.contract.document import Document, Problem, read_document
from sluice.contract.groups import GROUPS_FILE, Common, GroupSettings, read_groups
from sluice.contract.messages import explain
from sluice.contract.settings import Limits
from sluice.contract.topic_tables import each_table
from sluice.contract.values import Start, nearest
from sluice.errors import ContractError, SluiceError, first_line

FOLDER_VARIABLE = "SLUICE_CONTRACTS"
"""Environment variable that names the folder of contracts."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Group:
    """Tables that one DAG run and one Spark application ingest.

    Attributes:
        name: Its name; the DAG is `ingest_<name>`.
        settings: Schedule, Spark and so on, defaults filled in.
        contracts: Its tables' contracts, by table name.
        templates: Contracts whose tables nobody knows before the broker is asked.
    """

    name: str
    settings: GroupSettings
    contracts: tuple[Contract, ...]
    templates: tuple[Contract, ...] = ()

    @property
    def promises(self) -> tuple[Contract, ...]:
        """All that its files say; there is at least one."""
        return (*self.contracts, *self.templates)

    @property
    def seconds(self) -> int:
        """After how many seconds of a run no further batch is begun."""
        return min(c.limits.seconds_per_run for c in self.promises)


@dataclass(frozen=True)
class TopicSettings:
    """What the contracts that read one topic agree on.

    Attributes:
        topic: The Kafka topic.
        group: Group that ingests it.
        start: Where its first batch begins.
        limits: Bounds of its batches.
        transactional: Whether gaps in its offsets are expected because it is written in transactions.
        tables: Names of the tables that it feeds, sorted.
    """

    topic: str
    group: str
    start: Start
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
        topics: Settings by topic, sorted; those of patterns are among them when `plan.resolve_topics` has looked.
        templates: Contract by the name that it has in place of a table's, where its topics are a pattern.
        stopped: Tables, and templates, that the topics found do not let go on, with the reason.
        resolved: Whether the topics of all patterns are known.
        problems: What is wrong with the folder; empty unless read with `strict=False`. What a problem concerns is in
            none of the maps.
        common: What holds for all groups together: when the maintenance DAGs run, and whom to alert.
    """

    folder: Path
    tables: Mapping[str, Contract]
    groups: Mapping[str, Group]
    topics: Mapping[str, TopicSettings]
    templates: Mapping[str, Contract] = field(default_factory=dict)
    stopped: Mapping[str, SluiceError] = field(default_factory=dict)
    resolved: bool = True
    problems: tuple[Problem, ...] = ()
    common: Common = field(default_factory=Common)

    def table(self, name: str) -> Contract:
        """Return the contract of a table.

        Raises:
            ContractError: If there is none of that name.
        """
        if name not in self.tables and self.templates:
            more = f"; those of {', '.join(self.templates)} are there when their topics are"
            raise ContractError(
                f"no contract in {self.folder} names the table {name!r}{nearest(name, self.tables)}{more}"
            )
        return _look_up("table", name, self.tables, self.folder)

    def group(self, name: str) -> Group:
        """Return a group.

        Raises:
            ContractError: If no table is in a group of that name.
        """
        return _look_up("group", name, self.groups, self.folder)

    def together(self, names: Iterable[str]) -> Group:
        """Several groups as one, for a look at all of their tables at once; it has no settings of its own.

        Raises:
            ContractError: If no table is in a group of one of the names.
        """
        groups = [self.group(name) for name in names]
        contracts = tuple(c for g in groups for c in g.contracts)
        templates = tuple(c for g in groups for c in g.templates)
        return Group(", ".join(g.name for g in groups), GroupSettings(), contracts, templates)

    def with_topics(self, tables: Iterable[Contract], stopped: Mapping[str, SluiceError]) -> Contracts:
        """The same with the topics and tables that were found; the templates stay as they are."""
        settings = {g.name: g.settings for g in self.groups.values()}
        found = _assemble(self.folder, [*tables, *self.templates.values()], settings, self.common, self.problems)
        return replace(found, stopped=stopped, resolved=True)


def _look_up(kind: str, name: str, known: Mapping[str, _T], folder: Path) -> _T:
    if name not in known:
        hint = nearest(name, known) or f" (there are: {', '.join(known) or 'none'})"
        raise ContractError(f"no contract in {folder} names the {kind} {name!r}{hint}")
    return known[name]


def default_folder() -> Path:
    """Return the folder that `SLUICE_CONTRACTS` names, else `contracts` beside this package."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named).expanduser() if named else Path(__file__).resolve().parents[2] / "contracts"


def load(folder: Path | None = None, *, strict: bool = True) -> Contracts:
    """Read every contract of a folder.

    Args:
        folder: Where the YAML files are. Default: `default_folder()`.
        strict: Whether any problem is an error. If not, the problems are in the result, and what they concern is left
            out of it.

    Raises:
        ContractError: With `strict`, if anything is wrong; one line per problem, `file:line: field: message`.
    """
    where = folder or default_folder()
    problems: list[Problem] = []
    sound: list[tuple[Document, Contract]] = []
    raw_groups: set[str] = set()
    for path in _files(where, problems):
        document = read_document(path, str(path))
        contract = _validated(document, problems)
        if isinstance(document.data, dict):
            raw_groups.add(str(document.data.get("group")))
        if contract is not None:
            sound += [(document, each) for each in each_table(contract)]
    settings, broken_groups, common = read_groups(where, raw_groups, problems)
    wrong = cross_problems(sound, settings)
    problems += [each for found in wrong.values() for each in found]
    if strict and problems:
        raise ContractError("\n".join(str(each) for each in sorted(set(problems))))
    kept = [c for d, c in sound if d.file not in wrong and settings is not None and c.group not in broken_groups]
    return _assemble(where, kept, settings or {}, common, tuple(sorted(set(problems))))


def _files(folder: Path, problems: list[Problem]) -> list[Path]:
    try:
        names = sorted(
            each.name for each in folder.iterdir() if each.suffix in {".yaml", ".yml"} and each.name[0] != "."
        )
    except OSError as error:
        hint = f"; {FOLDER_VARIABLE} names the folder of contracts"
        problems.append(Problem(str(folder), 0, "", f"cannot be read: {error.strerror}{hint}"))
        return []
    tables = [folder / name for name in names if name not in {GROUPS_FILE, "groups.yml"}]
    if "groups.yml" in names:
        problems.append(Problem(str(folder / "groups.yml"), 0, "", f"is not read: call it {GROUPS_FILE}"))
    if not tables:
        problems.append(Problem(str(folder), 0, "", "holds no contract: one *.yaml file per table"))
    return tables


def _validated(document: Document, problems: list[Problem]) -> Contract | None:
    problems += document.problems
    if document.problems:
        return None
    if not isinstance(document.data, dict):
        problems.append(Problem(document.file, 1, "", "must be a map with fields such as 'table:' and 'topic:'"))
        return None
    try:
        return Contract.model_validate(document.data)
    except ValidationError as error:
        for location, message in explain(error, Contract, document.data):
            problems.append(document.problem(location, message))
    except Exception as error:  # noqa: BLE001 - whatever one contract holds, it takes no other one away
        problems.append(Problem(document.file, 1, "", f"can't be read: {type(error).__name__}: {first_line(error)}"))
    return None


def _assemble(
    folder: Path,
    contracts: list[Contract],
    settings: dict[str, GroupSettings],
    common: Common,
    problems: tuple[Problem, ...],
) -> Contracts:
    contracts = sorted(contracts, key=lambda each: each.table)
    tables = {each.table: each for each in contracts if not each.template}
    templates = {each.table: each for each in contracts if each.template}
    groups = {}
    for name in sorted({each.group for each in contracts}):
        mine = [tuple(c for c in each.values() if c.group == name) for each in (tables, templates)]
        groups[name] = Group(name, settings[name], *mine)
    fed: dict[str, list[Contract]] = {}
    for contract in tables.values():
        for topic in contract.topics:
            fed.setdefault(topic, []).append(contract)
    topics = {}
    for topic in sorted(fed):
        one = fed[topic][0]
        names = tuple(c.table for c in fed[topic])
        topics[topic] = TopicSettings(topic, one.group, one.start, one.limits, one.transactional, names)
    resolved = all(each.matching is None for each in contracts)
    return Contracts(folder, tables, groups, topics, templates, {}, resolved, problems, common)
