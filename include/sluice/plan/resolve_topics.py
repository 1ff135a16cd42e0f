"""Resolves topic patterns, as the first step of every run: contracts come in, contracts that name their topics go out.

A topic that is gone from Kafka still counts while it has a staging table, so that its loss is reported. No JVM.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations
from typing import TYPE_CHECKING

from pyiceberg.exceptions import NoSuchNamespaceError

from sluice.contract.checks_across import first_conflicting_setting, setting_text
from sluice.contract.contract import Contract, contract_for_topic
from sluice.contract.document import format_location
from sluice.contract.folder import Contracts
from sluice.errors import ContractError, SluiceError, TableDamagedError, TerminalError, TopicMissingError
from sluice.iceberg import table_names, tables
from sluice.kafka import broker

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyiceberg.catalog import Catalog
    from pyiceberg.typedef import Identifier

log = logging.getLogger(__name__)

TOPIC = "sluice.topic"
"""Property of a staging table: the topic whose records it holds."""

_OMIT = "Exclude topics from the pattern: topic: {pattern: …, omit: […]}."


def resolve(contracts: Contracts, catalog: Catalog | None, client: AdminClient | None) -> Contracts:
    """The contracts with the topics of each pattern, and with the tables of each template.

    Args:
        contracts: as they are in their files; resolved ones are returned as they are.
        catalog: for topics that were staged before; None where it is not available.
        client: for the topics in Kafka; None where only what was planned before matters.

    Raises:
        BrokerUnavailableError: Kafka did not answer.
    """
    if contracts.resolved:
        return contracts
    there = (
        broker.list_topic_names(client) if client is not None else set()
    )  # not by truth: an idle admin client is falsy
    if catalog:
        there |= _staged_topics(catalog, there | set(contracts.topics))
    stopped: dict[str, SluiceError] = {}
    found: list[Contract] = []
    for contract in (*contracts.tables.values(), *contracts.templates.values()):
        if contract.topic_pattern is None:
            found.append(contract)
            continue
        names = tuple(sorted(filter(contract.topic_pattern.matches, there)))
        if not names and client is not None:
            stopped[contract.table] = TopicMissingError(
                "No topic matches the pattern, and none that matched was read before.",
                table=contract.table,
                pattern=contract.topic_pattern.pattern,
            )
        if not contract.is_template:
            found.append(contract.model_copy(update={"topic": names}))
            continue
        made, problems = _template_tables(contract, names)
        found += made
        if problems:
            stopped[contract.table] = _topic_error(contract.table, "; ".join(problems))
    stopped |= _disagreements(found)
    found_tables: dict[str, Contract] = {}
    for contract in found:
        twin = found_tables.get(contract.table, contract)
        # Two contracts of one table both stop; the topics of both are staged all the same.
        names = tuple(dict.fromkeys((*twin.topics, *contract.topics)))
        found_tables[contract.table] = contract.model_copy(update={"topic": names})
    return contracts.with_topics(found_tables.values(), stopped)


def resolve_contract(contracts: Contracts, table: str, topic: str) -> Contract:
    """The contract of a table, without asking Kafka or the catalog which topics exist.

    Args:
        contracts: as they are in their files.
        table: as in the contract, with `{topic}` in it for a template.
        topic: one of the table's topics, where it has a pattern; else it may be empty.

    Raises:
        ContractError: there is no such contract.
        TerminalError: the table does not take the topic.
    """
    contract = contracts.templates.get(table) or contracts.table(table)
    if contract.topic_pattern is None:
        return contract
    if not contract.topic_pattern.matches(topic):
        what = f"Topic {topic!r} does not match" if topic else "No topic is given"
        raise TerminalError(
            f"{what}: {table} takes its topics by the pattern `{contract.topic_pattern.pattern}`.",
            next_step="Name one of its topics: --topic TOPIC.",
        )
    try:
        return contract_for_topic(contract, topic)
    except ValueError as error:
        raise _topic_error(table, str(error)) from error


def find_unclaimed_staging(contracts: Contracts, catalog: Catalog) -> list[str]:
    """The staging tables of topics that no contract reads any more, each with its topic: maintenance skips them.

    Empty where a contract or its topics can't be read: the staging tables may belong to it.
    """
    if contracts.problems or contracts.stopped:
        return []
    left = sorted(set(_staging_tables(catalog)) - {table_names.staging(topic) for topic in contracts.topics})
    return [f"{'.'.join(each)} (topic {_topic_of(catalog, each) or 'unknown'})" for each in left]


def _staging_tables(catalog: Catalog) -> list[Identifier]:
    try:
        return [tuple(each[-2:]) for each in catalog.list_tables(table_names.STAGING)]
    except NoSuchNamespaceError:
        return []


def _staged_topics(catalog: Catalog, known: Iterable[str]) -> set[str]:
    """The topics that have a staging table; only tables of topics that are not `known` are loaded."""
    expected = {table_names.staging(topic): topic for topic in known}
    present = _staging_tables(catalog)
    others = {_topic_of(catalog, each) for each in present if each not in expected}
    return {topic for topic in others if topic} | {expected[each] for each in present if each in expected}


def _topic_of(catalog: Catalog, staging: Identifier) -> str | None:
    """The topic of a staging table; None where its properties do not name one."""
    try:
        table = tables.load(catalog, staging)
    except TableDamagedError as error:  # if Kafka has the topic, planning stops it
        log.warning("%s", error)
        return None
    return table.properties.get(TOPIC) if table else None


def _template_tables(template: Contract, names: Iterable[str]) -> tuple[list[Contract], list[str]]:
    """A contract for each topic, and the errors of topics that can't have one."""
    made, problems = [], []
    for name in names:
        try:
            made.append(contract_for_topic(template, name))
        except ValueError as error:
            problems.append(str(error))
    return made, problems


def _disagreements(found: Iterable[Contract]) -> dict[str, SluiceError]:
    """The tables that stop because another contract contradicts theirs, each with the error."""
    by_table: dict[str, list[Contract]] = defaultdict(list)
    by_topic: dict[str, list[Contract]] = defaultdict(list)
    by_staging: dict[str, set[str]] = defaultdict(set)
    for contract in found:
        by_table[contract.table.lower()].append(contract)
        for topic in contract.topics:
            by_topic[topic].append(contract)
            by_staging[table_names.staging(topic)[-1]].add(topic)
    stopped: dict[str, SluiceError] = {}
    for same in (each for each in by_table.values() if len(each) > 1):
        who = " and ".join(f"{c.table} of {', '.join(c.topics) or 'no topic'}" for c in same)
        stopped |= {c.table: _topic_error(c.table, f"Several contracts write to one table: {who}") for c in same}
    for alike in (each for each in by_staging.values() if len(each) > 1):
        what = f"Topics {', '.join(sorted(alike))} would share one staging table"
        stopped |= {c.table: _topic_error(c.table, what) for topic in alike for c in by_topic[topic]}
    for topic, readers in by_topic.items():
        for one, other in combinations(readers, 2):
            if field := first_conflicting_setting(one, other):
                what = (
                    f"Topic {topic!r} is shared, and {format_location(field)} is {setting_text(one, field)} for "
                    f"{one.table}, {setting_text(other, field)} for {other.table}"
                )
                stopped |= {c.table: _topic_error(c.table, what) for c in (one, other)}
    return stopped


def _topic_error(table: str, what: str) -> ContractError:
    return ContractError(f"{what}.", table=table, next_step=f"{_OMIT} Or make the contracts agree.")
