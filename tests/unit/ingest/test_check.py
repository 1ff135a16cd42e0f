"""The number of rejected records that a contract tolerates in a batch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from sluice.batch import Batch
from sluice.contract.contract import Contract
from sluice.errors import BlockedError
from sluice.ingest.check import Counts, check_tolerance
from sluice.offsets import OffsetRange

pytestmark = pytest.mark.unit

BATCH = Batch("t", "id", 1, {0: OffsetRange(0, 100)}, {0: 100})


@pytest.mark.parametrize(
    ("errors", "records", "rejected", "refused"),
    [
        ({}, 5, 5, None),
        ({}, 50, 10, None),
        ({}, 50, 11, "11 of 50 records .*; at most 1% of a batch, or 10 records, may be."),
        ({}, 5000, 50, None),
        ({}, 5000, 51, "; at most 1% of a batch, or 10 records, may be."),
        ({"max_ratio": 0.0}, 10**6, 1, "; none may be."),
        ({"max_count": 0}, 50, 1, "; at most 1% of a batch, may be."),
        ({"max_count": 3}, 50, 3, None),
        ({"max_count": 3}, 50, 4, "; at most 1% of a batch, or 3 records, may be."),
        ({"max_count": 3}, 1000, 10, None),  # the share allows more
        ({"max_ratio": 0.0, "max_count": 5}, 10**6, 5, None),
        ({"max_ratio": 0.0, "max_count": 5}, 10**6, 6, "; at most 5 records, may be."),
        ({"tolerance": "none", "max_count": 5}, 10**6, 1, "; none may be."),
        ({}, 0, 0, None),
    ],
)
def test_a_batch_is_refused_beyond_both_share_and_count(
    errors: dict[str, Any], records: int, rejected: int, refused: str | None
) -> None:
    body = {"table": "db.t", "topic": "t", "group": "g", "owner": "me", "errors": errors}
    contract = Contract.model_validate(body | {"columns": [{"name": "id", "type": "long"}]})
    with pytest.raises(BlockedError, match=refused) if refused else nullcontext():
        check_tolerance(contract, [BATCH], {1: Counts(records, rejected)})


@pytest.mark.parametrize(
    ("mask", "raw", "drops"),
    [(None, None, False), (None, "drop", True), ("redact", None, True), ("redact", "keep", False)],
)
def test_what_is_masked_stands_in_no_quarantine_unless_the_contract_says_so(
    mask: str | None, raw: str | None, drops: bool
) -> None:
    body = {"table": "db.t", "topic": "t", "group": "g", "owner": "me", "errors": {"raw": raw} if raw else {}}
    column = {"name": "mail", "type": "string"} | ({"mask": mask} if mask else {})
    assert Contract.model_validate(body | {"columns": [column]}).drops_raw_records is drops
