"""Checks where records and schemas come from: the contracts, Kafka's topics and rights, the schema registry.

In: the contracts and the environment. Out: what answered, or what is missing. Reads no record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sluice.contract import folder as contract_folder
from sluice.contract.columns import REGISTRY_FORMATS
from sluice.contract.folder import Contracts
from sluice.doctor.findings import SkippedError
from sluice.errors import (
    BrokerUnavailableError,
    ConfigError,
    ContractError,
    RetryableError,
    SluiceError,
    TopicMissingError,
)
from sluice.kafka import airflow_connections
from sluice.status.text import counted

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

NEEDED = ("READ", "DESCRIBE", "DESCRIBE_CONFIGS")
MAX_AHEAD = timedelta(minutes=1)
MAX_LISTED = 5
PROBE_SUBJECT = "sluice-doctor"


def check_contracts() -> str:
    """Check that the contracts are valid.

    Raises:
        SkippedError: there are none yet.
        ContractError: some are not.
    """
    found = contract_folder.load_contracts(strict=False)
    if [each.message for each in found.problems] == [contract_folder.NO_CONTRACTS]:
        raise SkippedError(f"{found.folder} has none yet; `sluice contract init --topic TOPIC` drafts one")
    if found.problems:
        raise ContractError(
            f"{found.folder} has {len(found.problems)} problem(s); the first: {found.problems[0]}",
            next_step="`contract check` shows all of them.",
        )
    count = len(found.tables) + len(found.templates)
    return f"{count} in {found.folder}, groups {', '.join(found.groups) or 'none'}"


def check_masks() -> str:
    """Check that this environment has the key that masked columns are hashed with.

    Raises:
        SkippedError: no contract needs one.
        ConfigError: it is missing, or too short.
    """
    from sluice.formats import masks

    contracts = contract_folder.load_contracts(strict=False)
    needing = [c for c in (*contracts.tables.values(), *contracts.templates.values()) if masks.needs_key(c)]
    if not needing:
        raise SkippedError("no contract has mask: sha256")
    if lacking := masks.find_missing_keys(needing):
        error = next(iter(lacking.values()))
        raise ConfigError(f"{error.message} Needed by {_listed(lacking)}.", next_step=error.next_step)
    return f"{masks.KEY_VARIABLE} is set here; needed by {_listed(c.table for c in needing)}"


def check_kafka(patience: float) -> str:
    """Check that Kafka answers, that the contracts' topics can be described and read, and that clocks agree.

    A missing topic is an error only once a run has created a table that reads it: a contract may be there first.

    Raises:
        BrokerUnavailableError: Kafka did not answer, or refused the login.
        ConfigError: no cluster is configured, or topics have records from the future.
        TopicMissingError, TopicForbiddenError: of the first topic with a problem.
    """
    from sluice.kafka import broker

    with _named_source(airflow_connections.KAFKA):
        client = broker.connect(patience)
    answers = f"answers, by {airflow_connections.source(airflow_connections.KAFKA)}"
    contracts = contract_folder.load_contracts(strict=False)
    topics = list(contracts.topics)
    if not topics:
        return f"{answers}; {len(broker.list_topic_names(client))} topics are visible, and no contract names one"
    states = broker.describe_topics(client, topics)
    problems = {name: state for name, state in states.items() if isinstance(state, SluiceError)}
    missing = [name for name, error in problems.items() if isinstance(error, TopicMissingError)]
    awaited = _topics_without_table(contracts, missing, patience) if missing else []
    if others := {name: error for name, error in problems.items() if name not in awaited}:
        raise _first_of(others)
    there = {name: s.watermarks for name, s in states.items() if isinstance(s, broker.TopicState)}
    if there:
        _check_rights(client, list(there))
    _check_clock(client, there)
    text = f"{answers}; {counted(len(there), 'topic')} can be described and read, and no record is from the future"
    if not awaited:
        return text
    return f"{text}. Not created yet: {counted(len(awaited), 'topic')} of contracts that never ran ({_listed(awaited)})"


@contextmanager
def _named_source(settings: airflow_connections.Settings) -> Iterator[None]:
    """Say in an error where the settings come from."""
    try:
        yield
    except SluiceError as error:
        error.fields.setdefault("settings", airflow_connections.source(settings) or None)
        raise


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known[:MAX_LISTED]) + (", …" if len(known) > MAX_LISTED else "")


def _topics_without_table(contracts: Contracts, topics: Iterable[str], patience: float) -> list[str]:
    """The topics of which no typed table exists; none if the catalog does not answer, which is a check of its own."""
    from sluice.iceberg import availability, table_names, tables

    def has_table(topic: str) -> bool:
        readers = (contracts.tables[name] for name in contracts.topics[topic].tables)
        return any(tables.load(catalog, table_names.typed(each)) is not None for each in readers)

    try:
        with closing(availability.open_catalog(patience)) as catalog, availability.translate_catalog_errors():
            return sorted(topic for topic in topics if not has_table(topic))
    except SluiceError:
        return []


def _first_of(problems: Mapping[str, SluiceError]) -> SluiceError:
    first = problems[min(problems)]
    more = f" (and {len(problems) - 1} more topics)" if len(problems) > 1 else ""
    return type(first)(f"{first.message}{more}", next_step=first.next_step, **first.fields)


def _check_rights(client: AdminClient, topics: list[str]) -> None:
    """Ask Kafka which operations this user may do on each topic; some brokers don't answer that.

    Raises:
        ConfigError: an operation that Sluice needs is not among them.
    """
    from confluent_kafka import KafkaException, TopicCollection

    from sluice.kafka import broker, login

    asked = client.describe_topics(
        TopicCollection(topics), include_authorized_operations=True, request_timeout=broker.TIMEOUT_S
    )
    lacking = {}
    for name, future in asked.items():
        try:
            allowed = login.await_result(client, future).authorized_operations
        except KafkaException as error:
            raise BrokerUnavailableError(f"Kafka did not answer: {error.args[0].str()}", topic=name) from error
        names = {operation.name for operation in allowed or ()}
        if names and (missing := [each for each in NEEDED if each not in names]):
            lacking[name] = missing
    if lacking:
        texts = [f"{name} lacks {', '.join(missing)}" for name, missing in _some(lacking)]
        raise ConfigError(
            f"This Kafka user has too few rights on topics: {'; '.join(texts)}.",
            next_step="Grant it Describe, DescribeConfigs and Read on the contracts' topics.",
        )


def _check_clock(client: AdminClient, partitions: Mapping[str, Iterable[int]]) -> None:
    """Compare this machine's clock with the newest records: Kafka has no clock to ask for.

    Raises:
        ConfigError: a record is from the future.
    """
    from sluice.kafka import broker

    limit = datetime.now(UTC) + MAX_AHEAD
    newest_records = broker.read_stream_clocks(client, partitions)
    if ahead := {topic: newest for topic, newest in newest_records.items() if newest and newest > limit}:
        texts = [f"{topic} has one of {newest:%Y-%m-%d %H:%M:%S} UTC" for topic, newest in _some(ahead)]
        raise ConfigError(
            f"Records are from the future by this machine's clock: {'; '.join(texts)}.",
            next_step="Synchronise the clocks of this machine, the brokers and the producers (NTP).",
        )


def _some(found: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(found.items())[:MAX_LISTED]


def check_registry() -> str:
    """Check that the registry answers, if one is configured or a contract needs one.

    Raises:
        SkippedError: none is configured, and none is needed.
        RegistryUnavailableError: it does not answer.
        ConfigError: the address is not a registry's, or the login is rejected.
    """
    from sluice.kafka.registry import SchemaRegistry

    needed = _tables_with_registry(contract_folder.load_contracts(strict=False))
    airflow_connections.export(airflow_connections.REGISTRY)
    source = airflow_connections.source(airflow_connections.REGISTRY)
    if not source and not needed:
        raise SkippedError("none is configured, and no contract needs one")
    with _named_source(airflow_connections.REGISTRY):
        registry = SchemaRegistry()
        try:
            registry.newest(PROBE_SUBJECT)  # no such subject: whoever says so is a registry
        except RetryableError as error:
            raise type(error)(error.message, next_step="Check its address, and that it is up and reachable.") from error
    return f"{registry.address} answers, by {source}; {len(needed)} tables need it"


def _tables_with_registry(contracts: Contracts) -> list[str]:
    every = (*contracts.tables.values(), *contracts.templates.values())
    formats = ((c.table, {c.key.format, c.value.format} & set(REGISTRY_FORMATS) or c.auto) for c in every)
    return [table for table, needs in formats if needs]
