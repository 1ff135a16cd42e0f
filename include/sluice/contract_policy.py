"""`schema_policy:` of a contract: what becomes of each kind of change to its shape, once the table exists."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from sluice.contract_fields import Flaws, Strict

Policy = Literal["auto", "review", "ignore", "refuse"]


class SchemaPolicy(Strict):
    """What becomes of each kind of change to the contract's shape, once the table exists.

    `auto`: the table is changed before the next batch is published. `review`: the table goes on with the contract that
    is in force, until somebody approves or rejects. `ignore`: the table goes on as if that had not been changed.
    `refuse`: the table stops until the contract is put back.

    Attributes:
        add_column: A column that may be null. Default auto.
        widen: int to long, float to double, a decimal of more digits and the same scale. Default auto.
        make_optional: A required column may be null now. Default auto.
        reorder: The same columns in another order. Default auto.
        document: Another comment. Default auto.
        drop_column: Default review.
        rename_column: By `renamed_from`. Default review.
        change_type: Any other type; the old column is kept aside under another name. Default review; not auto.
        make_required: A column may no longer be null, or a new one may not. Default review.
        change_key: `mode` or `identifier`, which can't be approved for a table as it is; or how a column of the key is
            read. Default review; not auto.
        change_mask: A column is no longer masked, or otherwise; or one without a mask comes to read what another masks.
            To mask one is in force at once. Default review.
        change_partitioning: `partition_by`, for what is written from then on. Default review.
        change_nested: A field inside a struct, list or map. Default review.
    """

    add_column: Policy = "auto"
    widen: Policy = "auto"
    make_optional: Policy = "auto"
    reorder: Policy = "auto"
    document: Policy = "auto"
    drop_column: Policy = "review"
    rename_column: Policy = "review"
    change_type: Policy = "review"
    make_required: Policy = "review"
    change_key: Policy = "review"
    change_mask: Policy = "review"
    change_partitioning: Policy = "review"
    change_nested: Policy = "review"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        flaws = Flaws()
        for kind, why in {
            "change_type": "Iceberg can't change a type in place, so that the old values are set aside",
            "change_key": "Iceberg can't give the rows that are there another key",
        }.items():
            if getattr(self, kind) == "auto":
                flaws.add(kind, message=f"can't be auto: {why}; use review, ignore or refuse")
        flaws.raise_any("SchemaPolicy")
        return self
