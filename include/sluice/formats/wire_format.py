"""Confluent's wire format: a zero byte, the schema's id in four, and what was written with that schema.

A batch may hold any number of ids, of schemas that fit one another or not: its distinct ids are looked up first, and
each record is read with its own writer's schema. What can't be read says why, and never fails the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import or_

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.formats.convert import Meaning, UnfitError, fit, lost, plain, reading_schema
from sluice.formats.internal_columns import NO_PROBLEM, OTHER, Side, problem
from sluice.kafka.registry import Registry, WriterSchema

PREFIX = 5
MOST_IDS = 2000


@dataclass
class Framed:
    """What the prefixes of a batch say.

    Attributes:
        number: The schema's id, as a column; null where a record has no such prefix.
        known: The schemas that records of the batch were written with, of the kind that was asked for.
        refused: Which records can't be read because of their schema, and why.
        others: Which records are of a type that is not asked for.
    """

    side: Side
    number: Column
    known: dict[int, WriterSchema]
    refused: list[tuple[Column, Column]] = field(default_factory=list)
    others: list[Column] = field(default_factory=list)

    @property
    def payload(self) -> Column:
        """What comes after the prefix."""
        raw = F.col(self.side.raw)
        return F.substring(raw, F.lit(PREFIX + 1), F.length(raw))

    def refuse(self, applies: Column, number: int, error: UnfitError) -> None:
        """Note that records of this schema don't become what the columns want."""
        self.refused.append((applies, problem(f"in schema {number}, {error.told}", error.path or None)))

    def is_other(self, applies: Column, number: int, named: Callable[[], str | None]) -> bool:
        """Whether records of a type are not asked for; notes which these are, and those whose type has no name.

        Args:
            named: the type's name; asked for only where types are.
        """
        if not self.side.types or (name := named()) in self.side.types:
            return False
        if name is None:
            words = "the type has no name, and the contract takes types by their names alone"
            self.refuse(applies, number, UnfitError("", words))
        else:
            self.others.append(applies)
        return True

    def other(self) -> dict[str, Column]:
        """The column `OTHER`, where the side names types."""
        return {OTHER: F.coalesce(reduce(or_, self.others, F.lit(False)), F.lit(False))} if self.side.types else {}

    def problem(self, fields: Column) -> Column:
        """What is wrong with a record, given its fields (null where its bytes were not read).

        Of records that `OTHER` is true of, it means nothing.
        """
        raw, what = F.col(self.side.raw), self.side.raw
        first = F.hex(F.substring(raw, 1, 1))
        short = f"the {what} is shorter than the {PREFIX} bytes that name its schema"
        said = F.when(raw.isNull(), F.lit(None).cast(NO_PROBLEM)).when(F.length(raw) < PREFIX, problem(short))
        said = said.when(first != "00", problem(f"the {what} does not begin with the magic byte 0 of the wire format"))
        for applies, why in self.refused:
            said = said.when(applies, why)
        unknown = F.concat(F.lit("the schema registry has no schema "), self.number.cast("string"))
        said = said.when(~self.number.isin([*self.known, -1]), problem(unknown))
        named = F.concat(F.lit(f"the {what} is not what was written with schema "), self.number.cast("string"))
        return said.when(fields.isNull(), problem(F.concat(named, F.lit(": truncated or damaged"))))


