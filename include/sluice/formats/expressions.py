"""Compiles the contract's expressions: computed columns, and the condition that records must meet.

In: decoded columns and inputs. Out: computed columns, and the expression that failed on a record. Only deterministic
functions of one record are accepted, since a batch must give the same rows whenever it is published again.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import reduce
from operator import add

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
from sluice.formats.internal_columns import DETAIL, ERROR, FIELD
from sluice.formats.logical_types import spark_type, within_calendar
from sluice.formats.value_checks import (
    TIME_WITHOUT_DATE,
    cast_result,
    may_lack_date,
    misplaced_field,
    reject_time_without_date,
    type_parts,
    unsafe_inner_cast,
)

TRIED_PREFIX = "_sluice_tried_"
WHERE = "where"
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
_TEXT_READERS = {"JsonToStructs", "CsvToStructs", "XmlToStructs", "VariantGet"}
"""Functions that read texts by a schema; without a format, they read timestamps like Spark's cast."""
_CONDITIONAL = {"CaseWhen", "If", "And", "Or", "Coalesce", "if", "iff", "coalesce", "ifnull", "nvl", "nvl2", "nullif"}
_MAX_SHOWN = 200
_MAP_FUNCTIONS = {"transform_keys", "map_from_arrays", "map_from_entries", "map_concat"}
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


def explain_failures(frame: DataFrame, contract: Contract) -> DataFrame:
    """Name the part of the expression that failed on each record of error class `expression`, in DETAIL.

    It is the first part that cannot be computed though its own parts can. For the quarantine: each part is computed
    again for the records that failed, and each needs some time of the driver.

    Args:
        frame: Decoded records with ERROR, FIELD and DETAIL, and the columns that expressions read.
        contract: Has the expressions.
    """
    expressions = {c.name: (c.expression, f"{c.type}") for c in contract.columns if c.expression}
    if contract.where:
        expressions[WHERE] = (contract.where, "boolean")
    detail, is_failed = F.col(DETAIL), F.col(ERROR) == "expression"
    for name, (text, kind) in expressions.items():
        found = F.lit(f"the result of the expression cannot become a {kind} without loss")
        for part, computed in reversed(_always_computed_parts(frame, contract, text)):
            found = F.when(computed.isNull(), F.lit(f"the expression failed on this record in {part}")).otherwise(found)
        detail = F.when(is_failed & (F.col(FIELD) == name), found).otherwise(detail)
    return frame.withColumn(DETAIL, detail)


def _always_computed_parts(frame: DataFrame, contract: Contract, text: str) -> list[tuple[str, Column]]:
    """The parts of an expression that are computed for every record, inner ones first: their texts, null if they fail.

    Lambdas, and arguments that a function may leave out, are taken as a part of it.
    """
    spark = frame.sparkSession
    empty = spark.createDataFrame([], T.StructType([frame.schema[c] for c in _allowed_columns(contract)]))
    parts = []

    def walk(node: CatalystNode) -> None:
        is_conditional = node.class_name in _CONDITIONAL or _last_name(node) in _CONDITIONAL
        for child in node.children()[: 1 if is_conditional else None]:
            if child.class_name != "LambdaFunction" and not _last_name(node).startswith("try_"):
                walk(child)
        if node.children() and (source := node.source_text()):
            value = _guard(spark, node).column()
            with suppress(AnalysisException):  # what is no value on its own
                empty.select(value)
                shown = source if len(source) <= _MAX_SHOWN else f"{source[:_MAX_SHOWN]}…"
                parts.append((shown, CatalystNode.from_column(spark, F.struct(value)).try_eval().column()))

    walk(CatalystNode.parse(spark, text))
    return parts


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
    value = guarded.column()
    if kind:
        value = cast_result(value, plain.schema[0].dataType, kind, for_key=name in contract.identifier)
    return CatalystNode.from_column(spark, F.struct(value.alias("v"))).try_eval().column()


def _allowed_columns(contract: Contract) -> list[str]:
    columns = [c.name for c in contract.columns if c.source and not c.is_valid_to]
    return [*columns, *(i.name for i in contract.inputs), *KAFKA_COLUMNS]


