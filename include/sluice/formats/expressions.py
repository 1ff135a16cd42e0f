"""Expressions of a contract: columns that are computed from what was read, and the condition that a record must meet.

Spark parses, analyses and runs them. What is not a plain function of one record is refused: a batch must come out the
same whenever it is published again. A record that an expression fails on is an error of that record alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract.contract import Contract
from sluice.contract.values import KAFKA_COLUMNS
from sluice.errors import ContractError
from sluice.formats.convert import text_in
from sluice.formats.logical_types import spark_type

TRIED = "_sluice_tried_"
WHERE = "where"

LONGEST = 16_384
"""Characters of a text that a regex is held against if it `recurses`: so many fit the stack (`jvm.STACK`)."""

_REGEXES = {"regexp", "rlike", "split", "str_to_map"} | {
    f"regexp_{what}" for what in ("count", "extract", "extract_all", "instr", "like", "replace", "substr")
}
_REPEATED = re.compile(r"(?:\)|\\[RX])\s*[*+{]")
_CATALYST = "org.apache.spark.sql.catalyst.expressions."
_RUN = "the time of the run, which is another one when the batch is published again"
_REFUSED = {
    "PlanExpression": "a subquery",
    "aggregate.AggregateExpression": "an aggregate",
    "WindowExpression": "a window function",
    "Generator": "a function that makes several rows",
    "CallMethodViaReflection": "a call into Java",
    "UserDefinedExpression": "a function that is not Spark's own",
    "CurrentDate": _RUN,
    "CurrentTimestampLike": _RUN,
    "LocalTimestamp": _RUN,
    "CurrentTime": _RUN,
    "CurrentUser": "who runs it",
    "CurrentCatalog": "where it runs",
    "CurrentDatabase": "where it runs",
    "CurrentTimeZone": "where it runs",
    "SparkVersion": "where it runs",
    "VariableReference": "a variable of the session",
}
_REFLECTION = {"java_method", "reflect", "try_reflect"}
# Spark's parser makes a plain value of these, which is another one at each run.
_MOMENT = re.compile(
    r"\b(?:date|timestamp(?:_ntz|_ltz)?)(?:\s|/\*.*?\*/|--[^\n]*)*r?(['\"])\s*"
    r"(?:(?:now|today|tomorrow|yesterday)\b|T?[0-9]{1,2}:)",
    re.IGNORECASE | re.DOTALL,
)
# And reads a text that has no day as a moment of the run's.
_DAYLESS = r"^\s*T?[0-9]{1,2}:"
_READS_MOMENT = {"timestamp", "to_timestamp", "to_timestamp_ltz", "try_to_timestamp"}


def computed(
    frame: DataFrame, contract: Contract, applies: Column, keyed: Column, routed: Column
) -> tuple[DataFrame, Column, Column]:
    """Add the columns that are computed.

    Args:
        frame: with what columns and inputs read, under their names.
        applies: for which records a column is computed; for others it is null.
        keyed: the same for a column that identifies or orders rows.
        routed: for which records `where` is asked; others are taken.

    Returns:
        The frame; the first column, or `where`, that failed on a record, else null; and whether the record is taken.

    Raises:
        ContractError: an expression is none that Sluice takes.
    """
    needed = {c.name: keyed if c.name in (*contract.identifier, *contract.order) else applies for c in contract.columns}
    none = F.lit(None).cast("string")
    tried, values, failed = {}, {}, []
    for column in contract.columns:
        if column.expression:
            it = _expression(frame, contract, column.name, column.expression, spark_type(column.type))
            tried[TRIED + column.name] = F.when(needed[column.name], it)
            value = F.col(TRIED + column.name)["v"]
            # A cast of bytes makes a text of whatever they are; no reader of the table could read on there.
            is_text = text_in(value, spark_type(column.type))
            sound = F.lit(True) if is_text is None else F.coalesce(is_text, F.lit(True))
            values[column.name] = F.when(sound, value)
            lost_here = F.col(TRIED + column.name).isNull() | ~sound
            failed.append(F.when(needed[column.name] & lost_here, F.lit(column.name)))
    taken, lost = F.lit(True), F.lit(False)
    if contract.where:
        tried[TRIED] = F.when(routed, _expression(frame, contract, WHERE, contract.where, None))
        lost = routed & F.col(TRIED).isNull()
        taken = ~routed | F.coalesce(F.col(TRIED)["v"], F.lit(False)) | lost
    # A projection of its own: a struct that is read twice must not be computed twice.
    frame = frame.withColumns(tried).withColumns(values)
    # Columns are no concern of a record that is another table's.
    return frame, F.when(lost, F.lit(WHERE)).when(taken, F.coalesce(*failed, none)), taken


def _expression(frame: DataFrame, contract: Contract, name: str, text: str, kind: T.DataType | None) -> Column:
    """A struct that holds the value as `v`, or null where it could not be computed.

    Args:
        kind: what it is cast to; None where it must be a condition.
    """
    spark = frame.sparkSession
    read = (
        [c.name for c in contract.columns if c.source and not c.ends]
        + [i.name for i in contract.inputs]
        + list(KAFKA_COLUMNS)
    )
    problem = None
    try:
        parsed = spark._jsparkSession.sessionState().sqlParser().parseExpression(text)
        problem = f"it holds {_RUN}" if _MOMENT.search(text) else None
        problem = problem or next(filter(None, map(_called, _nodes(parsed))), None)
        if not problem:
            column = _column(spark, parsed)
            # Analysed over what may be named, and nothing else: the record's raw bytes are not among it.
            nothing = _nothing(spark, T.StructType([frame.schema[c] for c in read]))
            guarded = _guarded(spark, parsed)
            plain = nothing.select(column)
            problem = _problem(spark, plain, condition=kind is None)
            problem = problem or _implied(nothing.select(_column(spark, guarded)), kind)
            if not problem and _is_of_the_run(nothing.select(column.cast(kind or T.BooleanType()))):  # or fails
                problem = f"it holds {_RUN}"
    except (AnalysisException, ParseException) as error:
        problem = str(error).strip().splitlines()[0][:300]
    if problem:
        what = "where" if name == WHERE else f"The expression of column {name}"
        raise ContractError(
            f"{what} cannot be taken: {problem}.",
            way_out="Name columns with a source, inputs and _kafka_* columns, and Spark's own functions of one record.",
            table=contract.table,
        )
    column = _cast(_column(spark, guarded), plain.schema[0].dataType, kind)
    value = _node(spark, F.struct(column.alias("v")))
    return _column(spark, _jvm(spark).org.apache.spark.sql.catalyst.expressions.TryEval(value))


def _cast(column: Column, have: T.DataType, want: T.DataType | None) -> Column:
    """An expression's value as its column's type; it fails where a cast of Spark's guesses, or makes nothing of it."""
    if want is None:
        return column
    if _reads_daily(have, want):
        return _dated(column).cast(want)
    if _drops(have, want):
        nothing = column.isNotNull() & column.cast(want).isNull()
        return F.when(nothing, F.raise_error(F.lit("no number that fits"))).otherwise(column.cast(want))
    return column.cast(want)


