"""Compiles the contract's expressions: computed columns, and the condition that records must meet.

In: decoded columns and inputs. Out: computed columns, and the expression that failed on a record. Only deterministic
functions of one record are accepted, since a batch must give the same rows whenever it is published again.
"""

from __future__ import annotations

import re

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract.contract import Contract
from sluice.contract.values import KAFKA_COLUMNS
from sluice.errors import ContractError
from sluice.formats.compat import (
    CatalystNode,
    analyzed_nodes,
    catalyst_class,
    is_projection_of_leaf,
    reads_special_datetimes,
)
from sluice.formats.convert import all_leaves, is_utf8
from sluice.formats.logical_types import BELOW_MICROS, ExactDecimalType, spark_type, to_decimal, within_calendar

TRIED_PREFIX = "_sluice_tried_"
WHERE = "where"
_INFINITE = float("inf")
_COARSER = (T.DecimalType, T.IntegerType, T.LongType, T.DateType)
"""Types to which a cast of a fraction or a moment may round."""
_INFINITE_TEXT = r"(?i)^\s*[+-]?inf(inity)?\s*$"

MAX_REGEX_TEXT = 16_384
"""Characters of a text that a recursive regex is matched against: so many fit the stack (`jvm.THREAD_STACK_SIZE`)."""

_REGEX_FUNCTIONS = {"regexp", "rlike", "split", "str_to_map"} | {
    f"regexp_{what}" for what in ("count", "extract", "extract_all", "instr", "like", "replace", "substr")
}
_REPEATED_GROUP = re.compile(r"(?:\)|\\[RX])\s*[*+{]")
_RUN_TIME = "the time of the run, which differs when the batch is published again"
_REFUSED = {
    "PlanExpression": "a subquery",
    "aggregate.AggregateExpression": "an aggregate",
    "WindowExpression": "a window function",
    "Generator": "a function that returns several rows",
    "CallMethodViaReflection": "a call into Java",
    "UserDefinedExpression": "a function that is not Spark's own",
    "CurrentDate": _RUN_TIME,
    "CurrentTimestampLike": _RUN_TIME,
    "LocalTimestamp": _RUN_TIME,
    "CurrentTime": _RUN_TIME,
    "CurrentUser": "the user who runs it",
    "CurrentCatalog": "the place where it runs",
    "CurrentDatabase": "the place where it runs",
    "CurrentTimeZone": "the place where it runs",
    "SparkVersion": "the place where it runs",
    "VariableReference": "a session variable",
}
_RUN_TIME_PROBLEM = f"it contains {_RUN_TIME}"
_REFLECTION = {"java_method", "reflect", "try_reflect"}
# Literals that Spark's parser replaces by the time of the run.
_RUN_TIME_LITERAL = re.compile(
    r"\b(?:date|timestamp(?:_ntz|_ltz)?)(?:\s|/\*.*?\*/|--[^\n]*)*r?(['\"])\s*"
    r"(?:(?:now|today|tomorrow|yesterday)\b|T[0-9]|[0-9]{1,2}:)",
    re.IGNORECASE | re.DOTALL,
)
_TIME_WITHOUT_DATE = r"^[\x00-\x20\x7f]*(?:T|[0-9]{1,2}:)"
"""Texts that Spark casts to a timestamp of the current day, if to any: `12:30`, `T12`."""
_WHOLE_TEXT: dict[type[T.DataType], str] = {
    T.DateType: r"^\s*[+-]?[0-9]+(?:-[0-9]+){0,2}\s*$",
    T.TimestampNTZType: r"^\s*[+-]?[0-9]+(?:-[0-9]+){0,2}(?:[T ][0-9:.]*)?\s*$",
}
"""Texts of which Spark's cast uses all; of others it drops what follows the day, or the zone."""
_TEXT_READERS = {"JsonToStructs", "CsvToStructs", "XmlToStructs", "VariantGet"}
"""Functions that read texts by a schema; without a format, they read timestamps like Spark's cast."""
_TIMESTAMP_FUNCTIONS = {"timestamp", "to_timestamp", "to_timestamp_ltz", "try_to_timestamp"}


def add_computed_columns(
    frame: DataFrame, contract: Contract, is_upsert: Column, is_readable: Column, is_filtered: Column
) -> tuple[DataFrame, Column, Column]:
    """Add the contract's computed columns.

    Args:
        frame: Records with columns and inputs under their names.
        contract: Has the expressions.
        is_upsert: Records for which columns are computed; they are null for others.
        is_readable: Records for which columns that identify or order rows are computed.
        is_filtered: Records that `where` may exclude.

    Returns:
        The frame; the first column, or `where`, that failed on a record, else null; and whether the record is kept.

    Raises:
        ContractError: An expression is not accepted.
    """
    key_columns = (*contract.identifier, *contract.order)
    tried, values, failures = {}, {}, []
    for column in contract.columns:
        if column.expression:
            applies = is_readable if column.name in key_columns else is_upsert
            kind = spark_type(column.type)
            result = _compile(frame, contract, column.name, column.expression, kind)
            tried[TRIED_PREFIX + column.name] = F.when(applies, result)
            value = F.col(TRIED_PREFIX + column.name)["v"]
            # A cast of binary makes a string of any bytes, and functions make dates beyond the years 1 to 9999, which
            # not every reader of the table could read.
            found = all_leaves(value, kind, _is_readable)
            is_valid = F.lit(True) if found is None else F.coalesce(found, F.lit(True))
            values[column.name] = F.when(is_valid, value)
            failed = F.col(TRIED_PREFIX + column.name).isNull() | ~is_valid
            failures.append(F.when(applies & failed, F.lit(column.name)))
    is_kept, where_failed = F.lit(True), F.lit(False)
    if contract.where:
        tried[TRIED_PREFIX] = F.when(is_filtered, _compile(frame, contract, WHERE, contract.where, None))
        where_failed = is_filtered & F.col(TRIED_PREFIX).isNull()
        is_kept = ~is_filtered | F.coalesce(F.col(TRIED_PREFIX)["v"], F.lit(False)) | where_failed
    # A projection of its own: otherwise a struct that is read twice would be computed twice.
    frame = frame.withColumns(tried).withColumns(values)
    # Failures of columns do not count for records that `where` excludes.
    none = F.lit(None).cast("string")
    return frame, F.when(where_failed, F.lit(WHERE)).when(is_kept, F.coalesce(*failures, none)), is_kept


def _is_readable(value: Column, kind: T.DataType) -> Column | None:
    if isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType):
        return within_calendar(value, kind).isNotNull() | value.isNull()
    return is_utf8(value, kind)


def regex_recurses(regex: str) -> bool:
    """Whether Java's matcher may recurse for each character of a text: where a group is repeated."""
    return bool(_REPEATED_GROUP.search(regex))


def _compile(frame: DataFrame, contract: Contract, name: str, text: str, kind: T.DataType | None) -> Column:
    """Compile an expression to a struct that holds the value as `v`, or is null if the computation failed.

    Args:
        frame: Has the columns that the expression may use.
        contract: Has the expression.
        name: Its column, or `where`.
        text: The expression.
        kind: The type that it is cast to; None for a condition.
    """
    spark = frame.sparkSession
    try:
        problem = _RUN_TIME_PROBLEM if _RUN_TIME_LITERAL.search(text) else None
        parsed = CatalystNode.parse(spark, text)
        problem = problem or next(filter(None, map(_function_problem, parsed.tree())), None)
        if not problem:
            # Analyzed with the allowed columns alone: the record's raw bytes are not among them.
            empty = spark.createDataFrame([], T.StructType([frame.schema[c] for c in _allowed_columns(contract)]))
            guarded = _guard(spark, parsed)
            plain = empty.select(parsed.column())
            problem = _expression_problem(spark, plain, is_condition=kind is None)
            problem = problem or _cast_problem(empty.select(guarded.column()), kind)
            # The optimizer raises AnalysisException for a literal that cannot be cast.
            cast = parsed.column().cast(kind or T.BooleanType())
            if not problem and reads_special_datetimes(empty.select(cast)):
                problem = _RUN_TIME_PROBLEM
    except (AnalysisException, ParseException) as error:
        problem = str(error).strip().splitlines()[0][:300]
    if problem:
        subject = "where" if name == WHERE else f"The expression of column {name}"
        raise ContractError(
            f"{subject} is not accepted: {problem}.",
            next_step="Use columns with a source, inputs, _kafka_* columns, and built-in functions of one record.",
            table=contract.table,
        )
    value = _cast(guarded.column(), plain.schema[0].dataType, kind)
    if kind and name in contract.identifier:
        value = _reject_rounding(guarded.column(), plain.schema[0].dataType, value, kind)
    return CatalystNode.from_column(spark, F.struct(value.alias("v"))).try_eval().column()