def _guard(spark: SparkSession, node: CatalystNode) -> CatalystNode:
    """The expression with errors, in lambdas too, for today's date, keys that are made equal, and endless regexes.

    Spark treats a stack overflow as fatal. Of two equal keys it would keep the last, because it does so with those that
    a record already has (`spark.sql.mapKeyDedupPolicy`).
    """
    children = node.children()
    guarded = [_guard(spark, each) for each in children]
    text = _text_of_recursive_regex(node, children)
    # The regex keeps its unguarded text: where the guarded one is short enough, both are equal.
    arguments = [each if each is text else instead for each, instead in zip(children, guarded, strict=True)]
    if (yields_null := _reads_timestamp(node)) is not None:
        checked = reject_time_without_date(arguments[0].column(), F.lit(None) if yields_null else None)
        arguments[0] = CatalystNode.from_column(spark, checked)
    if any(new is not old for new, old in zip(arguments, children, strict=True)):
        node = node.with_children(arguments)
    if (entries := _entries(node)) is not None:
        is_repeated = F.size(node.column()) != entries
        once = F.when(is_repeated, F.raise_error(F.lit("a key is repeated"))).otherwise(node.column())
        node = CatalystNode.from_column(spark, once)
    if text is None:
        return node
    is_too_long = F.length(guarded[0].column()) > MAX_REGEX_TEXT
    limited = F.when(is_too_long, F.raise_error(F.lit("too long"))).otherwise(node.column())
    return CatalystNode.from_column(spark, limited)


def _entries(node: CatalystNode) -> Column | None:
    """How many entries a node that makes a map has, if no two have the same key; None for other nodes."""
    name, arguments = _last_name(node), [each.column() for each in node.children()]
    if name == "map":
        return F.lit(len(arguments) // 2)
    if name not in _MAP_FUNCTIONS or not arguments:
        return None
    return reduce(add, map(F.size, arguments if name == "map_concat" else arguments[:1]))


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
        if child.type_name() != "string" or TIME_WITHOUT_DATE in child.text():
            continue
        if child.class_name != "Literal":
            return "it implicitly casts a text to a timestamp: write CAST(… AS TIMESTAMP)"
        if re.match(TIME_WITHOUT_DATE, child.text()):
            return _RUN_TIME_PROBLEM
    if kind is not None and (pair := unsafe_inner_cast(analyzed.schema[0].dataType, kind)):
        have, want = (each.simpleString() for each in pair)
        place = "" if pair[1] == kind else " inside another type"
        return f"it contains {have} that would become {want}{place}: cast it"
    if kind is not None and (field := misplaced_field(analyzed.schema[0].dataType, kind)):
        return f"field {field} is not where its column has it, and Spark casts structs by position: use its order"
    return None


def _inner_timestamp_problem(node: CatalystNode) -> str | None:
    """Why texts within a value may be read as timestamps of the current day; None if they are not."""
    if node.class_name in _TEXT_READERS and "timestampformat" not in node.text().lower():
        problem = "it reads texts as timestamps by a schema: read strings, and write CAST(… AS TIMESTAMP)"
        return problem if _has_timestamp(node.data_type()) else None
    if node.class_name != "Cast" or isinstance(want := node.data_type(), T.TimestampType) or not _has_timestamp(want):
        return None
    if not _casts_text(node.children()[0].data_type(), want):
        return None
    return "it casts texts within another type to timestamps: cast each, as in transform(x, e -> CAST(e AS TIMESTAMP))"


def _has_timestamp(kind: T.DataType) -> bool:
    return isinstance(kind, T.TimestampType) or any(map(_has_timestamp, type_parts(kind)))


def _casts_text(have: T.DataType, want: T.DataType) -> bool:
    """Whether a cast between two types makes a timestamp of a text, which a variant may hold at any depth."""
    if isinstance(have, T.VariantType):
        return _has_timestamp(want)
    return may_lack_date(have, want) or any(map(_casts_text, type_parts(have), type_parts(want)))