def _reads_daily(have: T.DataType, want: T.DataType) -> bool:
    return isinstance(have, T.StringType) and isinstance(want, T.TimestampType)


def _drops(have: T.DataType, want: T.DataType) -> bool:
    """Whether Spark casts what does not fit to null, in ANSI mode as well."""
    return isinstance(have, T.FloatType | T.DoubleType) and isinstance(want, T.DecimalType)


def _dated(text: Column, instead: Column | None = None) -> Column:
    """A text, or any other value, that fails, or is another one, where it is a time without a day."""
    failed = F.raise_error(F.lit("a time without a day")) if instead is None else instead
    return F.when(text.cast("string").rlike(_DAYLESS), failed).otherwise(text)


def _implied(found: DataFrame, kind: T.DataType | None) -> str | None:
    """What is wrong with the casts that nobody wrote: Spark's own, or the one to the column's type."""
    for node in _all_nodes(found._jdf.queryExecution().analyzed()):
        if node.getClass().getSimpleName() != "Cast" or node.dataType().simpleString() != "timestamp":
            continue
        child = node.child()
        if child.dataType().simpleString() != "string" or _DAYLESS in child.toString():
            continue
        if child.getClass().getSimpleName() != "Literal":
            return "a text in it is read as a moment without a word: write CAST(… AS TIMESTAMP)"
        if re.match(_DAYLESS, child.toString()):
            return f"it holds {_RUN}"
    if kind is not None and (wrong := _within(found.schema[0].dataType, kind)):
        return f"it holds {wrong[0].simpleString()}, of which no {wrong[1].simpleString()} can be made there: cast it"
    return None


def _within(have: T.DataType, want: T.DataType, *, inside: bool = False) -> tuple[T.DataType, T.DataType] | None:
    """Inside of a nested type, what a cast would guess or drop."""
    match have, want:
        case T.ArrayType(elementType=a), T.ArrayType(elementType=b):
            return _within(a, b, inside=True)
        case T.MapType(keyType=k, valueType=a), T.MapType(keyType=key, valueType=b):
            return _within(k, key, inside=True) or _within(a, b, inside=True)
        case T.StructType(fields=a), T.StructType(fields=b):
            pairs = zip(a, b, strict=False)
            return next(filter(None, (_within(x.dataType, y.dataType, inside=True) for x, y in pairs)), None)
    return (have, want) if inside and (_drops(have, want) or _reads_daily(have, want)) else None


def recurses(regex: str) -> bool:
    """Whether Java may go deeper into the stack with each character of a text: where a group is repeated."""
    return bool(_REPEATED.search(regex))


