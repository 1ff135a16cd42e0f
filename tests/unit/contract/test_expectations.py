"""Expectations in a contract: errors name the line, and the supported types agree with Great Expectations."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from sluice.contract.contract import Contract
from sluice.contract.expectations import EXPECTATION_TYPES, to_column_value
from sluice.contract.types import Primitive
from sluice.contract.validation_messages import describe_errors

pytestmark = pytest.mark.unit

BASE: dict[str, Any] = {
    "table": "ns.t",
    "topic": "events",
    "group": "g",
    "owner": "me",
    "columns": [
        {"name": name, "type": kind}
        for name, kind in [
            ("id", "string"),
            ("n", "long"),
            ("day", "date"),
            ("at", "timestamptz"),
            ("tags", "list<int>"),
        ]
    ],
}
NULLS, RANGE, SET = (f"expect_column_values_to_{name}" for name in ("not_be_null", "be_between", "be_in_set"))
REGEX = "expect_column_values_to_match_regex"
NEWEST, MEAN = "expect_column_max_to_be_between", "expect_column_mean_to_be_between"
ROWS, LENGTH = "expect_table_row_count_to_be_between", "expect_column_value_lengths_to_equal"


def contract(*given: dict[str, Any]) -> Contract:
    return Contract.model_validate({**BASE, "expectations": list(given)})


def flaw(*given: dict[str, Any]) -> tuple[str, str]:
    """The one thing that is wrong: the field, and the message."""
    data = {**BASE, "expectations": list(given)}
    with pytest.raises(ValidationError) as error:
        Contract.model_validate(data)
    found = describe_errors(error.value, Contract, data)
    assert len(found) == 1, found
    return ".".join(map(str, found[0][0])), found[0][1]


@pytest.mark.parametrize(
    "given",
    [
        {"type": NULLS, "column": "tags"},
        {"type": RANGE, "column": "n", "min_value": 0, "strict_min": True, "severity": "quarantine_rows"},
        {"type": RANGE, "column": "day", "max_value": "2030-01-01"},
        {"type": RANGE, "column": "_kafka_offset", "min_value": 1},
        {"type": SET, "column": "id", "value_set": ["a", "b"], "mostly": 0.5},
        {"type": NEWEST, "column": "_kafka_timestamp", "max_age": "2h"},
        {"type": NEWEST, "column": "at", "max_value": "2030-01-01T00:00:00Z", "severity": "block"},
        {"type": MEAN, "column": "n", "drift": {"tolerance": 0.2, "batches": 5}},
        {"type": ROWS, "min_value": 1, "max_value": 10},
        {"type": REGEX, "column": "id", "regex": "^\\p{L}+$"},
        {"type": "expect_compound_columns_to_be_unique", "column_list": ["id", "n"]},
    ],
)
def test_what_is_taken(given: dict[str, Any]) -> None:
    (found,) = contract(given).expectations
    assert found.type == given["type"]
    assert found.severity == given.get("severity", "warn")
    again = Contract.model_validate_json(contract(given).model_dump_json(exclude_unset=True))
    assert again == contract(given)


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"type": "expect_column_values_to_not_be_nul", "column": "n"}, "type", f"did you mean '{NULLS}'"),
        ({"type": "expect_column_kl_divergence_to_be_less_than"}, "type", "is not an expectation that Sluice supports"),
        ({"type": NULLS}, "column", "is required"),
        ({"type": NULLS, "column": "nn"}, "column", "there is no column 'nn' (did you mean 'n'?)"),
        ({"type": NULLS, "column": ["n"]}, "column", "must be a column's name"),
        ({"type": NULLS, "column": "n", "severty": "block"}, "severty", "did you mean 'severity'?"),
        ({"type": NULLS, "column": "n", "severity": "blok"}, "severity", "did you mean 'block'?"),
        ({"type": RANGE, "column": "n", "minvalue": 1}, "minvalue", "did you mean 'min_value'?"),
        ({"type": RANGE, "column": "n"}, "min_value", "one of min_value and max_value is required"),
        ({"type": RANGE, "column": "n", "min_value": 2, "max_value": 1}, "max_value", "is less than min_value"),
        ({"type": RANGE, "column": "n", "min_value": "1"}, "min_value", "'1' is not a long"),
        ({"type": RANGE, "column": "n", "min_value": True}, "min_value", "True is not a long"),
        ({"type": RANGE, "column": "n", "min_value": 10**400}, "min_value", "is not a long"),
        ({"type": RANGE, "column": "n", "max_value": float("nan")}, "max_value", "nan is not a long"),
        ({"type": LENGTH, "column": "id", "value": 1 << 63}, "value", "a whole number"),
        ({"type": RANGE, "column": "tags", "min_value": 1}, "column", "does not apply to a column of type list<int>"),
        ({"type": RANGE, "column": "at", "min_value": "2024-01-01"}, "min_value", "is not a timestamptz"),
        ({"type": RANGE, "column": "n", "min_value": 1, "mostly": 2}, "mostly", "must be a share"),
        ({"type": SET, "column": "n", "value_set": [1, "x"]}, "value_set", "'x' is not a long"),
        ({"type": SET, "column": "n", "value_set": []}, "value_set", "must be a list of values"),
        ({"type": SET, "column": "n"}, "value_set", "is required"),
        ({"type": REGEX, "column": "id", "regex": "a(b"}, "regex", "must be a regular expression, not 'a(b'"),
        ({"type": REGEX, "column": "n", "regex": "a"}, "column", "does not apply to a column of type long"),
        ({"type": NULLS, "column": "n", "severity": "quarantine_rows", "mostly": 0.5}, "mostly", "errors.max_ratio"),
        (
            {"type": MEAN, "column": "n", "min_value": 1, "severity": "quarantine_rows"},
            "severity",
            "does not evaluate single rows",
        ),
        ({"type": MEAN, "column": "n", "min_value": 1, "drift": {"tolerance": 1}}, "drift", "remove min_value"),
        ({"type": MEAN, "column": "n", "drift": {}}, "drift.tolerance", "is required"),
        ({"type": NEWEST, "column": "n", "drift": {"tolerance": 1.0}}, "drift", "needs a statistic with bounds"),
        ({"type": NEWEST, "column": "at", "max_age": "1h", "severity": "block"}, "max_age", "can only warn"),
        ({"type": NEWEST, "column": "n", "max_age": "1h"}, "max_age", "needs a column of type timestamptz"),
        ({"type": "expect_compound_columns_to_be_unique", "column_list": ["n"]}, "column_list", "at least two columns"),
    ],
)
def test_what_is_refused(given: dict[str, Any], field: str, message: str) -> None:
    at, told = flaw(given)
    assert at == f"expectations.0.{field}"
    assert message in told


def test_the_same_twice_is_refused() -> None:
    each = {"type": NULLS, "column": "n"}
    assert flaw(each, each) == ("expectations.1", "is a duplicate")


def test_the_list_is_what_great_expectations_takes() -> None:
    """Names, parameters, columns, and what Spark can evaluate by row. In a process of its own: 5 s."""
    code = """
