"""Which topics the patterns of the contracts match, by what Kafka has and what was staged before; no JVM.

The first thing of every run: what comes out are contracts that name their topics, and that is all the others know. A
topic that is gone from Kafka goes on being named while it has a staging table, so that it is missed, not forgotten.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations
from typing import TYPE_CHECKING

from pyiceberg.exceptions import NoSuchNamespaceError

from sluice.contract.checks_between import disagreement, says
from sluice.contract.contract import Contract
from sluice.contract.document import path_text
from sluice.contract.folder import Contracts
from sluice.contract.topic_tables import of_topic
from sluice.errors import ContractError, SluiceError, TableDamagedError, TerminalError, TopicMissingError
from sluice.iceberg import table_names, tables
from sluice.kafka import broker

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyiceberg.catalog import Catalog
    from pyiceberg.typedef import Identifier

log = logging.getLogger(__name__)

TOPIC = "sluice.topic"
"""Property of a staging table: whose records it holds."""

_OMIT = "Leave topics out of the pattern: topic: {pattern: …, omit: […]}."


def resolve(contracts: Contracts, catalog: Catalog | None, client: AdminClient | None) -> Contracts:
    """The contracts with the topics of each pattern, and with the tables of each template.

    Args:
        catalog: for the topics that were staged before; None where it can't be asked.
        client: for those that Kafka has; None where only what was planned before matters.

    Raises:
        BrokerUnavailableError: Kafka did not answer.
    """
    if contracts.resolved:
        return contracts
    there = broker.names(client) if client is not None else set()  # an admin client is false while nothing waits in it
    if catalog:
        there |= _staged(catalog, there | set(contracts.topics))
    stopped: dict[str, SluiceError] = {}
    found: list[Contract] = []
    for contract in (*contracts.tables.values(), *contracts.templates.values()):
        if contract.matching is None:
            found.append(contract)
            continue
        names = tuple(sorted(filter(contract.matching.matches, there)))
        if not names and client is not None:
            stopped[contract.table] = TopicMissingError(
                "No topic matches the pattern, and none that did was read before.",
                table=contract.table,
                pattern=contract.matching.pattern,
            )
        if not contract.template:
            found.append(contract.model_copy(update={"topic": names}))
            continue
        made, problems = _tables(contract, names)
        found += made
        if problems:
            stopped[contract.table] = _refusal(contract.table, "; ".join(problems))
    stopped |= _disagreements(found)
    found_tables: dict[str, Contract] = {}
    for contract in found:
        twin = found_tables.get(contract.table, contract)
        # Where there is one, neither goes on, and staging keeps the records of both.
        names = tuple(dict.fromkeys((*twin.topics, *contract.topics)))
        found_tables[contract.table] = contract.model_copy(update={"topic": names})
    return contracts.with_topics(found_tables.values(), stopped)


def named(contracts: Contracts, table: str, topic: str) -> Contract:
    """The contract of a table, where neither Kafka nor the catalog is asked which topics there are.

    Args:
        table: as the contract has it, with `{topic}` in it for a template.
        topic: one of its topics, where it has a pattern; may be empty where it has names.

    Raises:
        ContractError: there is no such contract.
        TerminalError: the topic is not one of its.
    """
    contract = contracts.templates.get(table) or contracts.table(table)
    if contract.matching is None:
        return contract
    if not contract.matching.matches(topic):
        what = f"{topic!r} is not matched" if topic else "No topic is named"
        raise TerminalError(
            f"{what}: {table} takes its topics by the pattern `{contract.matching.pattern}`.",
            way_out="Name one of its topics: --topic TOPIC.",
        )
    try:
        return of_topic(contract, topic)
    except ValueError as error:
        raise _refusal(table, str(error)) from error


def unclaimed(contracts: Contracts, catalog: Catalog) -> list[str]:
    """The staging tables of topics that no contract reads any more, each with its topic: nobody trims them.

    None are told where some contract can't be read, or can't be asked for its topics: it may be theirs.
    """
    if contracts.problems or contracts.stopped:
        return []
    left = sorted(set(_present(catalog)) - {table_names.staging(topic) for topic in contracts.topics})
    return [f"{'.'.join(each)} (topic {_topic_of(catalog, each) or 'unknown'})" for each in left]


def _present(catalog: Catalog) -> list[Identifier]:
    try:
        return [tuple(each[-2:]) for each in catalog.list_tables(table_names.STAGING)]
    except NoSuchNamespaceError:
        return []


def _staged(catalog: Catalog, known: Iterable[str]) -> set[str]:
    """The topics that have a staging table; only that of a topic which nobody knows is looked into."""
    expected = {table_names.staging(topic): topic for topic in known}
    present = _present(catalog)
    told = {_topic_of(catalog, each) for each in present if each not in expected}
    return {topic for topic in told if topic} | {expected[each] for each in present if each in expected}


def _topic_of(catalog: Catalog, staging: Identifier) -> str | None:
    """Whose staging a table is; None where it does not tell."""
    try:
        table = tables.load(catalog, staging)
    except TableDamagedError as error:  # a topic that Kafka tells of is stopped by it, by name
        log.warning("%s", error)
        return None
    return table.properties.get(TOPIC) if table else None


def _tables(template: Contract, names: Iterable[str]) -> tuple[list[Contract], list[str]]:
    """A contract for each topic, and why some have none."""
    made, problems = [], []
    for name in names:
        try:
            made.append(of_topic(template, name))
        except ValueError as error:
            problems.append(str(error))
    return made, problems


def _disagreements(found: Iterable[Contract]) -> dict[str, SluiceError]:
    """The tables that must not go on because of what another contract says: nobody but the owner knows who is right."""
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
        stopped |= {c.table: _refusal(c.table, f"Several contracts come to one table: {who}") for c in same}
    for alike in (each for each in by_staging.values() if len(each) > 1):
        what = f"Topics {', '.join(sorted(alike))} would have one staging table"
        stopped |= {c.table: _refusal(c.table, what) for topic in alike for c in by_topic[topic]}
    for topic, readers in by_topic.items():
        for one, other in combinations(readers, 2):
            if field := disagreement(one, other):
                what = (
                    f"Topic {topic!r} is shared, and {path_text(field)} is {says(one, field)} for {one.table}, "
                    f"{says(other, field)} for {other.table}"
                )
                stopped |= {c.table: _refusal(c.table, what) for c in (one, other)}
    return stopped


def _refusal(table: str, what: str) -> ContractError:
    return ContractError(f"{what}.", table=table, way_out=f"{_OMIT} Or make the contracts agree.")