def _guarded(spark: SparkSession, node: Any) -> Any:
    """The expression that fails, in lambdas too, where a regex may fill the stack, which Spark takes for fatal."""
    children = list(_each(node.children()))
    guarded = [_guarded(spark, each) for each in children]
    text = _text_of_regex(node, children)
    # Where the guarded text came out short enough, the text as it was is the same, and no danger.
    kept = [each if each is text else instead for each, instead in zip(children, guarded, strict=True)]
    if (tried := _reads_moment(node)) is not None:
        kept[0] = _node(spark, _dated(_column(spark, kept[0]), F.lit(None) if tried else None))
    if any(new is not old for new, old in zip(kept, children, strict=True)):
        node = node.withNewChildren(_jvm(spark).PythonUtils.toSeq(kept))
    if text is None:
        return node
    too_long = F.length(_column(spark, guarded[0])) > LONGEST
    return _node(spark, F.when(too_long, F.raise_error(F.lit("too long"))).otherwise(_column(spark, node)))


def _reads_moment(node: Any) -> bool | None:
    """Whether a text that is no moment makes null of an expression that reads one; None where it reads none."""
    kind = node.getClass().getSimpleName()
    if kind == "Cast":
        return str(node.evalMode()) == "TRY" if node.dataType().simpleString() == "timestamp" else None
    name = node.nameParts().last().lower() if kind == "UnresolvedFunction" else ""
    reads = name in _READS_MOMENT and node.children().size() == 1
    return name.startswith("try_") if reads else None


def _text_of_regex(node: Any, children: list[Any]) -> Any:
    """What is held against a regex that may go deeper with each of its characters; None where nothing is."""
    kind = node.getClass().getSimpleName()
    name = node.nameParts().last().lower() if kind == "UnresolvedFunction" else ""
    if kind != "RLike" and name not in _REGEXES:
        return None
    regexes = children[1 : 3 if name == "str_to_map" else 2]
    if all(each.getClass().getSimpleName() == "Literal" and not recurses(each.toString()) for each in regexes):
        return None
    return children[0]


def _column(spark: SparkSession, node: Any) -> Column:
    return Column(_jvm(spark).org.apache.spark.sql.classic.ExpressionUtils.column(node))


def _node(spark: SparkSession, column: Column) -> Any:
    return _jvm(spark).org.apache.spark.sql.classic.ExpressionUtils.expression(column._jc)


def _called(node: Any) -> str | None:
    """What is wrong with a function by its name alone: looking it up would load the class that it names."""
    if node.getClass().getSimpleName() != "UnresolvedFunction":
        return None
    parts = [node.nameParts().apply(i) for i in range(node.nameParts().size())]
    if len(parts) > 1:
        return f"{'.'.join(parts)} is a function of a catalog"
    return f"{parts[0]} is a call into Java" if parts[0].lower() in _REFLECTION else None


def _problem(spark: SparkSession, found: DataFrame, *, condition: bool) -> str | None:
    """What is wrong with an expression, from the plan that Spark made of it; None where nothing is."""
    plan = found._jdf.queryExecution().analyzed()
    nodes = list(_all_nodes(plan))
    forbidden = {_class(spark, name): what for name, what in _REFUSED.items()}
    for node in nodes:
        if node.getClass().getSimpleName() == "AesEncrypt" and node.mode().toString() != "ECB":
            return "it holds a random number, but for mode ECB"
        for kind, what in forbidden.items():
            if kind.isInstance(node):
                return f"it holds {what}"
    if plan.getClass().getSimpleName() != "Project" or plan.children().head().children().nonEmpty():
        return "it is no function of one record alone"
    if len(found.columns) != 1:
        return "it is more than one value"
    if not all(node.deterministic() for node in nodes):
        return "it is not deterministic"
    if condition and found.schema[0].dataType != T.BooleanType():
        return f"it is {found.schema[0].dataType.simpleString()}, not a condition"
    return None


def _is_of_the_run(found: DataFrame) -> bool:
    """Whether a text such as 'now' is read as a moment: Spark does it when it optimises a cast."""
    plan = found._jdf.queryExecution().analyzed()
    rules = _jvm(found.sparkSession).org.apache.spark.sql.catalyst.optimizer
    replaced = getattr(rules, "ReplaceExpressions$").__getattr__("MODULE$").apply(plan)
    read = getattr(rules, "SpecialDatetimeValues$").__getattr__("MODULE$").apply(replaced)
    return not read.fastEquals(replaced)


def _all_nodes(plan: Any) -> Iterator[Any]:
    for expression in _each(plan.expressions()):
        yield from _nodes(expression)


def _nodes(expression: Any) -> Iterator[Any]:
    yield expression
    for child in _each(expression.children()):
        yield from _nodes(child)


def _each(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _nothing(spark: SparkSession, schema: T.StructType) -> DataFrame:
    session = spark._jsparkSession
    made = session.createDataFrame(_jvm(spark).java.util.ArrayList(), session.parseDataType(schema.json()))
    return DataFrame(made, spark)


def _class(spark: SparkSession, name: str) -> Any:
    return _jvm(spark).java.lang.Class.forName(_CATALYST + name)


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm
