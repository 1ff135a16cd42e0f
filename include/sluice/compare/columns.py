"""Pairs the columns of two tables: which identify a row, which are compared, by which type, and which are not and why.

In: a request, the contract and both schemas as Spark has them. Out: a `Pairing`, and expressions for its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.compare.request import COORDINATES, CompareRequest
from sluice.contract.contract import Contract
from sluice.contract.suggestions import did_you_mean
from sluice.errors import RefusedError
from sluice.formats.internal_columns import TO_JSON
from sluice.iceberg.sql_literals import quote_identifier

_DIGITS: dict[type[T.DataType], int] = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 20}
_PLAIN = (T.StringType, T.BinaryType, T.BooleanType, T.DateType)
_TIMES = (T.TimestampType, T.TimestampNTZType)
_NESTED = (T.StructType, T.ArrayType, T.MapType)
MAX_DIGITS = 38
EXACT_CELLS = 2.0**50
"""Above so many cells from zero a double can't tell neighbouring cells apart, so the value itself is hashed."""


@dataclass(frozen=True)
class ColumnPair:
    """A column that both tables have.

    Attributes:
        name: in Sluice's table.
        ours: its type there.
        other: its name in the other table.
        theirs: its type there.
        kind: the type that both are cast to, without maps: `normalize` makes lists of these.
        tolerance: the largest difference that counts as equal.
        masked: whether its values must not be shown.
    """

    name: str
    ours: T.DataType
    other: str
    theirs: T.DataType
    kind: T.DataType
    tolerance: Decimal | None = None
    masked: bool = False


@dataclass(frozen=True)
class Pairing:
    """The columns of a comparison.

    Attributes:
        not_compared: columns, and why they are not compared.
        notes: what a reader must know of how columns are compared.
    """

    key: tuple[ColumnPair, ...]
    values: tuple[ColumnPair, ...]
    not_compared: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def pair_columns(request: CompareRequest, contract: Contract, ours: T.StructType, theirs: T.StructType) -> Pairing:
    """Pair the columns of both tables by name; upper and lower case are the same, as in Spark.

    Raises:
        RefusedError: a column that the request or the key names is missing, or can't be compared.
    """
    names = _other_names(request, theirs)
    ours_by_name = {field.name: field for field in ours.fields}
    masked = {column.name for column in contract.columns if column.mask}
    for name in (*request.ignore, *request.tolerance, *request.columns.values(), *request.masked_alike):
        _check_name(name, ours_by_name, request.table)
    key = _key_names(request, contract, ours_by_name, names)
    pairs, left_out, notes = dict[str, ColumnPair](), list[tuple[str, str]](), list[str]()
    for field in ours.fields:
        name, other = field.name, names.get(field.name.lower())
        if name in request.ignore:
            left_out.append((name, "ignored on request"))
        elif other is None:
            left_out.append((name, f"{request.other} has no such column"))
        elif name in masked and name not in request.masked_alike:
            left_out.append((name, "it is masked in the contract"))
        else:
            kind = common_type(field.dataType, other.dataType)
            if kind is None:
                types = f"{field.dataType.simpleString()} and {other.dataType.simpleString()}"
                left_out.append((name, f"its types, {types}, have no common type"))
                continue
            tolerance = request.tolerance.get(name)
            pairs[name] = ColumnPair(
                name, field.dataType, other.name, other.dataType, kind, tolerance, masked=name in masked
            )
            notes += _notes(pairs[name])
    paired = {pair.other for pair in pairs.values()} | {
        names[n.lower()].name for n, _ in left_out if n.lower() in names
    }
    left_out += [(f.name, f"only {request.other} has it") for f in theirs.fields if f.name not in paired]
    reasons = dict(left_out)
    for name in (*key, *request.tolerance):
        if name not in pairs:
            raise RefusedError(
                f"Column {name!r} can't be compared: {reasons[name]}.",
                next_step=f"See `--masked-alike {name}`, or compare without it."
                if name in masked
                else "Compare without it, or with a view of the other table that has it in the same type.",
            )
    return Pairing(
        tuple(pairs[name] for name in key),
        tuple(pair for name, pair in pairs.items() if name not in key),
        tuple(left_out),
        tuple(notes),
    )


def _other_names(request: CompareRequest, theirs: T.StructType) -> dict[str, T.StructField]:
    """The other table's columns by the name that they have in Sluice's, in lower case."""
    given = {field.name.lower(): field for field in theirs.fields}
    renamed = {other.lower(): name.lower() for other, name in request.columns.items()}
    for other in request.columns:
        _check_name(other, given, request.other, lower=True)
    taken = set(renamed.values())
    return {renamed.get(name, name): field for name, field in given.items() if name in renamed or name not in taken}


