"""Chooses how many cases of a promise are tested: `make test` takes the usual ones, `make test-thorough` all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

Case = TypeVar("Case")
THOROUGH = os.environ.get("SLUICE_TEST_THOROUGH") == "1"


def usual(cases: Sequence[Case], every: Sequence[Case]) -> Sequence[Case]:
    """The cases of this run.

    Args:
        cases: The usual cases: at least one for each way that the code takes.
        every: All cases.
    """
    assert all(each in every for each in cases), "a usual case is missing in the list of all"
    return every if THOROUGH else cases


def only_thorough(usual_test: str) -> pytest.MarkDecorator:
    """Mark a test for thorough runs alone.

    Args:
        usual_test: The test of the same promise that every run has.
    """
    return pytest.mark.skipif(not THOROUGH, reason=f"in a thorough run only; {usual_test} tests it in every run")
