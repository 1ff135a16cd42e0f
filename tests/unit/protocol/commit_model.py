"""A small model of the commit protocol: two drivers, an operator and expiry on one upsert table, every interleaving.

The real parts are Iceberg commits; each is one step here, and between two steps anything else may happen: the other
driver goes on, an operator rolls the table back, snapshots expire. A driver that stops for ever is a killed one, and
the other one its retry. `test_protocol.STANDS_FOR` names the function that each step stands for. The model assumes of a
catalog what the engine does: a commit is atomic, and one whose requirement does not hold is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import NamedTuple

LOG = (("k", "set"), ("k", "delete"), ("j", "set"))
"""The topic: one record per offset, and one batch per record. Batch n holds offset n - 1."""

Rows = tuple[tuple[str, int], ...]
"""(key, offset) of each row, sorted. Of the deletes table: the key, and the offset at which it was deleted."""


class Snapshot(NamedTuple):
    """A snapshot of the typed table. `through` is the last batch in it; None: it carries no offsets (a rewrite)."""

    id: int
    parent: int | None
    rows: Rows
    through: int | None
    time: int


class DeletesSnapshot(NamedTuple):
    """A snapshot of the deletes table. Its stamps name the batch, and the head of the typed table its write began from.

    `batch` is 0 for the first, empty snapshot.
    """

    id: int
    parent: int | None
    rows: Rows
    batch: int
    replay: bool
    base: int
    time: int


class Driver(NamedTuple):
    """A Spark application at work on one batch; `at` is the last step it has done."""

    at: str = "idle"
    batch: int = 0
    replay: bool = False
    base: int = 0
    since: int = 0
    rows: Rows = ()
    through: int = 0


class Operator(NamedTuple):
    """A rollback under way, as it was previewed."""

    at: str = "idle"
    left: int = 0
    target: int = 0
    deletes_head: int = 0
    deletes_back_to: int | None = None
    carrier: int | None = None
    branches: tuple[int, ...] = ()


class Budget(NamedTuple):
    """How often something may still happen: it bounds the search."""

    rollbacks: int = 1
    replays: int = 1
    rewrites: int = 0
    expiries: int = 0


class State(NamedTuple):
    """Everything that is stored, and what everybody is at."""

    snapshots: tuple[Snapshot, ...] = (Snapshot(1, None, (), 0, 0),)
    main: int = 1
    tag: int | None = 1
    since: int = 0
    main_log: tuple[tuple[int, int], ...] = ((1, 0),)
    branches: tuple[int, ...] = ()
    deletes: tuple[DeletesSnapshot, ...] = (DeletesSnapshot(0, None, (), 0, False, 0, 0),)
    deletes_head: int = 0
    planned: int = 0
    staged: int = 0
    drivers: tuple[Driver, ...] = (Driver(), Driver())
    operator: Operator = Operator()
    budget: Budget = Budget()
    clock: int = 0
    next_id: int = 2


PUBLISHED_ONCE = State(
    snapshots=(Snapshot(1, None, (), 0, 0), Snapshot(2, 1, (("k", 0),), 1, 0)),
    main=2, tag=2, main_log=((1, 0), (2, 0)), planned=3, staged=3, next_id=3,
)  # fmt: skip
"""Batch 1 is published, and all are staged."""


class Rules(NamedTuple):
    """What of the protocol a test may switch back, to see that the model finds what comes of it.

    Attributes:
        deletes_by_stamps: a rollback restores the deletes table by the stamps of its commits; else by timestamps.
        rollback_drops_branches: a rollback's commit drops the branches of attempts that are under way.
        fence: a publish requires that main is where its attempt began.
        tag_moves: the cursor's tag moves in the commit that moves main.
        skew: by how much the clock that stamps main's log is behind the one that stamps snapshots.
    """

    deletes_by_stamps: bool = True
    rollback_drops_branches: bool = True
    fence: bool = True
    tag_moves: bool = True
    skew: int = 2


def fold(through: int) -> Rows:
    """The rows that the records of batches 1 to `through` leave."""
    rows: dict[str, int] = {}
    for offset, (key, kind) in enumerate(LOG[:through]):
        if kind == "set":
            rows[key] = offset
        else:
            rows.pop(key, None)
    return tuple(sorted(rows.items()))


def find(snapshots: tuple[Snapshot, ...], number: int) -> Snapshot | None:
    return next((s for s in snapshots if s.id == number), None)


def line(snapshots: tuple[Snapshot, ...], head: int | None) -> Iterator[Snapshot]:
    """A snapshot and its ancestors, newest first, as far as expiry has left them."""
    while head is not None and (there := find(snapshots, head)):
        yield there
        head = there.parent


def deletes_line(state: State) -> Iterator[DeletesSnapshot]:
    head: int | None = state.deletes_head
    while head is not None:
        there = next(d for d in state.deletes if d.id == head)
        yield there
        head = there.parent


def cursor(state: State) -> int | None:
    """The last batch in main: by main's nearest ancestor that carries offsets, else by the tag; None: nobody knows."""
    oldest = state.main
    for snapshot in line(state.snapshots, state.main):
        if snapshot.through is not None:
            return snapshot.through
        oldest = snapshot.id
    tagged = find(state.snapshots, state.tag) if state.tag else None
    return tagged.through if tagged and tagged.id <= oldest else None


