"""A small model of planning and staging: two planners, producers and a stale stage writer, every interleaving.

`test_protocol.STANDS_FOR` names the function that each step stands for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

END = 3
"""How many records producers send to the one partition."""


class Planner(NamedTuple):
    """A planner between its look at topic and ledger, and its commit to the ledger."""

    looked: bool = False
    ledger_version: int = 0
    batch: tuple[int, int, int] = (0, 0, 0)


class State(NamedTuple):
    """`batches` are the ledger's: (number, start, end). `staged`: the offsets of each number, as staging holds them."""

    end: int = 1
    batches: tuple[tuple[int, int, int], ...] = ()
    staged: tuple[tuple[int, tuple[int, ...]], ...] = ()
    planners: tuple[Planner, ...] = (Planner(), Planner())
    stagers: tuple[tuple[int, int, int] | None, ...] = (None, None)


class Rules(NamedTuple):
    """What a test may switch back.

    Attributes:
        compare_and_set: a plan is written only onto the ledger that was looked at.
        overwrite: staging replaces the batch's own partition; else it appends.
    """

    compare_and_set: bool = True
    overwrite: bool = True


def produce(state: State, _: int, __: Rules) -> Iterator[State]:
    if state.end < END:
        yield state._replace(end=state.end + 1)


def make_plan(state: State, who: int, _: Rules) -> Iterator[State]:
    if state.planners[who].looked:
        return
    number, _, start = state.batches[-1] if state.batches else (0, 0, 0)
    is_staged = number == 0 or any(n == number for n, _ in state.staged)
    if start < state.end and is_staged:
        yield _planner(state, who, Planner(True, len(state.batches), (number + 1, start, state.end)))


def write_plan(state: State, who: int, rules: Rules) -> Iterator[State]:
    planner = state.planners[who]
    if planner.looked:
        wins = not rules.compare_and_set or planner.ledger_version == len(state.batches)
        batches = (*state.batches, planner.batch) if wins else state.batches
        yield _planner(state._replace(batches=batches), who, Planner())


def read_batch(state: State, who: int, _: Rules) -> Iterator[State]:
    """A driver takes a planned batch to stage: the last, or, a retry or a zombie, one that is staged already."""
    if state.stagers[who] is None:
        for batch in state.batches:
            yield _stager(state, who, batch)


def stage_batch(state: State, who: int, rules: Rules) -> Iterator[State]:
    if (batch := state.stagers[who]) is not None:
        number, start, end = batch
        held = dict(state.staged)
        offsets = tuple(range(start, end))
        held[number] = offsets if rules.overwrite else tuple(sorted((*held.get(number, ()), *offsets)))[:9]
        yield _stager(state._replace(staged=tuple(sorted(held.items()))), who, None)


EACH = (make_plan, write_plan, read_batch, stage_batch)


def broken(state: State) -> str | None:
    """The promise that a state breaks."""
    at = 0
    for expected, (number, start, end) in enumerate(state.batches, start=1):
        if number != expected or start != at or end <= start:
            return "batches are numbered in order, and each begins where the one before ended"
        at = end
    for number, offsets in state.staged:
        _, start, end = state.batches[number - 1]
        if offsets != tuple(range(start, end)):
            return "staging holds each offset of a batch once"
    return None


def check(rules: Rules) -> tuple[int, str | None]:
    """How many states any order of the steps can reach, and the first promise that one of them breaks."""
    seen, waiting = {State()}, deque([State()])
    while waiting:
        state = waiting.popleft()
        if promise := broken(state):
            return len(seen), promise
        after = list(produce(state, 0, rules))
        for who in (0, 1):
            for step in EACH:
                after += step(state, who, rules)
        for each in after:
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    return len(seen), None


def _planner(state: State, who: int, planner: Planner) -> State:
    both = list(state.planners)
    both[who] = planner
    return state._replace(planners=tuple(both))


def _stager(state: State, who: int, batch: tuple[int, int, int] | None) -> State:
    both = list(state.stagers)
    both[who] = batch
    return state._replace(stagers=tuple(both))