def framed(frame: DataFrame, side: Side, kind: str) -> Framed:
    """Look up the schemas of a batch, those of its `MOST_IDS` most frequent ids.

    Raises:
        RegistryUnavailableError: The registry is away, and one of the ids was never seen.
    """
    raw = F.col(side.raw)
    starts = (F.length(raw) >= PREFIX) & (F.hex(F.substring(raw, 1, 1)) == "00")
    number = F.when(starts, F.conv(F.hex(F.substring(raw, 2, 4)), 16, 10).cast("long"))
    # Garbage that begins like the wire format makes up any number of them: the real ones have most records.
    counted = frame.where(starts).groupBy(number.alias("id")).count().orderBy(F.desc("count"), "id")
    ids = [row["id"] for row in counted.limit(MOST_IDS + 1).collect()]
    found = {number: s for number, s in Registry().schemas(ids[:MOST_IDS]).items() if s}
    result = Framed(side, number, {n: s for n, s in found.items() if s.kind == kind})
    if len(ids) > MOST_IDS:
        rare = F.concat(
            F.lit(f"the {side.raw} names schema "),
            number.cast("string"),
            F.lit(f", which is not among the {MOST_IDS} most frequent of the batch: others are not looked up"),
        )
        result.refused.append((~number.isin(ids[:MOST_IDS]), problem(rare)))
    for other, schema in found.items():
        if schema.kind != kind:
            why = f"schema {other} is of the kind {schema.kind}, and the contract's format {kind}"
            result.refused.append((number == other, problem(why)))
    return result


@dataclass(frozen=True)
class Decoded:
    """How records of one schema are read.

    Attributes:
        read: What decodes them: costly, and done once for a record.
        opened: From what was read to the struct of fields, null where the bytes are not of the schema.
        means: What the schema says of whole numbers that are more than that.
    """

    read: Column
    opened: Callable[[Column], Column] = lambda it: it
    means: Meaning = plain


@dataclass(frozen=True)
class Variant:
    """Records that are read in one way.

    Attributes:
        applies: Which these are.
        payload: The bytes after the prefix.
        message: Of Protobuf, where the message's type stands in the schema.
    """

    schema: WriterSchema
    applies: Column
    payload: Column
    message: tuple[int, ...] = ()


Decoder = Callable[[Variant], Decoded]
"""How a variant is read; UnfitError where no column can hold what the schema says."""
Splitter = Callable[[DataFrame, Framed], Iterable[Variant]]
"""The ways in which records of a batch are read; it may look at them."""
Namer = Callable[[Variant], str | None]
"""The name of a variant's type; None where it has none."""


def by_id(_: DataFrame, found: Framed) -> list[Variant]:
    """One way for each schema."""
    return [Variant(schema, found.number == number, found.payload) for number, schema in found.known.items()]


def by_schema(
    frame: DataFrame,
    wanted: T.StructType,
    side: Side,
    kind: str,
    decoder: Decoder,
    named: Namer,
    split: Splitter = by_id,
) -> DataFrame:
    """Read each record with its own writer's schema, and bring it to the wanted fields by name."""
    found = framed(frame, side, kind)
    reads: dict[str, Column] = {}
    each: list[tuple[Column, Column]] = []
    for index, variant in enumerate(split(frame, found)):
        name = f"{side.fields}_{index}"
        try:
            with reading_schema():
                if found.is_other(variant.applies, variant.schema.id, partial(named, variant)):
                    continue
                decoded = decoder(variant)
                opened = decoded.opened(F.col(name))
                shape = _type(frame.select(decoded.read.alias(name)), opened)
                each.append((variant.applies, fit(opened, shape, wanted, decoded.means)))
        except UnfitError as error:
            found.refuse(variant.applies, variant.schema.id, error)
            continue
        reads[name] = F.when(variant.applies, decoded.read)
        for path, type_, nothing in lost(opened, F.col(side.fields), shape, wanted, decoded.means):
            found.refuse(nothing, variant.schema.id, UnfitError(path, f"holds a value that is no {type_}"))
    # Apart from what takes them to pieces, or Spark would decode a record once for each of its fields.
    frame = frame.withColumns(reads)
    none = F.when(F.lit(False), F.lit(None).cast(wanted))
    fields = reduce(lambda at, one: at.when(*one), each, none)
    frame = frame.withColumns({side.fields: fields, **found.other()})
    return frame.withColumn(side.problem, found.problem(F.col(side.fields))).drop(*reads)


def _type(frame: DataFrame, column: Column) -> T.DataType:
    """The type that Spark gives a decoded schema."""
    try:
        return frame.select(column.alias("it")).schema["it"].dataType
    except (PySparkException, Py4JJavaError) as error:  # each by itself: one bad schema is not the others' end
        raise UnfitError("", f"there is something that Spark does not read ({type(error).__name__})") from error