def _check_name(name: str, known: Iterable[str], table: str, *, lower: bool = False) -> None:
    if (name.lower() if lower else name) not in known:
        raise RefusedError(f"{table} has no column {name!r}{did_you_mean(name, known)}.")


def _key_names(
    request: CompareRequest, contract: Contract, ours: Iterable[str], theirs: Iterable[str]
) -> tuple[str, ...]:
    """The columns that identify a row: those of the request, of the contract, or the Kafka coordinates."""
    if request.key:
        key = request.key
    elif contract.keyed:
        version = () if contract.upsert else (contract.valid_from,)
        key = tuple(dict.fromkeys((*contract.identifier, *version)))
    else:
        key = COORDINATES if contract.reads_several_topics or "_kafka_topic" in theirs else COORDINATES[1:]
    for name in key:
        if name not in ours or name.lower() not in theirs:
            missing = request.table if name not in ours else request.other
            renamed = "and `--columns THEIRS=OURS` where the other table has another name for one"
            raise RefusedError(
                f"{missing} has no column {name!r} to identify rows by.",
                next_step=f"Name columns that identify a row in both tables: `--key COL …`, {renamed}.",
            )
        if name in request.ignore or name in request.tolerance:
            raise RefusedError(f"Rows are identified by column {name!r}: it can't be ignored, nor have a tolerance.")
    return key


def _notes(pair: ColumnPair) -> Iterator[str]:
    if {type(pair.ours), type(pair.theirs)} == set(_TIMES):
        yield f"{pair.name}: the timestamp without time zone is read as UTC"
    elif isinstance(pair.kind, T.DoubleType) and {type(pair.ours), type(pair.theirs)} != {T.DoubleType}:
        yield f"{pair.name}: compared as double"
    if pair.tolerance is not None:
        seconds = " s" if isinstance(pair.kind, _TIMES) else ""
        yield f"{pair.name}: values up to {pair.tolerance}{seconds} apart are equal"
        if not isinstance(pair.kind, (*_TIMES, T.NumericType)):
            raise RefusedError(f"Column {pair.name!r} has type {pair.ours.simpleString()}, which takes no tolerance.")


def common_type(ours: T.DataType, theirs: T.DataType) -> T.DataType | None:
    """Return the type that holds the values of both, as Spark's comparisons widen types; None if there is none."""
    match ours, theirs:
        case T.StructType(fields=fields), T.StructType(fields=others):
            by_name = {each.name.lower(): each.dataType for each in others}
            kinds = [common_type(f.dataType, by_name.get(f.name.lower(), T.NullType())) for f in fields]
            if len(by_name) != len(fields) or None in kinds:
                return None
            return T.StructType([T.StructField(f.name, k) for f, k in zip(fields, kinds, strict=True) if k is not None])
        case T.ArrayType(elementType=one), T.ArrayType(elementType=another):
            element = common_type(one, another)
            return element and T.ArrayType(element)
        case T.MapType(), T.MapType():
            key, value = common_type(ours.keyType, theirs.keyType), common_type(ours.valueType, theirs.valueType)
            return T.MapType(key, value) if key is not None and value is not None else None
        case T.NumericType(), T.NumericType():
            return _common_number(ours, theirs)
    if isinstance(ours, _TIMES) and isinstance(theirs, _TIMES):
        return ours if type(ours) is type(theirs) else T.TimestampType()
    return ours if isinstance(ours, _PLAIN) and type(ours) is type(theirs) else None


def _common_number(ours: T.NumericType, theirs: T.NumericType) -> T.NumericType | None:
    if type(ours) is type(theirs) and not isinstance(ours, T.DecimalType):
        return ours
    if isinstance(ours, T.FractionalType) and not isinstance(ours, T.DecimalType):
        return T.DoubleType()
    if isinstance(theirs, T.FractionalType) and not isinstance(theirs, T.DecimalType):
        return T.DoubleType()
    if isinstance(ours, T.IntegralType) and isinstance(theirs, T.IntegralType):
        return T.LongType()
    (digits, scale), (other_digits, other_scale) = _decimal_size(ours), _decimal_size(theirs)
    wide, widest = max(scale, other_scale), max(digits, other_digits)
    return T.DecimalType(wide + widest, wide) if wide + widest <= MAX_DIGITS else None


