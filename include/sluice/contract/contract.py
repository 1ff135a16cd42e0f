"""What a table promises: the contract, one YAML file per table, as a frozen value.

Stands before the first step: the DAGs are generated from contracts, and every step is given one. Only pydantic and the
standard library are imported, because DAG files are parsed every few seconds. `sluice.contract.folder` reads the files,
`sluice.iceberg.schema` turns a contract into what Iceberg wants to know, and `docs/contracts.md` is the reference.
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from sluice.contract.checks import check_contract
from sluice.contract.checks_expectations import check_expectations
from sluice.contract.columns import auto_apart
from sluice.contract.fields import ContractFields
from sluice.contract.values import (
    Flaws,
)


class Contract(ContractFields):  # type: ignore[no-redef] # two of its fields are read from one key
    """The promise of one table, or of like tables, with all of its fields checked. The reference: `docs/contracts.md`.

    Raises:
        pydantic.ValidationError: with every flaw that was found, each at its field.
    """

    @model_validator(mode="before")
    @classmethod
    def _auto_apart(cls, data: object) -> object:
        return auto_apart(data)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        flaws = Flaws()
        check_contract(self, flaws)
        check_expectations(self, flaws)
        flaws.raise_any("Contract")
        keys = set(self.identifier)
        columns = tuple(c.model_copy(update={"required": True}) if c.name in keys else c for c in self.columns)
        # A key without a value identifies nothing. The model is frozen for everybody but its own construction.
        object.__setattr__(self, "columns", columns)
        return self
