"""The invariants of docs/concepts hold in every order of the protocol's steps, in a model that finds broken rules."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.unit.protocol import commit_model, planning_model
from tests.unit.protocol.commit_model import PUBLISHED_ONCE, Budget, Rules, State

pytestmark = pytest.mark.unit

STANDS_FOR = {
    planning_model.make_plan: "sluice.plan.plan:make_plan",
    planning_model.write_plan: "sluice.plan.plan:write_plan",
    planning_model.read_batch: "sluice.plan.batches:plan_topic",
    planning_model.stage_batch: "sluice.ingest.stage:stage",
    commit_model.plan_batch: "sluice.plan.plan:write_plan",
    commit_model.stage_batch: "sluice.ingest.stage:stage",
    commit_model.begin_write: "sluice.ingest.branch_write:BranchWrite.__init__",
    commit_model.open_branch: "sluice.ingest.branch_write:BranchWrite.create_branch",
    commit_model.merge_batch: "sluice.ingest.merge_batch:merge_batch",
    commit_model.record_deletes: "sluice.ingest.merge_batch:record_deletes",
    commit_model.check_main_unmoved: "sluice.ingest.branch_write:BranchWrite.check_main_unmoved",
    commit_model.fast_forward_main: "sluice.ingest.branch_write:BranchWrite.fast_forward_main",
    commit_model.preview_rollback: "sluice.operate.rollback:preview_rollback",
    commit_model.roll_back: "sluice.operate.rollback:roll_back",
    commit_model.finish_rollback: "sluice.ledger.unfinished_rollback:finish_rollback",
    commit_model.rewrite_files: "sluice.maintain.rewrite:rewrite_files",
    commit_model.expire_snapshots: "sluice.maintain.expire:expire_snapshots",
}
COMES_BACK = "no row but those that the records up to the cursor leave: none comes back, none is old"


def test_each_step_stands_for_a_function_that_there_is() -> None:
    steps = {*planning_model.EACH, *commit_model.EACH, *commit_model.ONCE}
    assert steps == set(STANDS_FOR)
    for place in STANDS_FOR.values():
        module, _, name = place.partition(":")
        found = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        assert callable(found)


@pytest.mark.parametrize(
    ("rules", "promise"),
    [
        (planning_model.Rules(), None),
        (
            planning_model.Rules(compare_and_set=False),
            "batches are numbered in order, and each begins where the one before ended",
        ),
        (planning_model.Rules(overwrite=False), "staging holds each offset of a batch once"),
    ],
)
def test_two_planners_and_two_stage_writers(rules: planning_model.Rules, promise: str | None) -> None:
    states, broken = planning_model.check(rules)
    assert broken == promise
    assert promise or states > 1_000


def test_two_drivers_a_rollback_and_a_replay_keep_every_promise() -> None:
    found = commit_model.check(PUBLISHED_ONCE, Rules())
    assert found.violation is None
    assert found.states > 100_000


def test_a_rewrite_and_expiry_beside_a_rollback_lose_no_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_model, "LOG", commit_model.LOG[:2])
    found = commit_model.check(State(budget=Budget(rewrites=1, expiries=1, replays=0)), Rules())
    assert found.violation is None
    assert found.states > 100_000


@pytest.mark.parametrize(
    ("first", "rules"),
    [
        (PUBLISHED_ONCE, Rules(deletes_by_stamps=False)),
        (PUBLISHED_ONCE, Rules(rollback_drops_branches=False)),
        (PUBLISHED_ONCE, Rules(fence=False)),
        (State(budget=Budget(rewrites=1, expiries=1, replays=0)), Rules(tag_moves=False)),
    ],
    ids=["deletes restored by timestamps", "a rollback leaves branches", "no fence", "the tag stays behind"],
)
def test_the_model_finds_what_a_broken_rule_leads_to(first: State, rules: Rules) -> None:
    found = commit_model.check(first, rules)
    assert found.violation is not None
    assert found.violation.promise == COMES_BACK, found.violation