# --- the steps of a driver


def plan_batch(state: State, _: int, __: Rules) -> Iterator[State]:
    if state.planned == state.staged and state.planned < len(LOG):
        yield state._replace(planned=state.planned + 1)


def stage_batch(state: State, _: int, __: Rules) -> Iterator[State]:
    if state.staged < state.planned:
        yield state._replace(staged=state.planned)


def begin_write(state: State, who: int, _: Rules) -> Iterator[State]:
    if state.drivers[who].at != "idle":
        return
    through = cursor(state)
    if through is None:
        return  # the table stops, and asks
    at = Driver("begun", base=state.main, since=state.since, through=through)
    if through < state.staged:
        yield _with(state, who, at._replace(batch=through + 1))
    if state.budget.replays:
        spent = state._replace(budget=state.budget._replace(replays=state.budget.replays - 1))
        for batch in range(1, through + 1):
            yield _with(spent, who, at._replace(batch=batch, replay=True))


def open_branch(state: State, who: int, _: Rules) -> Iterator[State]:
    driver = state.drivers[who]
    if driver.at == "begun":
        if _is_overtaken(state, driver):
            yield _with(state, who, Driver())
        else:
            opened = state._replace(branches=tuple(sorted({*state.branches, who})))
            yield _with(opened, who, driver._replace(at="open"))


def merge_batch(state: State, who: int, _: Rules) -> Iterator[State]:
    driver = state.drivers[who]
    if driver.at != "open":
        return
    base = find(state.snapshots, driver.base)
    if base is None:
        yield _with(state, who, Driver())
        return
    rows, deleted = dict(base.rows), dict(next(deletes_line(state)).rows)
    offset = driver.batch - 1
    key, kind = LOG[offset]
    if kind == "set":
        if deleted.get(key, -1) < offset and rows.get(key, -1) < offset:
            rows[key] = offset
    elif rows.get(key, offset) < offset:
        del rows[key]
    yield _with(state, who, driver._replace(at="merged", rows=tuple(sorted(rows.items()))))


def record_deletes(state: State, who: int, rules: Rules) -> Iterator[State]:
    driver = state.drivers[who]
    if driver.at != "merged":
        return
    if _is_overtaken(state, driver):
        yield _with(state, who, Driver())
        return
    key, kind = LOG[driver.batch - 1]
    if kind == "delete":
        before = next(deletes_line(state))
        rows = dict(before.rows)
        rows[key] = max(rows.get(key, -1), driver.batch - 1)
        now = _now(state, rules)
        new = DeletesSnapshot(
            state.next_id, before.id, tuple(sorted(rows.items())), driver.batch, driver.replay, driver.base, now
        )
        state = state._replace(deletes=(*state.deletes, new), deletes_head=new.id, next_id=state.next_id + 1, clock=now)
    yield _with(state, who, driver._replace(at="recorded"))


