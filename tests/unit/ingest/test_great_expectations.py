"""Drift: the bounds that follow from what earlier batches observed."""

from __future__ import annotations

import sys

import pytest

from sluice.contract.contract import Contract
from sluice.ingest import great_expectations

MOST = sys.float_info.max


@pytest.mark.parametrize(
    ("past", "bounds"),
    [
        ([1.0, 3.0], (1.0, 3.0)),
        ([-MOST, -MOST], (-MOST, -MOST)),
        ([MOST, MOST, MOST], (MOST, MOST)),
        ([MOST, -MOST], (0.0, 0.0)),
    ],
)
def test_bounds_of_a_drift_never_overflow(past: list[float], bounds: tuple[float, float]) -> None:
    drift = {"type": "expect_column_mean_to_be_between", "column": "n", "drift": {"tolerance": 0.5, "at_least": 2}}
    columns = [{"name": "n", "type": "double"}]
    body = {"table": "db.t", "topic": "t", "group": "g", "owner": "o", "columns": columns, "expectations": [drift]}
    contract, result = Contract.model_validate(body), dict[str, float]()
    given = great_expectations.resolve_parameters(contract, contract.expectations[0], result, past)
    assert (given["min_value"], given["max_value"]) == (result["low"], result["high"]) == bounds
