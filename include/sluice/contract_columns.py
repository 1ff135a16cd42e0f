"""What must hold between columns, the inputs of their expressions, and masks. Light, as all of the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.contract_fields import Flaws
from sluice.iceberg_types import Primitive

if TYPE_CHECKING:
    from sluice.contract import Contract


def check_columns(contract: Contract, flaws: Flaws) -> None:
    """Note in `flaws` what contradicts itself in inputs, expressions and masks."""
    taken = {column.name.lower() for column in contract.columns}
    for index, each in enumerate(contract.inputs):
        if each.name.lower() in taken:
            flaws.add("inputs", index, "name", message=f"{each.name!r} stands twice among columns and inputs")
        taken.add(each.name.lower())
    for index, column in enumerate(contract.columns):
        at = ("columns", index)
        if column.expression and column.source:
            flaws.add(*at, "expression", message="a column has a source or an expression, not both: name an input")
        if column.mask and column.type != Primitive("string"):
            flaws.add(*at, "mask", message=f"hides text: read the field as string, not {column.type}, or leave it out")
        if column.mask == "redact" and column.name in contract.identifier:
            flaws.add(*at, "mask", message="redact makes all keys the same: use sha256")
        if column.mask and column.name in contract.order:
            flaws.add(*at, "mask", message="what is masked has no order any more")
    if contract.where and contract.deletes == "soft":
        message = "does not go with deletes: soft: a delete may lack the fields that it asks for"
        flaws.add("where", message=message)
    if contract.inputs and not contract.computes:
        flaws.add("inputs", message="are read for expressions and where alone, and there are none")
