"""What a plan tells of itself."""

from __future__ import annotations

import pytest

from sluice.ahead import TopicPlan
from sluice.broker import TopicState
from sluice.contract import Contract
from sluice.model import Batch, OffsetRange
from sluice.plan import SMALL_OFFSETS, SMALL_ROWS, GroupPlan, TablePlan

pytestmark = pytest.mark.unit

BODY = {
    "table": "db.t", "topic": "t", "group": "g", "owner": "tests", "columns": [{"name": "id", "type": "long"}],
    "identifier": ["id"], "mode": "upsert",
}  # fmt: skip


def batch(seq: int, span: int) -> Batch:
    return Batch("t", "id", seq, {0: OffsetRange(0, span)}, {0: span})


@pytest.mark.parametrize(
    ("to_stage", "pending", "rows", "changes", "small"),
    [
        (0, 0, 0, {}, True),
        (SMALL_OFFSETS, 0, SMALL_ROWS, {}, True),
        (SMALL_OFFSETS + 1, 0, 0, {}, False),
        (SMALL_OFFSETS // 2 + 1, SMALL_OFFSETS // 2 + 1, 0, {}, False),
        (1, 0, SMALL_ROWS + 1, {}, False),
        # What is appended is looked for nowhere.
        (1, 0, SMALL_ROWS + 1, {"mode": "append", "identifier": []}, True),
    ],
)
def test_a_run_is_small_by_what_it_reads_and_what_it_searches(to_stage, pending, rows, changes, small):
    contract = Contract.model_validate({**BODY, **changes})
    table = TablePlan(contract, {}, {"t": (batch(1, pending),)}, rows)
    found = GroupPlan("g", {"t": TopicPlan("t", None, (batch(2, to_stage),))}, {"db.t": table}, {})
    assert found.is_small is small


def test_what_was_unread_before_a_batch_counts_all_partitions_to_kafkas_end():
    ends = {0: OffsetRange(5, 100), 1: OffsetRange(0, 40), 2: OffsetRange(7, 9)}  # the last was added since
    topic = TopicPlan("t", None, state=TopicState("t", "id", ends, compacted=False, retention_ms=-1))
    assert topic.unread(Batch("t", "id", 1, {0: OffsetRange(10, 50)}, {0: 50, 1: 30})) == 90 + 10 + 2
    assert topic.unread(Batch("t", "id", 2, {0: OffsetRange(50, 100)}, {0: 100, 1: 40})) == 50 + 0 + 2
    assert TopicPlan("t", None).unread(batch(1, 5)) is None