def _decimal_size(kind: T.NumericType) -> tuple[int, int]:
    """Digits before and after the point."""
    if isinstance(kind, T.DecimalType):
        return kind.precision - kind.scale, kind.scale
    return _DIGITS[type(kind)], 0


def read_column(name: str, source: T.DataType, kind: T.DataType) -> Column:
    """A column of a table in its common type."""
    return normalize(F.col(quote_identifier(name)), source, kind)


def normalize(value: Column, source: T.DataType, kind: T.DataType) -> Column:
    """Cast a value to its common type: the fields of structs by name, maps as sorted lists of entries, 0.0 for -0.0."""
    match kind, source:
        case T.StructType(fields=fields), T.StructType(fields=given):
            types = {each.name.lower(): each.dataType for each in given}
            parts = [normalize(value[f.name], types[f.name.lower()], f.dataType).alias(f.name) for f in fields]
            return F.when(value.isNotNull(), F.struct(*parts))
        case T.ArrayType(elementType=wanted), T.ArrayType(elementType=given):
            return F.transform(value, lambda each: normalize(each, given, wanted))
        case T.MapType(), T.MapType():
            entries = F.transform(
                F.map_entries(value),
                lambda each: F.struct(
                    normalize(each["key"], source.keyType, kind.keyType).alias("key"),
                    normalize(each["value"], source.valueType, kind.valueType).alias("value"),
                ),
            )
            return F.array_sort(entries)
    cast = value if source == kind else value.cast(kind)
    return cast + F.lit(0.0).cast(kind) if isinstance(kind, T.FloatType | T.DoubleType) else cast


def hash_inputs(value: Column, pair: ColumnPair) -> list[Column]:
    """What the hash of a row takes of a value: equal inputs mean values that `same` calls equal.

    Spark's hash skips nulls, and (null, 1) and (1, null) would have one hash. So it also gets whether there is one.
    """
    if pair.tolerance is not None:
        return [*_cell(value, pair), value.isNull()]
    if isinstance(pair.kind, _NESTED):
        value = F.to_json(F.struct(value.alias("v")), TO_JSON)
    return [value, value.isNull()]


def _cell(value: Column, pair: ColumnPair) -> list[Column]:
    """The cell of a value, a quarter of the tolerance wide.

    Two values in one cell are within the tolerance, also after rounding of their quotients. So equal hashes hide no
    difference, and values within the tolerance that are in two cells only cost a look.
    """
    number, tolerance = _number(value, pair)
    cells = number.cast("double") / F.lit(float(tolerance) / 4)
    is_exact = F.abs(cells) < EXACT_CELLS
    index = F.when(is_exact, cells - F.pmod(cells, F.lit(1.0)))
    return [is_exact, index, F.when(is_exact, F.lit(None)).otherwise(number)]


def _number(value: Column, pair: ColumnPair) -> tuple[Column, Decimal]:
    """A value and its tolerance as numbers of one unit: of a timestamp microseconds."""
    tolerance = pair.tolerance or Decimal(0)
    if isinstance(pair.kind, _TIMES):
        return F.unix_micros(value.cast("timestamp")), tolerance * 1_000_000
    if isinstance(pair.kind, T.FloatType):
        return value.cast("double"), tolerance
    return value, tolerance


def same(one: Column, another: Column, pair: ColumnPair) -> Column:
    """Whether two values are equal: null is equal to null, NaN to NaN."""
    equal = one.eqNullSafe(another)
    if pair.tolerance is None:
        return equal
    (a, tolerance), (b, _) = _number(one, pair), _number(another, pair)
    # Null where it does not fit the type: then the values are far apart.
    distance = F.abs(F.try_subtract(a, b)) if isinstance(pair.kind, T.DecimalType) else F.abs(_difference(a, b, pair))
    return equal | F.coalesce(distance <= F.lit(tolerance if _is_exact(pair) else float(tolerance)), F.lit(False))


def _difference(a: Column, b: Column, pair: ColumnPair) -> Column:
    wide = "decimal(20,0)" if _is_exact(pair) else "double"
    return a.cast(wide) - b.cast(wide)


def _is_exact(pair: ColumnPair) -> bool:
    return not isinstance(pair.kind, T.FloatType | T.DoubleType)


def text_of(value: Column, pair: ColumnPair) -> Column:
    """A value as text for people; null stays null."""
    if isinstance(pair.kind, _NESTED):
        return F.to_json(value, TO_JSON)
    return F.hex(value) if isinstance(pair.kind, T.BinaryType) else value.cast("string")
