"""Schema evolution at plan time, without a JVM: compares a contract file with the active contract and applies changes.

`find_pending_change` changes nothing. `apply_pending` applies what the policies allow and opens a review of the rest;
until `decide` approves it, the table keeps its active contract, by which alone batches are published.
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
from sluice.evolve.diff import READ, ContractChange, compare_contracts
from sluice.evolve.ignore import omit_changes
from sluice.evolve.pending_change import PendingChange, ReviewDecision
from sluice.iceberg import cursor, table_names, tables
from sluice.iceberg.active_contract import ContractVersion, add_masks, resolve_active_contract
from sluice.ledger import schemas_table
from sluice.ledger.schemas_table import SchemaRow, SchemaState

log = logging.getLogger(__name__)

ATTEMPTS = 10
ANSWERS = (SchemaState.APPROVED, SchemaState.REJECTED)


def find_pending_change(catalog: Catalog, table: Table, file: Contract) -> PendingChange:
    """Compare the contract file, its columns listed, with the active contract; changes nothing.

    Raises:
        SchemaChangeError: a change is refused by its policy or impossible; or the table was altered by another engine.
    """
    active = ContractVersion.from_table(table)
    old = resolve_active_contract(table, file)
    if file.auto is None:
        return _compare_with_policy(catalog, PendingChange(table, active, old, file))
    # Producers change that schema: unlike an edited file, a schema that does not fit must not stop the table.
    try:
        return _compare_with_policy(catalog, PendingChange(table, active, old, auto_columns.resolve_columns(file)))
    except SluiceError as error:
        log.warning("%s keeps its columns: %s", file.table, error)
        masked, mask_change = _add_new_masks(PendingChange(table, active, old, file))
        return PendingChange(table, active, masked, masked, mask_change=mask_change, schema_error=str(error))


def _compare_with_policy(catalog: Catalog, asked: PendingChange) -> PendingChange:
    """Fill in what changes, what of it is ignored, and what is under review, by the file's `schema_policy`.

    Args:
        asked: the active contract, and the file's as the new one.
    """
    table, active, old, file = asked.base, asked.active, asked.old, asked.new
    if active is None or active.id == shape_id(file):
        return asked
    policy = file.schema_policy.model_dump()
    before = schemas_table.read_previous_contracts(catalog, table, file)
    all_changes = compare_contracts(old, file, before)
    ignored = tuple(c for c in all_changes if policy.get(c.kind) == "ignore")
    new, changes = file, all_changes
    if ignored:
        try:
            new = omit_changes(old, file, ignored)
        except ValidationError as error:
            raise SchemaChangeError(
                f"Without the ignored changes ({_describe(ignored)}) the contract contradicts itself: "
                f"{error.errors()[0]['msg']}.",
                table=file.table,
            ) from error
        changes = compare_contracts(old, new, before)
        # Leaving a column as it was does not undo changes of the columns and inputs that its expression names.
        if left := [c for c in changes if c.kind == "change_mask" and policy[c.kind] == "ignore"]:
            raise SchemaChangeError(
                f"This can't be ignored, because it follows from other changed columns or inputs: {_describe(left)}.",
                table=file.table,
                next_step=f"Mask {', '.join(c.column for c in left)}, or set `schema_policy: {{change_mask: review}}`.",
            )
    change = replace(asked, new=new, changes=changes, ignored=ignored)
    if shape_id(new) == active.id:
        return change
    if refused := [c for c in changes if policy.get(c.kind) == "refuse"]:
        raise SchemaChangeError(f"The contract refuses this change: {_describe(refused)}.", table=file.table)
    if any(policy.get(c.kind) == "review" for c in changes):
        masked, mask_change = _add_new_masks(asked)
        change = replace(change, old=masked, changes=compare_contracts(masked, new, before), mask_change=mask_change)
        answers = _review_answers(catalog, change)
        last = answers[-1] if answers else None
        change = replace(change, review=str(last.state) if last else "open", answer=last)
    if change.due and (why := apply.find_obstacle(table, old, new, changes)):
        raise SchemaChangeError(
            f"{_describe(changes)}: {why}",
            table=file.table,
            next_step="Undo the change in the contract until that is done.",
        )
    return change


def _add_new_masks(asked: PendingChange) -> tuple[Contract, PendingChange | None]:
    """The active contract with the masks that the file adds, and the change that applies them, if there are any."""
    old = asked.old
    masked = add_masks(old, asked.new)
    if masked == old:
        return masked, None
    return masked, PendingChange(asked.base, asked.active, old, masked, compare_contracts(old, masked))


def _describe(changes: Sequence[ContractChange]) -> str:
    return "; ".join(c.description for c in changes)


def apply_pending(
    catalog: Catalog, file: Contract, change: PendingChange | None = None, *, run_id: str
) -> PendingChange:
    """Apply the change that is due, and open the review that is needed; running it again changes nothing.

    Args:
        catalog: where the table is.
        file: the contract file.
        change: the result of `find_pending_change`, if it was just called.
        run_id: the run that is recorded with the change.

    Raises:
        SchemaChangeError: as `find_pending_change`.
        FencedError: the table changed during each attempt.
    """
    for _ in range(ATTEMPTS):
        found = change or find_pending_change(catalog, catalog.load_table(table_names.typed(file)), file)
        change = None
        if found.mask_change:
            # Masks are applied without a review, as a version of their own: removing them later is a separate change.
            _apply_once(catalog, found.mask_change, run_id)
            continue
        if found.review == "open":
            row = _review_row(found, SchemaState.REVIEW, run_id)
            schemas_table.append_once(catalog, row, (SchemaState.REVIEW,))
        if not found.due:
            _describe_table(found)
            return found
        if _apply_once(catalog, found, run_id):
            return found
    raise FencedError(f"The table changed during each of {ATTEMPTS} attempts to apply its contract.", table=file.table)


def _describe_table(found: PendingChange) -> None:
    """Set the properties and comments of a contract whose shape the table has already: they need no review."""
    try:
        done = apply.describe_table(found.base, found.old, found.version)
    except CommitFailedException as error:
        log.info("%s: its properties are set with the next run: %s", found.table, error)
    else:
        if done:
            log.warning("%s: set by its contract: %s", found.table, ", ".join(done))


def _apply_once(catalog: Catalog, change: PendingChange, run_id: str) -> bool:
    """Change the table. False where another commit came first: nothing was changed then."""
    table, name = change.base, change.table
    if change.active:
        schemas_table.record_versions(catalog, [table], run_id)
    decided = _review_answers(catalog, change)[-1] if change.review else None
    through = cursor.read_table_cursor(table)
    version = ContractVersion(
        version=change.version + 1 if change.active else 1,
        id=shape_id(change.new),
        shape=shape(change.new),
        words=change.descriptions() or ["takes the contract file as the active contract"],
        kinds=list(dict.fromkeys(c.kind for c in change.changes)),
        offsets={t: {str(p): o for p, o in x.next_offsets.items()} for t, x in through.items()},
        snapshot_id=table.metadata.current_snapshot_id,
        who=decided.who if decided else None,
        why=decided.why if decided else None,
    )
    try:
        apply.commit_change(catalog, change, version, run_id)
    except CommitFailedException as error:
        log.info("%s: the table changed meanwhile, trying again: %s", name, error)
        return False
    for description in change.descriptions():
        log.warning("%s: version %s of the contract: %s", name, version.version, description)
    schemas_table.record_versions(catalog, [catalog.load_table(table_names.typed(change.new))], run_id)
    return True


def _review_answers(catalog: Catalog, change: PendingChange) -> list[SchemaRow]:
    """The answers to the review of this change, oldest first."""
    like = _review_row(change, SchemaState.REVIEW, "")
    return schemas_table.find_same_change(schemas_table.read_schema_rows(catalog, change.table), like, ANSWERS)


def find_review_row(catalog: Catalog, change: PendingChange) -> SchemaRow | None:
    """The row that opened the review of this change; None where no run has opened it."""
    like = _review_row(change, SchemaState.REVIEW, "")
    rows = schemas_table.find_same_change(
        schemas_table.read_schema_rows(catalog, change.table), like, (SchemaState.REVIEW,)
    )
    return rows[0] if rows else None


def _review_row(
    change: PendingChange, state: SchemaState, run_id: str, who: str | None = None, why: str | None = None
) -> SchemaRow:
    return SchemaRow(
        change.table,
        state,
        change.version + 1,
        shape_id(change.new),
        base_id=shape_id(change.old),
        kinds=list(dict.fromkeys(c.kind for c in change.changes if c.kind != READ)),
        words=change.descriptions(),
        snapshot_id=change.base.metadata.current_snapshot_id,
        who=who,
        why=why,
        run_id=run_id,
        table_uuid=str(change.base.metadata.table_uuid),
    )


def load_review(catalog: Catalog, file: Contract, *, include_rejected: bool = False) -> PendingChange:
    """The change of a table that is under review.

    Args:
        catalog: where the table is.
        file: the contract file.
        include_rejected: accept a change that was rejected, too.

    Raises:
        RefusedError: there is none.
    """
    table = tables.load(catalog, table_names.typed(file))
    if table is None:
        raise RefusedError("The table does not exist yet: the first run creates it.", table=file.table)
    change = find_pending_change(catalog, table, file)
    if change.review != "open" and not (include_rejected and change.review == "rejected"):
        why = f"It was {change.review}." if change.review else "The contract file has no change to review."
        raise RefusedError(f"No change of this table is under review. {change.schema_error or why}", table=file.table)
    return change


def decide(catalog: Catalog, file: Contract, decision: ReviewDecision) -> PendingChange:
    """Approve or reject the change under review; an approved one is applied at once. A rejected one can be approved.

    Raises:
        RefusedError: nothing is under review, or another change, or it is impossible; or no reason is given.
        FencedError: the table changed during each attempt: the answer is recorded, and the next run applies it.
    """
    approve = decision.approve
    if not decision.why.strip():
        raise RefusedError(
            "No reason is given.", table=file.table, next_step="Give a reason: it is kept in sluice.schemas."
        )
    change = load_review(catalog, file, include_rejected=approve)
    if decision.change_id and decision.change_id != change.change_id:
        raise RefusedError(
            "The contract has changed since it was shown.", table=file.table, next_step="Look at the change again."
        )
    if approve and (obstacle := apply.find_obstacle(change.base, change.old, change.new, change.changes)):
        raise RefusedError(f"{_describe(change.changes)}: {obstacle}", table=file.table, next_step="Reject it.")
    state = SchemaState.APPROVED if approve else SchemaState.REJECTED
    mine = _review_row(change, state, decision.run_id, decision.who, decision.why)
    if not approve:  # keep the requested contract: the errors of records that need the rejected change name it
        mine = replace(mine, contract=json.dumps(shape(change.new)))
    stored = schemas_table.append_once(catalog, mine, ANSWERS if change.review == "open" else (SchemaState.APPROVED,))
    if stored is not mine:
        raise RefusedError(f"{stored.who or 'Somebody'} has already {stored.state} it.", table=file.table)
    if approve:
        apply_pending(catalog, file, run_id=decision.run_id)
    return replace(change, review=str(mine.state), answer=mine)


def list_versions(catalog: Catalog, file: Contract) -> list[SchemaRow]:
    """Every version and every answer, oldest first; with the active version even where no run recorded it."""
    known = schemas_table.read_schema_rows(catalog, file.table)
    table = tables.load(catalog, table_names.typed(file))
    return [*known, *(schemas_table.unrecorded_version(table, known) if table else ())]


def record_created_tables(catalog: Catalog, created: Iterable[Contract], *, run_id: str) -> None:
    """Record the first contract version of tables that were just created."""
    schemas_table.record_versions(catalog, [catalog.load_table(table_names.typed(c)) for c in created], run_id)