def _allowed_columns(contract: Contract) -> list[str]:
    columns = [c.name for c in contract.columns if c.source and not c.is_valid_to]
    return [*columns, *(i.name for i in contract.inputs), *KAFKA_COLUMNS]


def _cast(column: Column, have: T.DataType, want: T.DataType | None) -> Column:
    """Cast a value to its column's type; fails where Spark's cast would yield null or use today's date."""
    if want is None:
        return column
    if _may_lack_date(have, want):
        return _reject_time_without_date(column).cast(want)
    if whole := _whole_text(have, want):
        is_cut = F.when(~column.rlike(whole), F.raise_error(F.lit("the cast would drop a part of the text")))
        return is_cut.otherwise(column.cast(want))
    if _may_become_null(have, want):
        is_lost = column.isNotNull() & column.cast(want).isNull()
        return F.when(is_lost, F.raise_error(F.lit("the number does not fit"))).otherwise(column.cast(want))
    if _may_become_infinite(have, want):
        is_infinite = F.abs(column) == _INFINITE if isinstance(have, T.DoubleType) else column.rlike(_INFINITE_TEXT)
        is_lost = (F.abs(column.cast(want)) == _INFINITE) & ~is_infinite
        return F.when(is_lost, F.raise_error(F.lit("the number does not fit"))).otherwise(column.cast(want))
    return column.cast(want)


def _reject_rounding(column: Column, have: T.DataType, value: Column, want: T.DataType) -> Column:
    """The value of a key's column; an error where the cast rounded it, which would make one row of two."""
    if isinstance(have, T.StringType) and isinstance(want, T.DecimalType):
        is_rounded = (
            column.isNotNull() & to_decimal(F.trim(column), ExactDecimalType(want.precision, want.scale)).isNull()
        )
    elif isinstance(have, T.FractionalType | T.TimestampType | T.TimestampNTZType) and isinstance(want, _COARSER):
        is_rounded = ~value.cast(have).eqNullSafe(column)
    elif isinstance(have, T.StringType) and isinstance(want, T.TimestampType | T.TimestampNTZType):
        is_rounded = column.rlike(BELOW_MICROS)
    else:
        return value
    return F.when(is_rounded, F.raise_error(F.lit("a key would be rounded"))).otherwise(value)


def _may_lack_date(have: T.DataType, want: T.DataType) -> bool:
    return isinstance(have, T.StringType) and isinstance(want, T.TimestampType)


def _whole_text(have: T.DataType, want: T.DataType) -> str | None:
    """A regex for the texts of which Spark's cast uses all; None if it uses all of any text that it accepts."""
    return _WHOLE_TEXT.get(type(want)) if isinstance(have, T.StringType) else None


def _may_become_null(have: T.DataType, want: T.DataType) -> bool:
    """Whether Spark casts values that do not fit to null, even in ANSI mode."""
    return isinstance(have, T.FloatType | T.DoubleType) and isinstance(want, T.DecimalType)