def check_main_unmoved(state: State, who: int, rules: Rules) -> Iterator[State]:
    driver = state.drivers[who]
    if driver.at == "recorded":
        overtaken = rules.fence and _is_overtaken(state, driver)
        yield _with(state, who, Driver() if overtaken else driver._replace(at="checked"))


def fast_forward_main(state: State, who: int, rules: Rules) -> Iterator[State]:
    driver = state.drivers[who]
    if driver.at != "checked":
        return
    if (rules.fence and state.main != driver.base) or who not in state.branches:
        yield _with(state, who, Driver())  # the catalog refuses
        return
    now = _now(state, rules)
    through = driver.through if driver.replay else driver.batch
    new = Snapshot(state.next_id, driver.base, driver.rows, through, now)
    moved = state._replace(
        snapshots=(*state.snapshots, new),
        main=new.id,
        tag=state.tag if driver.replay or not rules.tag_moves else new.id,
        main_log=_logged(state, new.id, rules),
        branches=tuple(b for b in state.branches if b != who),
        clock=now,
        next_id=state.next_id + 1,
    )
    yield _with(moved, who, Driver())


# --- the operator, and maintenance


def preview_rollback(state: State, _: int, rules: Rules) -> Iterator[State]:
    if not state.budget.rollbacks or state.operator.at != "idle":
        return
    known = list(line(state.snapshots, state.main))
    for number, target in enumerate(known[1:], start=1):
        undone = known[:number]
        carrier = next((s for s in line(state.snapshots, target.id) if s.through is not None), None)
        if carrier is None:
            continue  # refused: the snapshot does not tell its offsets
        back_to = _deletes_before(state, target, undone, rules)
        yield state._replace(
            operator=Operator(
                "previewed", state.main, target.id, state.deletes_head, back_to, carrier.id, state.branches
            ),
            budget=state.budget._replace(rollbacks=state.budget.rollbacks - 1),
        )


def roll_back(state: State, _: int, rules: Rules) -> Iterator[State]:
    operator = state.operator
    if operator.at != "previewed":
        return
    target = find(state.snapshots, operator.target)
    is_gone = target is None or (operator.carrier is not None and find(state.snapshots, operator.carrier) is None)
    if state.main != operator.left or target is None or is_gone:
        yield state._replace(operator=Operator())  # the catalog refuses
        return
    now = _now(state, rules)
    dropped = operator.branches if rules.rollback_drops_branches else ()
    yield state._replace(
        main=target.id,
        tag=operator.carrier,
        since=state.since + 1,
        branches=tuple(b for b in state.branches if b not in dropped),
        main_log=_logged(state, target.id, rules),
        operator=operator._replace(at="committed"),
        clock=now,
    )


def finish_rollback(state: State, _: int, __: Rules) -> Iterator[State]:
    operator = state.operator
    if operator.at != "committed":
        return
    known = [s.id for s in line(state.snapshots, state.main)]
    nothing_since = state.main == operator.target or operator.target not in known
    if operator.deletes_back_to is not None and state.deletes_head == operator.deletes_head and nothing_since:
        state = state._replace(deletes_head=operator.deletes_back_to)
    yield state._replace(operator=Operator())


def _deletes_before(state: State, target: Snapshot, undone: list[Snapshot], rules: Rules) -> int | None:
    """The snapshot of the deletes table to go back to; None: it stays."""
    known = list(deletes_line(state))
    if rules.deletes_by_stamps:
        bases = {target.id, *(s.id for s in undone)}
        through = next(s.through for s in line(state.snapshots, target.id) if s.through is not None)
        gone = list(takewhile(lambda d: d.base in bases if d.replay else d.batch > through, known))
        return gone[-1].parent if gone else None
    logged = [time for number, time in state.main_log if number == target.id]
    until = min([undone[-1].time, *(time + 1 for time in logged)])
    before = next((d for d in known if d.time < until), known[-1])
    return None if before is known[0] else before.id


