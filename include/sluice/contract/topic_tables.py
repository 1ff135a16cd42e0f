"""TODO docstring of sluice.contract.topic_tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.contract import topic_pattern

if TYPE_CHECKING:
    from sluice.contract.contract import Contract


def of_topic(contract: Contract, topic: str) -> Contract:
    """The contract with that topic alone; of a template, the contract of that topic's table.

    Raises:
        ValueError: what comes out is no name of a table.
    """
    table = topic_pattern.table_of(contract.table, topic) if contract.template else contract.table
    return contract.model_copy(update={"table": table, "topic": (topic,), "matching": None})


def each_table(contract: Contract) -> list[Contract]:
    """The contracts that a contract stands for: of a template with a list of topics, one for each."""
    return [of_topic(contract, t) for t in contract.topic] if contract.template and contract.topic else [contract]