def _may_become_infinite(have: T.DataType, want: T.DataType) -> bool:
    """Whether Spark casts numbers that are too large to infinity, even in ANSI mode."""
    from_text = isinstance(have, T.StringType) and isinstance(want, T.FloatType | T.DoubleType)
    return from_text or (isinstance(have, T.DoubleType) and isinstance(want, T.FloatType))


def _reject_time_without_date(text: Column, instead: Column | None = None) -> Column:
    """The value; where it is a time without a date, `instead`, or an error."""
    replacement = F.raise_error(F.lit("a time without a date")) if instead is None else instead
    return F.when(text.cast("string").rlike(_TIME_WITHOUT_DATE), replacement).otherwise(text)


def _guard(spark: SparkSession, node: CatalystNode) -> CatalystNode:
    """The expression with errors, in lambdas too, where it would read today's date, or a regex could fill the stack.

    Spark treats a stack overflow as fatal.
    """
    children = node.children()
    guarded = [_guard(spark, each) for each in children]
    text = _text_of_recursive_regex(node, children)
    # The regex keeps its unguarded text: where the guarded one is short enough, both are equal.
    arguments = [each if each is text else instead for each, instead in zip(children, guarded, strict=True)]
    if (yields_null := _reads_timestamp(node)) is not None:
        checked = _reject_time_without_date(arguments[0].column(), F.lit(None) if yields_null else None)
        arguments[0] = CatalystNode.from_column(spark, checked)
    if any(new is not old for new, old in zip(arguments, children, strict=True)):
        node = node.with_children(arguments)
    if text is None:
        return node
    is_too_long = F.length(guarded[0].column()) > MAX_REGEX_TEXT
    limited = F.when(is_too_long, F.raise_error(F.lit("too long"))).otherwise(node.column())
    return CatalystNode.from_column(spark, limited)


def _reads_timestamp(node: CatalystNode) -> bool | None:
    """Whether a node that reads a text as a timestamp yields null for other texts; None if it reads none."""
    if node.class_name == "Cast":
        return node.is_try_cast() if node.type_name() == "timestamp" else None
    name = _last_name(node)
    is_reader = name in _TIMESTAMP_FUNCTIONS and len(node.children()) == 1
    return name.startswith("try_") if is_reader else None


def _text_of_recursive_regex(node: CatalystNode, children: list[CatalystNode]) -> CatalystNode | None:
    """The text that a node matches against a regex that may recurse; None if there is none."""
    name = _last_name(node)
    if node.class_name != "RLike" and name not in _REGEX_FUNCTIONS:
        return None
    regexes = children[1 : 3 if name == "str_to_map" else 2]
    if all(each.class_name == "Literal" and not regex_recurses(each.text()) for each in regexes):
        return None
    return children[0]


def _last_name(node: CatalystNode) -> str:
    return str(node.function_name()[-1]).lower() if node.function_name() else ""


def _function_problem(node: CatalystNode) -> str | None:
    """What is wrong with a function, by its name alone: a lookup would load the class that it names."""
    name = node.function_name()
    if len(name) > 1:
        return f"{'.'.join(name)} is a function of a catalog"
    return f"{name[0]} is a call into Java" if name and name[0].lower() in _REFLECTION else None


def _expression_problem(spark: SparkSession, analyzed: DataFrame, *, is_condition: bool) -> str | None:
    """Why an analyzed expression is not a deterministic function of one record; None if it is one."""
    nodes = analyzed_nodes(analyzed)
    refused = {catalyst_class(spark, name): what for name, what in _REFUSED.items()}
    for node in nodes:
        if node.class_name == "AesEncrypt" and node.aes_mode() != "ECB":
            return "it contains a random number; only mode ECB has none"
        for java_class, what in refused.items():
            if node.is_instance(java_class):
                return f"it contains {what}"
    if not is_projection_of_leaf(analyzed):
        return "it is not a function of one record"
    if len(analyzed.columns) != 1:
        return "it has more than one value"
    if not all(node.is_deterministic() for node in nodes):
        return "it is not deterministic"
    kind = analyzed.schema[0].dataType
    return f"it is {kind.simpleString()}, not a condition" if is_condition and kind != T.BooleanType() else None


def _cast_problem(analyzed: DataFrame, kind: T.DataType | None) -> str | None:
    """What is wrong with implicit casts: Spark's own, and the one to the column's type."""
    for node in analyzed_nodes(analyzed):
        if problem := _inner_timestamp_problem(node):
            return problem
        if node.class_name != "Cast" or node.type_name() != "timestamp":
            continue
        child = node.children()[0]
        if child.type_name() != "string" or _TIME_WITHOUT_DATE in child.text():
            continue
        if child.class_name != "Literal":
            return "it implicitly casts a text to a timestamp: write CAST(… AS TIMESTAMP)"
        if re.match(_TIME_WITHOUT_DATE, child.text()):
            return _RUN_TIME_PROBLEM
    if kind is not None and (pair := _unsafe_inner_cast(analyzed.schema[0].dataType, kind)):
        have, want = (each.simpleString() for each in pair)
        return f"it contains {have} that would become {want} inside another type: cast it"
    if kind is not None and (field := _misplaced_field(analyzed.schema[0].dataType, kind)):
        return f"field {field} is not where its column has it, and Spark casts structs by position: use its order"
    return None


def _inner_timestamp_problem(node: CatalystNode) -> str | None:
    """Why texts within a value may be read as timestamps of the current day; None if they are not."""
    if node.class_name in _TEXT_READERS and "timestampformat" not in node.text().lower():
        problem = "it reads texts as timestamps by a schema: read strings, and write CAST(… AS TIMESTAMP)"
        return problem if _has_timestamp(node.data_type()) else None
    if node.class_name != "Cast" or isinstance(want := node.data_type(), T.TimestampType) or not _has_timestamp(want):
        return None
    if node.children()[0].type_name() != "variant" and not _casts_text(node.children()[0].data_type(), want):
        return None
    return "it casts texts within another type to timestamps: cast each, as in transform(x, e -> CAST(e AS TIMESTAMP))"


def _has_timestamp(kind: T.DataType) -> bool:
    return isinstance(kind, T.TimestampType) or any(map(_has_timestamp, _parts(kind)))


def _casts_text(have: T.DataType, want: T.DataType) -> bool:
    """Whether a cast between two types makes a timestamp of a text."""
    return _may_lack_date(have, want) or any(map(_casts_text, _parts(have), _parts(want)))


def _parts(kind: T.DataType) -> list[T.DataType]:
    """The types in a list, a map or a struct."""
    match kind:
        case T.ArrayType(elementType=element):
            return [element]
        case T.MapType(keyType=key, valueType=value):
            return [key, value]
        case T.StructType(fields=fields):
            return [f.dataType for f in fields]
    return []


def _misplaced_field(have: T.DataType, want: T.DataType) -> str | None:
    """The first field of a struct that a cast, which goes by position, would make another field of the wanted type."""
    if isinstance(have, T.StructType) and isinstance(want, T.StructType):
        known = [name.lower() for name in want.names]
        for name, other in zip(have.names, known, strict=False):
            if name.lower() != other and name.lower() in known:
                return str(name)
    return next(filter(None, map(_misplaced_field, _parts(have), _parts(want))), None)


def _unsafe_inner_cast(
    have: T.DataType, want: T.DataType, *, is_inner: bool = False
) -> tuple[T.DataType, T.DataType] | None:
    """The types of a cast inside a nested type that would yield null or infinity, use today's date, or cut a text."""
    is_unsafe = (
        _may_become_null(have, want)
        or _may_lack_date(have, want)
        or bool(_whole_text(have, want))
        or (isinstance(have, T.DoubleType) and _may_become_infinite(have, want))
    )
    if is_inner and is_unsafe:
        return have, want
    pairs = zip(_parts(have), _parts(want), strict=False)
    return next(filter(None, (_unsafe_inner_cast(x, y, is_inner=True) for x, y in pairs)), None)