def rewrite_files(state: State, _: int, rules: Rules) -> Iterator[State]:
    if not state.budget.rewrites:
        return
    head, now = find(state.snapshots, state.main), _now(state, rules)
    assert head
    new = Snapshot(state.next_id, head.id, head.rows, None, now)
    yield state._replace(
        snapshots=(*state.snapshots, new), main=new.id, main_log=_logged(state, new.id, rules), clock=now,
        next_id=state.next_id + 1, budget=state.budget._replace(rewrites=state.budget.rewrites - 1),
    )  # fmt: skip


def expire_snapshots(state: State, _: int, __: Rules) -> Iterator[State]:
    """All but main's head, the tag's snapshot, and what attempts under way stand on."""
    if state.budget.expiries:
        kept = {state.main, state.tag, *(state.drivers[b].base for b in state.branches)}
        yield state._replace(
            snapshots=tuple(s for s in state.snapshots if s.id in kept),
            budget=state.budget._replace(expiries=state.budget.expiries - 1),
        )


def _alike(state: State) -> State:
    """The state with its drivers in one order: two that differ in which driver is which are the same."""
    if state.drivers[0] <= state.drivers[1]:
        return state
    branches, previewed = (tuple(sorted(1 - b for b in each)) for each in (state.branches, state.operator.branches))
    operator = state.operator._replace(branches=previewed)
    return state._replace(drivers=state.drivers[::-1], branches=branches, operator=operator)


def _now(state: State, rules: Rules) -> int:
    """The time of a commit; it only matters to rules that look at it, and multiplies the states."""
    return 0 if rules.deletes_by_stamps else state.clock + 1


def _logged(state: State, head: int, rules: Rules) -> tuple[tuple[int, int], ...]:
    return () if rules.deletes_by_stamps else (*state.main_log, (head, _now(state, rules) - rules.skew))


def _with(state: State, who: int, driver: Driver) -> State:
    drivers = list(state.drivers)
    drivers[who] = driver
    return state._replace(drivers=tuple(drivers))


def _is_overtaken(state: State, driver: Driver) -> bool:
    return state.main != driver.base or state.since != driver.since


Step = Callable[[State, int, Rules], Iterator[State]]
EACH: tuple[Step, ...] = (begin_write, open_branch, merge_batch, record_deletes, check_main_unmoved, fast_forward_main)
ONCE: tuple[Step, ...] = (
    plan_batch,
    stage_batch,
    preview_rollback,
    roll_back,
    finish_rollback,
    rewrite_files,
    expire_snapshots,
)


class Violation(NamedTuple):
    """A promise that does not hold, and the steps that lead there."""

    promise: str
    steps: tuple[str, ...]


def broken(state: State) -> str | None:
    """The promise that a state breaks."""
    head = find(state.snapshots, state.main)
    if head is None:
        return "main's snapshot is there"
    through = cursor(state)
    if through is None:
        return "the cursor survives expiry and rollback"
    have, wanted = dict(head.rows), dict(fold(through))
    if set(have.items()) - set(wanted.items()):
        return "no row but those that the records up to the cursor leave: none comes back, none is old"
    if any(("delete" not in [kind for k, kind in LOG[through:] if k == key]) for key in set(wanted) - set(have)):
        return "each row that the records up to the cursor leave, unless a later record deletes it"
    return None


class Checked(NamedTuple):
    """What a search came to."""

    states: int
    violation: Violation | None


def check(first: State, rules: Rules, most: int = 2_000_000) -> Checked:
    """Look at every state that any order of the steps can reach; breadth first, so a violation is a shortest one."""
    came: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        if (promise := broken(state)) is not None:
            return Checked(len(came), Violation(promise, _path(came, state)))
        moves = [(step, who) for who in range(len(state.drivers)) for step in EACH] + [(step, 0) for step in ONCE]
        for step, who in moves:
            for after in map(_alike, step(state, who, rules)):
                if after not in came:
                    came[after] = state, f"{step.__name__}({who})" if step in EACH else step.__name__
                    waiting.append(after)
        if len(came) > most:
            raise RuntimeError(f"more than {most:,} states")
    return Checked(len(came), None)


def _path(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps = []
    while (before := came[state]) is not None:
        state, step = before
        steps.append(step)
    return tuple(reversed(steps))