import json, sys, warnings
warnings.simplefilter("ignore")
import great_expectations.expectations.core
from great_expectations.execution_engine import SparkDFExecutionEngine
from great_expectations.expectations.registry import get_expectation_impl, get_metric_provider
from sluice.contract.expectations import EXPECTATION_TYPES
from sluice.contract.types import Primitive
wrong = []
for name, kind in EXPECTATION_TYPES.items():
    model = get_expectation_impl(name)
    taken = {*kind.columns, *kind.parameters}
    wrong += [f"{name}: {f}" for f in taken if f not in model.__fields__]
    wrong += [f"{name}: needs {f}" for f, x in model.__fields__.items() if x.required and f not in taken]
    if kind.by_row:
        engine = SparkDFExecutionEngine(spark="none", persist=False)
        _, provider = get_metric_provider(f"{model.map_metric}.condition", engine)
        if provider.metric_fn_type.value != "map_condition_fn":
            wrong.append(f"{name}: {provider.metric_fn_type}")
print(json.dumps(wrong))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    assert done.stdout.strip().splitlines()[-1] == "[]", done.stdout + done.stderr
    assert len(EXPECTATION_TYPES) > 20


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GX_ANALYTICS_ENABLED": "false"}


def test_values_are_as_a_column_has_them() -> None:
    assert to_column_value(0.1, Primitive("float")) == 0.10000000149011612
    assert (to_column_value(0.1, Primitive("double")), to_column_value(1e39, Primitive("float"))) == (0.1, None)
    capitals = "AAAAAAAA-0000-4000-8000-000000000001"
    assert to_column_value(capitals, Primitive("uuid")) == capitals.lower()
    assert to_column_value(capitals, Primitive("string")) == capitals


def test_the_parameters_tell_expectations_of_one_type_and_column_apart() -> None:
    kind = "expect_column_values_to_be_in_set"
    long = [f"{'x' * 50}{n}" for n in range(9)]
    sets = [{"value_set": ["a", "b"]}, {"value_set": ["a"]}, {"value_set": long}, {"value_set": [*long, "y"]}]
    given = [{"type": kind, "column": "id", **each} for each in (*sets, sets[0] | {"mostly": 0.5})]
    found = Contract.model_validate(BASE | {"expectations": given}).expectations
    assert len({each.name for each in found}) == len(given)
    assert found[0].parameters == '{"value_set": ["a", "b"]}'
    assert all(len(each.parameters) < 250 for each in found)
    drift = {"type": MEAN, "column": "n", "drift": {"tolerance": 0.5}}
    aged = {"type": NEWEST, "column": "at", "max_age": "2h"}
    told = [e.parameters for e in Contract.model_validate(BASE | {"expectations": [drift, aged]}).expectations]
    assert told == ['{"drift": {"tolerance": 0.5}}', '{"max_age": "7200s"}']
