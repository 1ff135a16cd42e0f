"""Internals of Spark that have no public API as of Spark 4.1: Catalyst's expression trees, and Arrow to Spark types.

tests/spark/formats/test_compat.py fails when PySpark offers a public way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T

if TYPE_CHECKING:
    import pyarrow as pa

_CATALYST = "org.apache.spark.sql.catalyst.expressions."


def spark_type_from_arrow(schema: pa.Schema) -> T.StructType:
    """The Spark type of an Arrow schema; needs no JVM."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


class CatalystNode:
    """An expression, or a part of one, in Spark's parser or analyzer."""

    def __init__(self, spark: SparkSession, java: Any) -> None:
        self._spark, self._java = spark, java

    @classmethod
    def parse(cls, spark: SparkSession, text: str) -> CatalystNode:
        """Parse a SQL expression; functions are not looked up yet.

        Raises:
            ParseException: The text is not an expression.
        """
        return cls(spark, spark._jsparkSession.sessionState().sqlParser().parseExpression(text))

    @classmethod
    def from_column(cls, spark: SparkSession, column: Column) -> CatalystNode:
        """The expression of a column."""
        return cls(spark, _jvm(spark).org.apache.spark.sql.classic.ExpressionUtils.expression(column._jc))

    def column(self) -> Column:
        """A column with this expression."""
        return Column(_jvm(self._spark).org.apache.spark.sql.classic.ExpressionUtils.column(self._java))

    def children(self) -> list[CatalystNode]:
        """The arguments of the expression."""
        return [CatalystNode(self._spark, each) for each in _items(self._java.children())]

    def with_children(self, children: Sequence[CatalystNode]) -> CatalystNode:
        """The same expression with other arguments."""
        items = _jvm(self._spark).PythonUtils.toSeq([each._java for each in children])
        return CatalystNode(self._spark, self._java.withNewChildren(items))

    def tree(self) -> Iterator[CatalystNode]:
        """The expression and everything within it."""
        yield self
        for child in self.children():
            yield from child.tree()

    def try_eval(self) -> CatalystNode:
        """The same expression, null where it fails; SQL has `try_…` variants of single functions only."""
        return CatalystNode(
            self._spark, _jvm(self._spark).org.apache.spark.sql.catalyst.expressions.TryEval(self._java)
        )

    @cached_property
    def class_name(self) -> str:
        """The node's class, without its package."""
        return str(self._java.getClass().getSimpleName())

    def is_instance(self, java_class: Any) -> bool:
        """Whether the node is of a class of `catalyst_class`."""
        return bool(java_class.isInstance(self._java))

    def text(self) -> str:
        """The expression as Spark prints it; a literal's value."""
        return str(self._java.toString())

    def source_text(self) -> str:
        """The text that the parser made the node of; empty if it is unknown."""
        origin = self._java.origin()
        if not all(each.isDefined() for each in (origin.sqlText(), origin.startIndex(), origin.stopIndex())):
            return ""
        return str(origin.sqlText().get())[origin.startIndex().get() : origin.stopIndex().get() + 1]

    def type_name(self) -> str:
        """The data type of an analyzed expression, or the target type of a cast."""
        return str(self._java.dataType().simpleString())

    def data_type(self) -> T.DataType:
        """The data type of an analyzed expression."""
        field = {"name": "of", "type": json.loads(str(self._java.dataType().json())), "nullable": True, "metadata": {}}
        return T.StructType.fromJson({"type": "struct", "fields": [field]})[0].dataType

    def function_name(self) -> list[str]:
        """The parts of the name of a function that is not looked up yet; empty for other nodes."""
        return list(_items(self._java.nameParts())) if self.class_name == "UnresolvedFunction" else []

    def is_try_cast(self) -> bool:
        """Whether a Cast node yields null instead of an error."""
        return str(self._java.evalMode()) == "TRY"

    def aes_mode(self) -> str:
        """The mode of an AesEncrypt node."""
        return str(self._java.mode().toString())

    def is_deterministic(self) -> bool:
        """Whether the expression always gives the same value for the same input."""
        return bool(self._java.deterministic())


def catalyst_class(spark: SparkSession, name: str) -> Any:
    """A class or trait of Catalyst's expressions, named relative to their package."""
    return _jvm(spark).java.lang.Class.forName(_CATALYST + name)


def analyzed_nodes(frame: DataFrame) -> list[CatalystNode]:
    """All expressions of a frame's topmost operator, after analysis."""
    roots = [CatalystNode(frame.sparkSession, each) for each in _items(_plan(frame).expressions())]
    return [node for root in roots for node in root.tree()]


def is_projection_of_leaf(frame: DataFrame) -> bool:
    """Whether a frame is one projection of its source: without generators, aggregates, windows or subqueries."""
    plan = _plan(frame)
    return plan.getClass().getSimpleName() == "Project" and not plan.children().head().children().nonEmpty()


def reads_special_datetimes(frame: DataFrame) -> bool:
    """Whether the optimizer would replace a text such as 'now' by the time of the run.

    Raises:
        AnalysisException: A literal cannot be cast.
    """
    rules = _jvm(frame.sparkSession).org.apache.spark.sql.catalyst.optimizer
    replaced = getattr(rules, "ReplaceExpressions$").__getattr__("MODULE$").apply(_plan(frame))
    read = getattr(rules, "SpecialDatetimeValues$").__getattr__("MODULE$").apply(replaced)
    return not read.fastEquals(replaced)


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _items(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm
