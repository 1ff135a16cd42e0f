"""The change that a contract file asks of its table: the two contracts, their differences, the review."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC

from pyiceberg.table import Table

from sluice.contract.contract import Contract
from sluice.contract.shape import shape_id
from sluice.evolve.diff import ContractChange
from sluice.iceberg.active_contract import ContractVersion
from sluice.ledger.schemas_table import SchemaRow


@dataclass(frozen=True)
class PendingChange:
    """The change that a contract file asks of its table; it may be empty.

    Attributes:
        base: the table as it was when the two were compared.
        active: the active contract version, as the table stores it; None for a table that stores none yet.
        old, new: the active contract, and the requested one: the file's without ignored changes.
        changes: from `old` to `new`.
        ignored: changes of the file that its policy ignores.
        review: `open`, `approved` or `rejected`; None where no review is needed.
        answer: the last answer to that review; None before the first.
        mask_change: the masks that the file adds, where the other changes wait for a review. They are applied first, as
            a version of their own, and `old` has them already. None where there are none.
        schema_error: why the columns of the newest registered schema can't be used; `new` is `old` then.
    """

    base: Table
    active: ContractVersion | None
    old: Contract
    new: Contract
    changes: tuple[ContractChange, ...] = ()
    ignored: tuple[ContractChange, ...] = ()
    review: str | None = None
    answer: SchemaRow | None = None
    mask_change: PendingChange | None = None
    schema_error: str | None = None

    @property
    def table(self) -> str:
        """The table's name."""
        return self.new.table

    @property
    def due(self) -> bool:
        """Whether the change is to be applied now."""
        if self.schema_error:
            return False
        return self.review in (None, "approved") and (self.active is None or shape_id(self.new) != self.active.id)

    @property
    def change_id(self) -> str:
        """Identifies the change by the shapes of the two contracts."""
        return f"{shape_id(self.old)}_{shape_id(self.new)}"

    def descriptions(self) -> list[str]:
        """One text per change."""
        return [c.description for c in self.changes]

    def summary(self) -> str | None:
        """One sentence for plan and status; None where there is nothing to say."""
        stays = f"The table stays at version {self.version} of its contract"
        text = "; ".join(self.descriptions())
        if self.schema_error:
            return f"{self.schema_error} {stays}"
        if self.review in ("open", "rejected"):
            if self.review == "open":
                return f"under review: {text}. {stays}"
            return f"rejected{self.answer_text}, but still in the contract file: {text}. {stays}"
        return f"version {self.version + 1}: {text}" if self.due and self.changes else None

    @property
    def answer_text(self) -> str:
        """Who answered the review, when and why, to follow the answer."""
        row = self.answer
        if row is None:
            return ""
        why = " ".join((row.why or "no reason given").split())
        return f" by {row.who or 'somebody'} at {row.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({why})"

    @property
    def state(self) -> str | None:
        """`open` or `rejected` of a review, or `due`; None where there is nothing to do."""
        return self.review if self.review in ("open", "rejected") else "due" if self.due else None

    @property
    def version(self) -> int:
        """The number of the active version, with the masks that are applied first."""
        return (self.active.version if self.active else 1) + bool(self.mask_change)


@dataclass(frozen=True)
class ReviewDecision:
    """An operator's answer to a review.

    Attributes:
        change_id: the change that the operator saw; if the contract has changed since, the answer is refused.
    """

    approve: bool
    who: str
    why: str
    run_id: str
    change_id: str = ""
