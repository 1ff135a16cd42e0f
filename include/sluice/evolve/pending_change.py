"""What a contract's file asks of its table, as `sluice.evolve` finds it: the two contracts, the changes, the review."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table import Table

from sluice.contract.contract import Contract
from sluice.contract.shape import shape_id
from sluice.evolve.diff import Change
from sluice.iceberg.active_contract import InForce


@dataclass(frozen=True)
class Outlook:
    """What a contract's file asks of its table.

    Attributes:
        base: the table that was looked at.
        told: the contract in force, as the table keeps it; None for a table that is older than that.
        old, new: the contract in force, and the one that is asked for: the file's without what is ignored.
        changes: from one to the other.
        ignored: changes of the file that are ignored.
        review: what stands between the two: `open`, `approved`, `rejected`; None where nobody needs to be asked.
        first: the masks that the file adds, where the rest of it waits: they are a version of their own, which `old` is
            already. None where there are none.
        unfollowed: why the schema that gives the columns is not followed; `new` is `old` then.
    """

    base: Table
    told: InForce | None
    old: Contract
    new: Contract
    changes: tuple[Change, ...] = ()
    ignored: tuple[Change, ...] = ()
    review: str | None = None
    first: Outlook | None = None
    unfollowed: str | None = None

    @property
    def table(self) -> str:
        """The table's name."""
        return self.new.table

    @property
    def due(self) -> bool:
        """Whether the table is to be changed now."""
        if self.unfollowed:
            return False
        return self.review in (None, "approved") and (self.told is None or shape_id(self.new) != self.told.id)

    @property
    def change_id(self) -> str:
        """A name for the change: from which shape, to which."""
        return f"{shape_id(self.old)}_{shape_id(self.new)}"

    def words(self) -> list[str]:
        """The changes, in words."""
        return [c.words for c in self.changes]

    def line(self) -> str | None:
        """One sentence for plan and status; None where there is nothing to say."""
        if self.unfollowed:
            return f"{self.unfollowed} The table goes on with version {self.version} of its contract"
        if self.review in ("open", "rejected"):
            state = "under review" if self.review == "open" else "rejected, and still in the contract's file"
            return f"{state}: {'; '.join(self.words())}. The table goes on with version {self.version} of its contract"
        return f"version {self.version + 1}: {'; '.join(self.words())}" if self.due and self.changes else None

    @property
    def version(self) -> int:
        """The number of the version in force, its masks among it."""
        return (self.told.version if self.told else 1) + bool(self.first)
