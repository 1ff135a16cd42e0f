"""Settings of a contract that say how its table is run: bounds of a run, tolerance of errors, maintenance."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sluice.contract.values import Duration, Flaws, Identifier, ListField, Strict, Whole

Policy = Literal["auto", "review", "ignore", "refuse"]

ORPHAN_FLOOR = timedelta(days=1)
"""Files younger than this are never taken for orphans: somebody may be about to commit them."""


class Limits(Strict):
    """Bounds of one run.

    Attributes:
        records_per_batch: Most records of one batch of a topic. Default 1,000,000.
        seconds_per_run: No further batch is begun after so many seconds of a run. Default 240.
        batches_per_run: Most batches of a topic in one run. Default 20.
        batches_per_commit: Most waiting batches that one commit brings into the table together. Default 10.
    """

    records_per_batch: Whole = 1_000_000
    seconds_per_run: Whole = 240
    batches_per_run: Whole = 20
    batches_per_commit: Whole = 10


class ErrorPolicy(Strict):
    """What happens to a record that cannot be decoded.

    Attributes:
        tolerance: `quarantine` sets it aside, to be replayed (the default); `none` stops the table at the first.
        max_ratio: Share of a batch, 0 to 1, above which the table stops in spite of quarantine. Default 0.01.
        max_count: Records of a batch that may be rejected whatever their share. Default 0.
        raw: Whether the quarantine holds raw keys, values and headers: `keep`, or `drop` for records that hold
            personal data. What was dropped is brought again from staging or Kafka. Default `drop` where a column is
            masked, else `keep`.
    """

    tolerance: Literal["none", "quarantine"] = "quarantine"
    max_ratio: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.01
    max_count: Annotated[int, Field(strict=True, ge=0)] = 0
    raw: Literal["keep", "drop"] | None = None


class Maintenance(Strict):
    """What keeps the table, and the tables that belong to it, fast and small.

    Attributes:
        target_file_size: Bytes that a rewritten data file should have. Default 128 MB.
        min_input_files: Files of one partition that must be too small before they are rewritten. Default 5.
        delete_ratio: Share of a data file's rows, above 0 and up to 1, that deleted makes it worth rewriting.
            Default 0.3.
        strategy: How files are put together: `binpack` (the default) as they are, `sort` by `sort_by`, `zorder` by
            several columns alike.
        sort_by: Columns to sort by; not for binpack.
        rewrite_after: A partition by time is left alone until nothing was written into it for so long, unless it is
            overfull. Default 1 hour.
        rewrite_bytes: One run rewrites about so much; the next goes on. Default 16 GiB.
        snapshot_age: The rollback window: the table can be put back to any moment within it. Default 5 days.
        min_snapshots: Snapshots that are kept however old they are. Default 10.
        staging_retention: How long staging keeps the raw records of a batch after all tables of its topic have
            published it. Default 30 days, or 14 where a table of the topic hides what they hold; no less than
            `snapshot_age`.
        orphan_age: Files that no snapshot names are removed when they are older; at least a day. Default 3 days.
    """

    target_file_size: Annotated[int, Field(strict=True, ge=1 << 20)] = 128 << 20
    min_input_files: Annotated[int, Field(strict=True, ge=2)] = 5
    delete_ratio: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.3
    strategy: Literal["binpack", "sort", "zorder"] = "binpack"
    sort_by: Annotated[tuple[Identifier, ...], ListField] = ()
    rewrite_after: Duration = timedelta(hours=1)
    rewrite_bytes: Whole = 16 << 30
    snapshot_age: Duration = timedelta(days=5)
    min_snapshots: Whole = 10
    staging_retention: Duration | None = None
    orphan_age: Duration = timedelta(days=3)

    @model_validator(mode="after")
    def _safe(self) -> Self:
        flaws = Flaws()
        if self.orphan_age < ORPHAN_FLOOR:
            flaws.add("orphan_age", message="must be 1d or more: a younger file may be about to be committed")
        if self.staging_retention is not None and self.staging_retention < self.snapshot_age:
            message = "must be no less than snapshot_age: what is rolled back is published again from staging"
            flaws.add("staging_retention", message=message)
        if self.strategy == "binpack" and self.sort_by:
            flaws.add(
                "sort_by", message="strategy binpack sorts nothing: use strategy: sort or zorder, or leave it out"
            )
        elif len(self.sort_by) < (least := {"binpack": 0, "sort": 1, "zorder": 2}[self.strategy]):
            needs = "the columns to sort by" if least == 1 else "two columns or more; sort does for one"
            flaws.add("sort_by", message=f"strategy {self.strategy} needs {needs}")
        flaws.raise_any("Maintenance")
        return self


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
