"""Expectations as a matrix of batches, and in words."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sluice.contract.expectations import EXPECTATION_TYPES, Expectation
from sluice.ledger.quality_table import ExpectationResult
from sluice.pages.quality import expectation_text, matrix, trends

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 22, 6, 0, tzinfo=UTC)
BETWEEN, IN_SET = "expect_column_values_to_be_between", "expect_column_values_to_be_in_set"
MEAN, ROWS = "expect_column_mean_to_be_between", "expect_table_row_count_to_be_between"


def in_words(kind: str, **given: Any) -> str:
    each = Expectation(type=kind, **given)
    return expectation_text.describe(each.type, ",".join(each.columns), each.parameters)


@pytest.mark.parametrize(
    ("kind", "given", "sentence"),
    [
        (BETWEEN, {"min_value": 0, "max_value": 10_000}, "a is between 0 and 10,000"),
        (BETWEEN, {"min_value": 0, "strict_min": True}, "a is more than 0"),
        (BETWEEN, {"min_value": 0, "mostly": 0.99}, "a is at least 0; at most 1 % of the rows fail"),
        (BETWEEN, {"min_value": 0.5, "max_value": 3, "strict_max": True}, "a is at least 0.5 and less than 3"),
        (BETWEEN, {"max_value": "2024-01-31"}, "a is at most 2024-01-31"),
        (IN_SET, {"value_set": ["DE", 1, True]}, 'a is one of "DE", 1, true'),
        (IN_SET, {"value_set": [*range(11)]}, "a is one of 0, 1, 2, 3, 4, 5, 6, 7, 3 more"),
        (IN_SET, {"value_set": []}, "a is one of an empty set"),
        ("expect_column_values_to_not_be_null", {}, "a is never null"),
        ("expect_column_values_to_match_regex", {"regex": r"^\d{2}$"}, r"a matches ^\d{2}$"),
        ("expect_column_value_lengths_to_equal", {"value": 2}, "the length of a is 2"),
        ("expect_column_max_to_be_between", {"max_age": "150m"}, "the newest a is at most 150 min old"),
        ("expect_column_max_to_be_between", {"max_value": 7}, "the largest a is at most 7"),
        (MEAN, {"min_value": 1, "max_value": 1}, "the mean of a is 1"),
        (MEAN, {"drift": {"tolerance": 0.5}}, "the mean of a is within 50 % of the mean of the last 10 batches"),
    ],
)  # fmt: skip
def test_an_expectation_is_a_sentence(kind: str, given: dict[str, Any], sentence: str) -> None:
    assert in_words(kind, column="a", **given) == sentence


def test_expectations_about_several_columns_or_the_table_are_sentences() -> None:
    pair, greater = {"column_A": "a", "column_B": "b"}, "expect_column_pair_values_a_to_be_greater_than_b"
    assert in_words("expect_column_pair_values_to_be_equal", **pair) == "a equals b"
    assert (
        in_words(greater, **pair) == "a is greater than b"
        and in_words(greater, **pair, or_equal=True) == "a is at least b"
    )
    unique = "the combination of a, b is unique"
    assert in_words("expect_compound_columns_to_be_unique", column_list=["a", "b"]) == unique
    assert in_words("expect_table_row_count_to_equal", value=1000) == "the number of rows is 1,000"


def test_every_type_that_a_contract_may_have_has_a_sentence() -> None:
    enough = '{"min_value": 1, "value": 2, "regex": "x", "value_set": [1]}'
    for kind, each in EXPECTATION_TYPES.items():
        columns = "" if each.column_kind == "whole" else ",".join("abc"[: max(len(each.columns), 1)])
        assert "expect" not in expectation_text.describe(kind, columns, enough), kind


def test_what_has_no_sentence_stays_as_great_expectations_names_it() -> None:
    for parameters in ("", "{}"):  # those of an older result were not recorded
        assert expectation_text.describe(BETWEEN, "a", parameters) == "expect column values to be between(a)"
    assert expectation_text.describe("expect_x", "a", '{"q": 1}') == 'expect x(a) {"q": 1}'
    for broken in ('{"min_value": [', "[1]", '{"min_value": ' + "[" * 5000, '{"value_set": {}}'):
        assert expectation_text.describe(IN_SET, "a", broken) == f"expect column values to be in set(a) {broken}"
    assert expectation_text.tolerated_share("") is None
    for value, share in (("0.999", 0.001), ('"x"', None), ("9" * 400, None), ("true", None), ("2", 0.0)):
        assert expectation_text.tolerated_share(f'{{"mostly": {value}}}') == share


def test_parameters_that_were_cut_are_told_as_far_as_they_are_known() -> None:
    codes = [f"country {n}, old" for n in range(99)]
    found = in_words(IN_SET, column="a", value_set=codes, mostly=0.9)
    assert re.fullmatch(r'a is one of ("country \d, old", ){8}…; at most 10 % of the rows fail', found)
    regex = in_words("expect_column_values_to_match_regex", column="a", regex="\\d" * 200)
    assert re.fullmatch(r"a matches (\\d){20,}…", regex)


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.0, "0 %"), (1e-7, "under 0.01 %"), (0.0125, "1.25 %"), (0.99999, "over 99.9 %"), (1.0, "100 %")],
)
def test_a_share_is_none_or_all_only_if_it_is(share: float, words: str) -> None:
    assert expectation_text.format_share(share) == words


def result(kind: str, seq: int, success: bool | None = True, **changes: Any) -> ExpectationResult:
    values: dict[str, Any] = {"parameters": "{}", "records": 100, "at": NOW + timedelta(minutes=abs(seq)), **changes}
    return ExpectationResult("db.t", values.pop("topic", "t"), seq, kind, "a", "warn", success, **values)


def test_a_batch_is_one_column_for_all_expectations_of_a_topic() -> None:
    unique, null = "expect_column_values_to_be_unique", "expect_column_values_to_not_be_null"
    found = [result(null, seq, seq % 20 > 0, unexpected=int(seq % 20 == 0)) for seq in range(1, 41)]
    found += [result(unique, seq, None) for seq in (5, 11, 40)]  # 5 is older than what is shown
    found += [result(null, 3, topic="u"), result(null, -1, topic="v"), result(null, -2, topic="v")]
    first, other, slices = matrix.make_matrices(trends.group_results(sorted(found, key=lambda r: r.at)))
    assert (first.topic, list(first.batches), other.batches, slices.batches) == ("t", [*range(11, 41)], [3], [-1, -2])
    assert first.at == NOW + timedelta(minutes=40)
    # What failed last comes first.
    assert [(row.sentence, row.word, row.text) for row in first.rows] == [
        ("a is never null", "failed", "28 passed, 2 failed: batches 20, 40"),
        ("a is unique", "not evaluated", "2 not evaluated"),
    ]  # fmt: skip
    assert [[cell.column for cell in row.cells] for row in first.rows] == [[*range(30)], [0, 29]]
    assert [row.cells[-1].text for row in first.rows] == [
        "failed, batch 40, 2026-11-22 06:40:00 UTC, 1 % of the rows fail",
        "not evaluated, no values, batch 40, 2026-11-22 06:40:00 UTC",
    ]


def test_the_failing_share_is_that_of_rows_with_a_value_which_mostly_is_compared_with() -> None:
    def row(**changes: Any) -> matrix.Row:
        ((only,),) = [
            m.rows for m in matrix.make_matrices(trends.group_results([result(BETWEEN, 1, False, **changes)]))
        ]
        return only

    found = row(unexpected=2, missing=60, parameters='{"min_value": 1, "mostly": 0.99}')
    assert (found.share, found.tolerated) == ("5 %", "at most 1 %")
    strict, unknown, empty = row(unexpected=2), row(unexpected=2, parameters=""), row(unexpected=0, missing=100)
    assert [(r.share, r.tolerated) for r in (strict, unknown, empty)] == [("2 %", "none"), ("2 %", ""), ("0 %", "none")]
    broken = row(error="CANNOT_PARSE")
    assert (broken.share, broken.cells[0].text.rpartition("UTC, ")[2]) == ("", "could not be evaluated, CANNOT_PARSE")


def line_of(values: list[float], **changes: Any) -> matrix.Line | None:
    found = [result(MEAN, seq, observed=value, **changes) for seq, value in enumerate(values, 1)]
    ((row,),) = [m.rows for m in matrix.make_matrices(trends.group_results(found))]
    return row.line


def test_observed_values_are_a_line_between_their_bounds() -> None:
    line = line_of([10.0, 30.0, 20.0], parameters='{"min_value": 5, "max_value": 35}')
    assert line and line.text == "observed 20 in batch 3, 10 to 30 in all, at least 5 expected, at most 35 expected"
    heights = [float(point.partition(",")[2]) for point in line.points.split()]
    assert [point.partition(",")[0] for point in line.points.split()] == ["0.5", "1.5", "2.5"]
    low, high = ([float(point.partition(",")[2]) for point in each.split()] for each in line.bounds)
    assert len({*low}) == len({*high}) == 1
    assert 0 < high[0] < heights[1] < heights[2] < heights[0] < low[0] < 1  # SVG counts from the top
    drift = line_of([10.0, 11.0], low=5.0, high=15.0, parameters='{"drift": {"tolerance": 0.5}}')
    assert drift and len(drift.bounds) == 2 and drift.text.endswith("at least 5 expected, at most 15 expected")
    far = line_of([10.0, 11.0], parameters='{"min_value": 0, "max_value": 1000000}')
    assert far and len(far.bounds) == 1 and far.text.endswith("at most 1e+06 expected")
    assert line_of([10.0]) is None  # a point is no line


@pytest.mark.parametrize("values", [[5.0, 5.0], [0.0, 0.0], [-1.7e308, 1.7e308], [5e-324, 0.0]])
def test_a_line_stays_in_its_box_whatever_was_observed(values: list[float]) -> None:
    line = line_of(values, low=-1.7e308, high=1.7e308)
    assert line
    points = [point for text in (line.points, *line.bounds) for point in text.split()]
    assert all(0 <= float(point.partition(",")[2]) <= 1 for point in points)
