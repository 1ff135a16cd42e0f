"""Operational settings of a contract: limits of a run, error policy, maintenance, schema change policy."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sluice.contract.values import Duration, FieldErrors, Identifier, ListField, PositiveInt, StrictModel

ChangePolicy = Literal["auto", "review", "ignore", "refuse"]

MIN_ORPHAN_AGE = timedelta(days=1)
"""Minimum age of orphan files: a writer may be about to commit younger ones."""


class Limits(StrictModel):
    """Limits of one run.

    Attributes:
        records_per_batch: Maximum records in one batch of a topic. Default 1,000,000.
        seconds_per_run: Seconds of a run after which no further batch starts. Default 240.
        batches_per_run: Maximum batches of a topic in one run. Default 20.
        batches_per_commit: Maximum waiting batches that one commit publishes together. Default 10.
    """

    records_per_batch: PositiveInt = 1_000_000
    seconds_per_run: PositiveInt = 240
    batches_per_run: PositiveInt = 20
    batches_per_commit: PositiveInt = 10


class ErrorPolicy(StrictModel):
    """What happens to a record that cannot be decoded.

    Attributes:
        tolerance: `quarantine` quarantines it, for a later replay (the default); `none` stops the table at the first.
        max_ratio: Share of a batch, 0 to 1, above which the table stops in spite of quarantine. Default 0.01.
        max_count: Records of a batch that may be quarantined whatever their share, so that one bad record of a small
            batch does not stop the table. Default 10; 0 if `max_ratio` is 0.
        raw: Whether the quarantine table holds raw keys, values and headers: `keep`, or `drop` for records with
            personal data, which are then replayed from staging or Kafka. Default `drop` if a column is masked, else
            `keep`.
    """

    tolerance: Literal["none", "quarantine"] = "quarantine"
    max_ratio: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.01
    max_count: Annotated[int, Field(strict=True, ge=0)] = 10
    raw: Literal["keep", "drop"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _none_is_none(cls, data: object) -> object:
        """A contract that tolerates no share tolerates no record, unless it says so."""
        return {"max_count": 0, **data} if isinstance(data, dict) and data.get("max_ratio") == 0 else data


class Maintenance(StrictModel):
    """Maintenance of a table and of Sluice's own tables for it.

    Attributes:
        target_file_size: Target size of rewritten data files in bytes. Default 128 MB.
        min_input_files: How many small files a partition must have before they are rewritten. Default 5.
        delete_ratio: Share of deleted rows, above 0 and up to 1, from which a data file is rewritten. Default 0.3.
        strategy: `binpack` (the default) keeps the order of rows, `sort` sorts by `sort_by`, `zorder` by several
            columns equally.
        sort_by: Columns to sort by; not for binpack.
        rewrite_after: How long nothing must have been written to a time partition before it is rewritten, unless it has
            very many files. Default 1 hour.
        rewrite_bytes: Approximate bytes that one run rewrites; the next run continues. Default 16 GiB.
        snapshot_age: The rollback window: how long snapshots are kept. Default 5 days.
        min_snapshots: How many snapshots are kept whatever their age. Default 10.
        staging_retention: How long staging keeps a batch's raw records after all tables of the topic published it.
            Default 30 days, or 14 if a table of the topic masks personal data; at least `snapshot_age`.
        orphan_age: Age from which files that no snapshot references are removed; at least a day. Default 3 days.
    """

    target_file_size: Annotated[int, Field(strict=True, ge=1 << 20)] = 128 << 20
    min_input_files: Annotated[int, Field(strict=True, ge=2)] = 5
    delete_ratio: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.3
    strategy: Literal["binpack", "sort", "zorder"] = "binpack"
    sort_by: Annotated[tuple[Identifier, ...], ListField] = ()
    rewrite_after: Duration = timedelta(hours=1)
    rewrite_bytes: PositiveInt = 16 << 30
    snapshot_age: Duration = timedelta(days=5)
    min_snapshots: PositiveInt = 10
    staging_retention: Duration | None = None
    orphan_age: Duration = timedelta(days=3)

    @model_validator(mode="after")
    def _check(self) -> Self:
        errors = FieldErrors()
        if self.orphan_age < MIN_ORPHAN_AGE:
            errors.add("orphan_age", message="must be 1d or more: a writer may be about to commit younger files")
        if self.staging_retention is not None and self.staging_retention < self.snapshot_age:
            message = "must be at least snapshot_age: after a rollback batches are published again from staging"
            errors.add("staging_retention", message=message)
        if self.strategy == "binpack" and self.sort_by:
            errors.add("sort_by", message="strategy binpack does not sort: use strategy: sort or zorder, or remove it")
        elif len(self.sort_by) < (least := {"binpack": 0, "sort": 1, "zorder": 2}[self.strategy]):
            needs = "the columns to sort by" if least == 1 else "at least two columns; use sort for one"
            errors.add("sort_by", message=f"strategy {self.strategy} needs {needs}")
        errors.raise_any("Maintenance")
        return self


class SchemaPolicy(StrictModel):
    """Schema change policy: what happens on each kind of change to the contract's shape once the table exists.

    `auto`: the table is changed before the next batch is published. `review`: the table continues with the active
    contract until the change is approved or rejected. `ignore`: the table continues as if nothing had changed.
    `refuse`: the table stops until the contract is restored.

    Attributes:
        add_column: A nullable column. Default auto.
        widen: int to long, float to double, a decimal of more digits and the same scale. Default auto.
        make_optional: A required column becomes nullable. Default auto.
        reorder: The same columns in another order. Default auto.
        document: Another comment. Default auto.
        drop_column: Default review.
        rename_column: By `renamed_from`. Default review.
        change_type: Any other type; the old column is kept under another name. Default review; not auto.
        make_required: A nullable column becomes required, or a new one is. Default review.
        change_key: `mode` or `identifier`, which can't be approved for an existing table; or how a key column is read.
            Default review; not auto.
        change_mask: A mask is removed or changed, or an unmasked column reads a masked field. Adding a mask takes
            effect at once. Default review.
        change_partitioning: `partition_by`, for data written from then on. Default review.
        change_nested: A field inside a struct, list or map. Default review.
    """

    add_column: ChangePolicy = "auto"
    widen: ChangePolicy = "auto"
    make_optional: ChangePolicy = "auto"
    reorder: ChangePolicy = "auto"
    document: ChangePolicy = "auto"
    drop_column: ChangePolicy = "review"
    rename_column: ChangePolicy = "review"
    change_type: ChangePolicy = "review"
    make_required: ChangePolicy = "review"
    change_key: ChangePolicy = "review"
    change_mask: ChangePolicy = "review"
    change_partitioning: ChangePolicy = "review"
    change_nested: ChangePolicy = "review"

    @model_validator(mode="after")
    def _check(self) -> Self:
        errors = FieldErrors()
        for kind, why in {
            "change_type": "Iceberg can't change a type in place, so the old column is kept under another name",
            "change_key": "Iceberg can't change the key of existing rows",
        }.items():
            if getattr(self, kind) == "auto":
                errors.add(kind, message=f"can't be auto: {why}; use review, ignore or refuse")
        errors.raise_any("SchemaPolicy")
        return self
