"""What is compared with what: a request, checked before Spark starts. In: a form's or command's values."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from sluice.errors import RefusedError

Name = Annotated[str, Field(min_length=1)]
Tolerance = Annotated[Decimal, Field(gt=0, allow_inf_nan=False)]
Offset = Annotated[int, Field(ge=0, lt=2**63)]
COORDINATES = ("_kafka_topic", "_kafka_partition", "_kafka_offset")
TIME_COLUMN = "_kafka_timestamp"


class CompareRequest(BaseModel):
    """A comparison. Columns have the names of Sluice's table, except for the keys of `columns`.

    Attributes:
        table: the typed table.
        other: the table or view to compare with: `namespace.table`, or `catalog.namespace.table`.
        key: the columns that identify a row; empty: those of the contract.
        time_column: the column of times, for `since` and `until`, and for the other table's freshness.
        since: only rows from this time on.
        until: only rows before this time.
        offsets: only these offset ranges, by partition.
        ignore: columns that are not compared.
        tolerance: by column, the largest difference that counts as equal; for timestamps in seconds.
        columns: the other table's names of columns, and the names that these have in Sluice's table.
        masked_alike: masked columns that the other table has with the same mask and key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: Annotated[str, Field(pattern=r"^[^.]+(\.[^.]+)+$")]
    other: Annotated[str, Field(pattern=r"^[^.]+(\.[^.]+)+$")]
    key: tuple[Name, ...] = ()
    time_column: Name = TIME_COLUMN
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    offsets: dict[Annotated[int, Field(ge=0)], tuple[Offset, Offset]] = {}
    ignore: tuple[Name, ...] = ()
    tolerance: dict[Name, Tolerance] = {}
    columns: dict[Name, Name] = {}
    masked_alike: tuple[Name, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.table == self.other:
            raise ValueError("a table can't be compared with itself: name another one")
        if self.since and self.until and self.since >= self.until:
            raise ValueError("`from` is not before `to`")
        if empty := [p for p, (start, end) in self.offsets.items() if start >= end]:
            raise ValueError(
                f"the range of partition {empty[0]} is empty: its end is the first offset that is left out"
            )
        if len(set(self.columns.values())) < len(self.columns):
            raise ValueError("two of the other table's columns are given the same name")
        if both := sorted(set(self.ignore) & set(self.tolerance)):
            raise ValueError(f"column {both[0]!r} is ignored, and has a tolerance")
        return self

    @property
    def window(self) -> str:
        """Which rows are compared, in words; empty: all."""
        parts = []
        if self.since:
            parts.append(f"{self.time_column} from {self.since.isoformat()}")
        if self.until:
            parts.append(f"{self.time_column} before {self.until.isoformat()}")
        if self.offsets:
            parts.append("offsets " + ", ".join(f"{p}: {s:,} to {e - 1:,}" for p, (s, e) in self.offsets.items()))
        return "; ".join(parts)


def make_request(given: Mapping[str, Any]) -> CompareRequest:
    """Make a request from the values of a form or a command; those that are None are left out.

    Raises:
        RefusedError: with everything that is wrong.
    """
    try:
        return CompareRequest.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise RefusedError(
            f"{'; '.join(map(_message, error.errors()))}.", next_step="Correct it, and compare again."
        ) from error


def _message(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    text = error["msg"].removeprefix("Value error, ")
    return f"{where}: {text}" if where else text


def parse_pairs(texts: list[str], option: str) -> dict[str, str]:
    """Parse `NAME=VALUE` texts; the last `=` divides.

    Raises:
        RefusedError: one has no `=`, or names something twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, divider, value = text.rpartition("=")
        if not (divider and name and value) or name in found:
            raise RefusedError(f"{option} {text!r} is not a new NAME=VALUE.", next_step="Write each name once.")
        found[name] = value
    return found
