"""Schema evolution, at plan time and without a JVM: what a changed contract asks of its table, and what becomes of it.

`look` decides by the policies, changing nothing. `settle` applies what may be applied, and opens a review of what may
not: the table then goes on with the contract in force, until `decide` says otherwise. Batches are published by the
contract in force alone, which the table keeps; so it makes no difference under which one a batch was planned or staged.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pydantic import ValidationError
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from sluice.contract.contract import Contract
from sluice.contract.shape import shape, shape_id
from sluice.errors import FencedError, RefusedError, SchemaChangeError, SluiceError
from sluice.evolve import apply, auto_columns
from sluice.evolve.diff import READ, Change, compare
from sluice.evolve.ignore import without
from sluice.evolve.pending_change import Outlook
from sluice.iceberg import cursor, schema, table_names, tables
from sluice.iceberg.active_contract import InForce, effective, with_masks
from sluice.ledger import schemas_table
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.schemas_table import Row, State

log = logging.getLogger(__name__)

TRIES = 10
ANSWERS = (State.APPROVED, State.REJECTED)


def look(catalog: Catalog, table: Table, file: Contract) -> Outlook:
    """Compare the contract's file, its columns listed, with the one in force.

    Raises:
        SchemaChangeError: a change is refused by its policy, or can't be made; or the table was altered by other hands.
    """
    told = InForce.of(table)
    old = effective(table, file)
    if file.auto is None:
        return _look(catalog, table, told, old, file)
    # Producers change that schema: a table goes on without it, unlike one whose file somebody has edited.
    try:
        return _look(catalog, table, told, old, auto_columns.resolved(file))
    except SluiceError as error:
        log.warning("%s goes on with the columns that it has: %s", file.table, error)
        held, first = _masked(table, told, old, file)
        return Outlook(table, told, held, held, first=first, unfollowed=str(error))


def _look(catalog: Catalog, table: Table, told: InForce | None, old: Contract, file: Contract) -> Outlook:
    if told is None or told.id == shape_id(file):
        return Outlook(table, told, old, file)
    policy = file.schema_policy.model_dump()
    before = schemas_table.before(catalog, table, file)
    found = compare(old, file, before)
    ignored = tuple(c for c in found if policy.get(c.kind) == "ignore")
    new, changes = file, found
    if ignored:
        try:
            new = without(old, file, ignored)
        except ValidationError as error:
            raise SchemaChangeError(
                f"Without what is ignored ({_told(ignored)}) the contract contradicts itself: "
                f"{error.errors()[0]['msg']}.",
                table=file.table,
            ) from error
        changes = compare(old, new, before)
        # To leave a column as it was does not undo what has changed in the columns and inputs that it names.
        if left := [c for c in changes if c.kind == "change_mask" and policy[c.kind] == "ignore"]:
            raise SchemaChangeError(
                f"This can't be ignored, as it comes by other columns or inputs that have changed: {_told(left)}.",
                table=file.table,
                way_out=f"Mask {', '.join(c.column for c in left)}, or set `schema_policy: {{change_mask: review}}`.",
            )
    outlook = Outlook(table, told, old, new, changes, ignored)
    if shape_id(new) == told.id:
        return outlook
    if refused := [c for c in changes if policy.get(c.kind) == "refuse"]:
        raise SchemaChangeError(f"The contract refuses this change: {_told(refused)}.", table=file.table)
    if any(policy.get(c.kind) == "review" for c in changes):
        held, first = _masked(table, told, old, file)
        outlook = replace(outlook, old=held, changes=compare(held, new, before), first=first)
        answers = _answers(catalog, outlook)
        outlook = replace(outlook, review=str(answers[-1].state) if answers else "open")
    if outlook.due and (why := apply.impossible(table, old, new, changes)):
        way_out = "Put the contract back until then."
        raise SchemaChangeError(f"{_told(changes)}: {why}", table=file.table, way_out=way_out)
    return outlook


def _masked(table: Table, told: InForce | None, old: Contract, file: Contract) -> tuple[Contract, Outlook | None]:
    """The contract in force with the masks that the file adds, and how they come into force, where it has them not."""
    held = with_masks(old, file)
    return held, None if held == old else Outlook(table, told, old, held, compare(old, held))


def _told(changes: Sequence[Change]) -> str:
    return "; ".join(c.words for c in changes)


def settle(catalog: Catalog, file: Contract, seen: Outlook | None = None, *, run_id: str) -> Outlook:
    """Apply what is due, open the review that is needed, each once.

    Args:
        seen: what `look` found a moment ago.

    Raises:
        SchemaChangeError: as `look`.
        FencedError: the table was changed each time before it could be.
    """
    _set_properties(file, seen.base if seen else catalog.load_table(table_names.typed(file)))
    for _ in range(TRIES):
        outlook = seen or look(catalog, catalog.load_table(table_names.typed(file)), file)
        seen = None
        if outlook.first:
            # They come into force by themselves, so that to take them away again is a change of its own.
            _applied(catalog, outlook.first, run_id)
            continue
        if outlook.review == "open":
            schemas_table.append_once(catalog, _row(outlook, State.REVIEW, run_id), (State.REVIEW,))
        if not outlook.due:
            return outlook
        if _applied(catalog, outlook, run_id):
            return outlook
    raise FencedError("The table moved each time before its schema could be changed.", table=file.table)


def _set_properties(file: Contract, table: Table) -> None:
    """Give a table the properties that its contract came to name. Of what it names no more nothing tells.

    And those for large records, if it was made before there were any.
    """
    late = {n: v for n, v in schema.LARGE_RECORDS.items() if n not in table.properties}
    differing = {n: v for n, v in (late | file.properties).items() if table.properties.get(n) != v}
    if not differing:
        return
    try:
        with table.transaction() as transaction:
            transaction.set_properties(differing)
    except CommitFailedException as error:
        log.info("%s: its properties are set with the next run: %s", file.table, error)
    else:
        log.warning("%s: properties set: %s", file.table, ", ".join(sorted(differing)))


def _applied(catalog: Catalog, outlook: Outlook, run_id: str) -> bool:
    """Change the table, and tell whether that was done: not where it moved meanwhile."""
    table, name = outlook.base, outlook.table
    if outlook.told:
        schemas_table.remember(catalog, [table], run_id)
    decided = _answers(catalog, outlook)[-1] if outlook.review else None
    through = cursor.published(table, lambda: Ledger(catalog).remembered(name))
    told = InForce(
        version=outlook.version + 1 if outlook.told else 1,
        id=shape_id(outlook.new),
        shape=shape(outlook.new),
        words=outlook.words() or ["takes the contract's file for the one in force"],
        kinds=list(dict.fromkeys(c.kind for c in outlook.changes)),
        offsets={t: {str(p): o for p, o in x.next_offsets.items()} for t, x in through.items()},
        snapshot_id=table.metadata.current_snapshot_id,
        who=decided.who if decided else None,
        why=decided.why if decided else None,
    )
    try:
        apply.commit(catalog, table, outlook.old, outlook.new, told, run_id)
    except CommitFailedException as error:
        log.info("%s: the table moved on, looking again: %s", name, error)
        return False
    for change in outlook.changes:
        log.warning("%s: version %s of the contract: %s", name, told.version, change.words)
    schemas_table.remember(catalog, [catalog.load_table(table_names.typed(outlook.new))], run_id)
    return True


def _answers(catalog: Catalog, outlook: Outlook) -> list[Row]:
    """What was answered to the change, oldest first."""
    like = _row(outlook, State.REVIEW, "")
    return schemas_table.same_change(schemas_table.rows(catalog, outlook.table), like, ANSWERS)


def opened(catalog: Catalog, outlook: Outlook) -> Row | None:
    """The row that opened the review of this change; None where no run has."""
    like = _row(outlook, State.REVIEW, "")
    return next(
        iter(schemas_table.same_change(schemas_table.rows(catalog, outlook.table), like, (State.REVIEW,))), None
    )


def _row(outlook: Outlook, state: State, run_id: str, who: str | None = None, why: str | None = None) -> Row:
    return Row(
        outlook.table,
        state,
        outlook.version + 1,
        shape_id(outlook.new),
        base_id=shape_id(outlook.old),
        kinds=list(dict.fromkeys(c.kind for c in outlook.changes if c.kind != READ)),
        words=outlook.words(),
        snapshot_id=outlook.base.metadata.current_snapshot_id,
        who=who,
        why=why,
        run_id=run_id,
        table_uuid=str(outlook.base.metadata.table_uuid),
    )


def under_review(catalog: Catalog, file: Contract, *, again: bool = False) -> Outlook:
    """The open review of a table.

    Args:
        again: take one that was rejected as well.

    Raises:
        RefusedError: there is none.
    """
    table = tables.load(catalog, table_names.typed(file))
    if table is None:
        raise RefusedError("The table does not exist yet: the first run creates it.", table=file.table)
    outlook = look(catalog, table, file)
    if outlook.review != "open" and not (again and outlook.review == "rejected"):
        was = f"It was {outlook.review}." if outlook.review else "The contract's file asks for nothing to review."
        was = outlook.unfollowed or was
        raise RefusedError(f"No change of this table is under review. {was}", table=file.table)
    return outlook


def decide(
    catalog: Catalog, file: Contract, *, approve: bool, who: str, why: str, run_id: str, change_id: str = ""
) -> Outlook:
    """Approve or reject the change under review; an approved one is applied at once. A rejection may be taken back.

    Args:
        change_id: the change that was looked at; refused if the contract's file has changed since.

    Raises:
        RefusedError: nothing is under review, or another change, or it can't be made; or no reason is given.
        FencedError: the table was changed each time before it could be: the answer stands, and the next run applies it.
    """
    if not why.strip():
        raise RefusedError("No reason is given.", table=file.table, way_out="Say why: it is kept in sluice.schemas.")
    outlook = under_review(catalog, file, again=approve)
    if change_id and change_id != outlook.change_id:
        raise RefusedError(
            "The contract has changed since it was shown.", table=file.table, way_out="Look at the change again."
        )
    if approve and (cannot := apply.impossible(outlook.base, outlook.old, outlook.new, outlook.changes)):
        raise RefusedError(f"{_told(outlook.changes)}: {cannot}", table=file.table, way_out="Reject it.")
    mine = _row(outlook, State.APPROVED if approve else State.REJECTED, run_id, who, why)
    if not approve:  # what it asked for, so that records that fail for it can tell
        mine = replace(mine, contract=json.dumps(shape(outlook.new)))
    stands = schemas_table.append_once(catalog, mine, ANSWERS if outlook.review == "open" else (State.APPROVED,))
    if stands is not mine:
        raise RefusedError(f"{stands.who or 'Somebody'} has {stands.state} it already.", table=file.table)
    if approve:
        settle(catalog, file, run_id=run_id)
    return replace(outlook, review=str(mine.state))


def versions(catalog: Catalog, file: Contract) -> list[Row]:
    """Every version and every answer, oldest first; the one in force also where nobody lived to write it down."""
    known = schemas_table.rows(catalog, file.table)
    table = tables.load(catalog, table_names.typed(file))
    return [*known, *(schemas_table.untold(table, known) if table else ())]


def created(catalog: Catalog, made: Iterable[Contract], *, run_id: str) -> None:
    """Write down the first version of tables that were just made."""
    schemas_table.remember(catalog, [catalog.load_table(table_names.typed(c)) for c in made], run_id)
