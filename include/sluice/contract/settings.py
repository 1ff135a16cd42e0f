"""Operational settings of a contract: limits of a run, error policy, maintenance, schema change policy."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, model_validator

from sluice.contract.values import Duration, FieldErrors, Identifier, ListField, PositiveInt, StrictModel

ChangePolicy = Literal["auto", "review", "ignore", "refuse"]

MIN_ORPHAN_AGE = timedelta(days=1)
"""Minimum age of orphan files: a writer may be about to commit younger ones."""


class Limits(StrictModel):
    """Limits of one run.

    Attributes:
        records_per_batch: Most records in one batch of a topic, and in one slice of a backfill.
        seconds_per_run: No further batch begins after so many seconds of a run. Less than the group's `timeout`.
        batches_per_run: Most batches of a topic in one run.
        batches_per_commit: Most waiting batches that one commit publishes together; fewer if the run's time is short.
    """

    records_per_batch: PositiveInt = 1_000_000
    seconds_per_run: PositiveInt = 240
    batches_per_run: PositiveInt = 20
    batches_per_commit: PositiveInt = 10


class ErrorPolicy(StrictModel):
    """What happens to a record that can't become a row.

    Attributes:
        tolerance: `quarantine` keeps the record for a later replay; `none` stops the table at the first one.
        max_ratio: Share of quarantined records in a batch above which the table stops in spite of `quarantine`.
        max_count: So many records of a batch may be quarantined whatever their share, so that one bad record of a small
            batch does not stop the table. Default 0 if `max_ratio` is 0.
        raw: Whether the quarantine holds raw keys, values and headers. With `drop`, records are replayed from staging
            or Kafka. Default: `drop` if a column has a `mask`, else `keep`.
        show_values: Whether the pages in Airflow show keys and values of the newest quarantined records. No effect
            where the quarantine holds none.
    """

    tolerance: Literal["none", "quarantine"] = "quarantine"
    max_ratio: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.01
    max_count: Annotated[int, Field(strict=True, ge=0)] = 10
    raw: Literal["keep", "drop"] | None = None
    show_values: StrictBool = False

    @model_validator(mode="before")
    @classmethod
    def _none_is_none(cls, data: object) -> object:
        """A contract that tolerates no share tolerates no record, unless it says so."""
        return {"max_count": 0, **data} if isinstance(data, dict) and data.get("max_ratio") == 0 else data


class Maintenance(StrictModel):
    """Maintenance of a table and of Sluice's own tables for it.

    Attributes:
        target_file_size: Size of a rewritten data file, in bytes. Files below half of it are small.
        min_input_files: A partition with so many small files is rewritten.
        delete_ratio: A data file of which this share of rows is deleted is rewritten.
        strategy: How small files of the typed table are combined: as they are, sorted, or z-ordered.
        sort_by: Columns to sort by: one or more for `sort`, two or more for `zorder` (no `decimal`). Not a column that
            is a partition by itself.
        rewrite_after: A partition by time is rewritten when nothing was written into it for so long.
        rewrite_bytes: About so many bytes of a table are rewritten in one run, in 2,000 files at most; the next run
            continues.
        snapshot_age: How long snapshots are kept: the table can be rolled back to any time within it.
        min_snapshots: So many snapshots are kept however old they are.
        staging_retention: How long staging keeps a batch's raw records after all tables of the topic have published it;
            not below `snapshot_age`. Default `30d`, or `14d` if a table of the topic has a `mask` or `errors.raw:
            drop`; at least `snapshot_age`.
        orphan_age: Files that no snapshot refers to are removed when they are older; at least `1d`.
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


class Retention(StrictModel):
    """How long the rows of a table stay.

    Only whole days are deleted; where the table is partitioned by month or year of the column, whole partitions.

    Attributes:
        column: A column of type `date`, `timestamp` or `timestamptz`. Rows without a value in it stay.
        keep: Rows stay for so long after the column's time; at least `1d`. Older records become no row.
    """

    column: Identifier
    keep: Duration

    def cutoff(self, now: datetime, transforms: Collection[str] = ()) -> date:
        """The day, in UTC, before which rows are deleted.

        Args:
            now: the time.
            transforms: the partition transforms on the column.
        """
        day = (now - self.keep).astimezone(UTC).date()
        if "year" in transforms:
            return day.replace(month=1, day=1)
        return day.replace(day=1) if "month" in transforms else day


class SchemaPolicy(StrictModel):
    """Schema change policy: what happens on each kind of change to the contract's shape once the table exists.

    `auto`: the table is changed before the next batch is published. `review`: the table continues with the active
    contract until the change is approved or rejected. `ignore`: the table continues as if nothing had changed.
    `refuse`: the table stops until the contract is restored.

    Attributes:
        add_column: A new column; in existing rows it is null.
        widen: `int` to `long`, `float` to `double`, a decimal of more digits with the same scale.
        make_optional: `required` is removed.
        reorder: The columns in another order; the Kafka coordinates stay behind them.
        document: Another `doc` of a column.
        drop_column: A column is removed; readers no longer see its values.
        rename_column: A column is renamed, by `renamed_from`.
        change_type: Any other type: the old column becomes `<name>_before_1`, and the new one begins empty. Not `auto`.
        make_required: Records without the column are errors from then on. Iceberg's column stays optional.
        change_key: `mode`, `identifier` or `valid_from`, which can't be approved; or how a column of the key or of
            `order` is read. Not `auto`.
        change_mask: A mask is removed or replaced, or a column without one reads a field that is or was masked.
        change_partitioning: Another `partition_by`, for what is written from then on.
        change_retention: Rows are deleted by another age, or by their age at all.
        upgrade_format: `format_version` 3 for a table of version 2: readers that lack it can't read the table any more,
            and there is no way back. Not `auto`.
        change_nested: A field is added to, dropped from, or widened in a struct, also inside lists and maps.
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
    change_retention: ChangePolicy = "review"
    upgrade_format: ChangePolicy = "review"
    change_nested: ChangePolicy = "review"

    @model_validator(mode="after")
    def _check(self) -> Self:
        errors = FieldErrors()
        for kind, why in {
            "change_type": "Iceberg can't change a type in place, so the old column is kept under another name",
            "change_key": "Iceberg can't change the key of existing rows",
            "upgrade_format": "Iceberg can't undo it",
        }.items():
            if getattr(self, kind) == "auto":
                errors.add(kind, message=f"can't be auto: {why}; use review, ignore or refuse")
        errors.raise_any("SchemaPolicy")
        return self
