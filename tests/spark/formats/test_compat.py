"""Spark still has no public way to do what `sluice.formats.compat` does with its internals."""

from __future__ import annotations

import pyspark.sql
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

pytestmark = pytest.mark.spark


def test_an_expression_cannot_be_inspected_by_a_public_api(spark: SparkSession) -> None:
    assert {"node", "expr", "children"}.isdisjoint(vars(Column)), "use it instead of CatalystNode"
    assert {"queryExecution", "logicalPlan"}.isdisjoint(vars(DataFrame)), "use it instead of analyzed_nodes"
    assert not hasattr(spark, "sessionState"), "use it instead of CatalystNode.parse"


def test_no_public_function_catches_the_errors_of_any_expression(spark: SparkSession) -> None:
    assert {"try_eval", "try_", "try_expr"}.isdisjoint(dir(F)), "use it instead of CatalystNode.try_eval"
    functions = {row.function for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    assert {"try", "try_eval"}.isdisjoint(functions), "use it instead of CatalystNode.try_eval"


def test_arrow_schemas_have_no_public_conversion() -> None:
    public = {*pyspark.sql.__all__, *T.__all__}
    assert not any("arrow" in name.lower() for name in public), "use it instead of spark_type_from_arrow"
    assert not hasattr(T.StructType, "fromArrow")
