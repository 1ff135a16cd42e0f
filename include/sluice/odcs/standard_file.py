"""Reads an ODCS file: strict YAML, a known version of the standard, and the types of its published models."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from open_data_contract_standard.model import CustomProperty, OpenDataContractStandard, SchemaObject
from pydantic import ValidationError

from sluice.contract.document import Document, read_document
from sluice.contract.suggestions import did_you_mean
from sluice.contract.validation_messages import describe_errors
from sluice.contract.values import quote
from sluice.errors import ContractError

API_VERSION = "v3.2.0"
"""The version of the standard that is written."""

OWN = "sluice"
"""Name of the custom property that holds what the standard has no field for, as a map."""

_READABLE = re.compile(r"v3\.[0-2]\.[0-9]+")


@dataclass(frozen=True)
class StandardFile:
    """A data contract.

    Attributes:
        name: The file's name.
        contract: Its content, as the standard's models have it.
        raw: The same as plain values, with the fields that the models do not know.
    """

    name: str
    contract: OpenDataContractStandard
    raw: dict[str, Any]

    @property
    def objects(self) -> list[tuple[SchemaObject, dict[str, Any]]]:
        """The objects of its schema, each with its plain values."""
        return list(zip(self.contract.schema_ or (), self.raw.get("schema") or (), strict=True))

    def select(self, name: str) -> list[tuple[SchemaObject, dict[str, Any]]]:
        """Return the object of that name, or all of them if it is empty.

        Raises:
            ContractError: There is none.
        """
        found = [each for each in self.objects if not name or name in (each[0].name, each[0].physicalName)]
        if found:
            return found
        known = [str(each.name) for each, _ in self.objects]
        what = f"has no schema object {quote(name)}{did_you_mean(name, known)}" if known else "has no schema objects"
        raise ContractError(f"{self.name} {what}.", next_step=f"It has: {', '.join(known)}." if known else None)


def read_standard(path: Path) -> StandardFile:
    """Read a data contract.

    Raises:
        ContractError: It can't be read, with all problems, one per line: `file:line: field: message`.
    """
    document = read_document(path, str(path))
    data = document.data
    if not document.problems and not isinstance(data, dict):
        document.problems.append(document.problem((), "is not a data contract: it must be a map"))
    _raise_problems(document)
    assert isinstance(data, dict)  # noqa: S101 - tells mypy what has been checked
    for field, message in _version_errors(data):
        document.problems.append(document.problem((field,), message))
    _raise_problems(document)
    try:
        contract = OpenDataContractStandard.model_validate(data)
    except ValidationError as error:
        for location, message in describe_errors(error, OpenDataContractStandard, data):
            document.problems.append(document.problem(location, message))
        _raise_problems(document)
        raise
    _check_names(contract, document)
    return StandardFile(str(path), contract, data)


def _version_errors(data: dict[str, Any]) -> Iterable[tuple[str, str]]:
    if data.get("kind") != "DataContract":
        found = f"not {quote(data['kind'])}" if "kind" in data else "which is missing"
        yield "kind", f"an ODCS file has kind: DataContract, {found}"
        return
    version = data.get("apiVersion")
    if not (isinstance(version, str) and _READABLE.fullmatch(version)):
        found = quote(version) if version is not None else "no version"
        yield "apiVersion", f"{found} can't be read: the Open Data Contract Standard v3.0 to v3.2 can"


def _check_names(contract: OpenDataContractStandard, document: Document) -> None:
    """Every object and column needs a name, which the models do not demand."""
    for i, each in enumerate(contract.schema_ or ()):
        if not each.name:
            document.problems.append(document.problem(("schema", i, "name"), "is required"))
        for j, column in enumerate(each.properties or ()):
            if not column.name:
                document.problems.append(document.problem(("schema", i, "properties", j, "name"), "is required"))
    _raise_problems(document)


def _raise_problems(document: Document) -> None:
    if document.problems:
        raise ContractError("\n".join(map(str, document.problems)))


def own_values(properties: Iterable[CustomProperty] | None, where: str) -> dict[str, Any]:
    """Return the map in the custom property `sluice`; empty if there is none.

    Raises:
        ContractError: It is not a map.
    """
    for each in properties or ():
        if each.property == OWN:
            if not isinstance(each.value, dict):
                raise ContractError(f"{where}: the custom property {OWN} must be a map, not {quote(each.value)}.")
            return each.value
    return {}


def own_property(values: dict[str, Any]) -> list[CustomProperty] | None:
    """Return the custom properties that hold a map; None for an empty one."""
    return [CustomProperty(property=OWN, value=values)] if values else None
