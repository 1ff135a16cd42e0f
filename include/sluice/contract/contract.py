"""The contract of a table, validated: DAGs are generated from it, and every step receives it.

Imports only pydantic and the standard library, because DAG files import it. `contract.folder` reads the files.
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from sluice.contract import topic_pattern
from sluice.contract.checks import check_contract
from sluice.contract.checks_expectations import check_expectations
from sluice.contract.columns import split_auto_columns
from sluice.contract.fields import ContractFields
from sluice.contract.values import FieldErrors


class Contract(ContractFields):  # type: ignore[no-redef] # two of its fields are read from one key
    """The contract of one table, or of one table per topic. Field by field: `docs/reference/contract.md`.

    Raises:
        pydantic.ValidationError: with every error, each at its field.
    """

    @model_validator(mode="before")
    @classmethod
    def _split_auto(cls, data: object) -> object:
        return split_auto_columns(with_group(data) if isinstance(data, dict) else data)

    @model_validator(mode="after")
    def _check(self) -> Self:
        errors = FieldErrors()
        check_contract(self, errors)
        check_expectations(self, errors)
        errors.raise_any("Contract")
        keys = set(self.identifier)
        columns = tuple(c.model_copy(update={"required": True}) if c.name in keys else c for c in self.columns)
        # Identifier columns are always required. The model is frozen once it is constructed.
        object.__setattr__(self, "columns", columns)
        return self


def with_group(data: dict[str, object]) -> dict[str, object]:
    """Return the contract's plain values with the table's namespace as the group, if they have none."""
    if "group" in data:
        return data
    table = data.get("table")
    namespace = table.rpartition(".")[0] if isinstance(table, str) else ""
    return {**data, "group": namespace.replace(".", "_") or "unknown"}  # without a namespace the table is an error


def contract_for_topic(contract: Contract, topic: str) -> Contract:
    """Return the contract for one of its topics; for a template, the contract of that topic's table.

    Raises:
        ValueError: the topic's name does not make a valid table name.
    """
    table = topic_pattern.table_for_topic(contract.table, topic) if contract.is_template else contract.table
    return contract.model_copy(update={"table": table, "topic": (topic,), "topic_pattern": None})


def expand_template(contract: Contract) -> list[Contract]:
    """Return one contract per topic for a template with a list of topics, else the contract itself."""
    if not (contract.is_template and contract.topic):
        return [contract]
    return [contract_for_topic(contract, topic) for topic in contract.topic]
