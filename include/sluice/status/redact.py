"""What is told to somebody, without the names of tables that they may not see.

An error about one table may name others: those that share its topic, or whose files lie in its folder. The command line
and the logs name them, and so do the pages to whoever may see all: to them no names are None.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from sluice.status.events import Event, Lane

if TYPE_CHECKING:
    from sluice.ledger.maintenance_table import Effect

ANOTHER = "another table"
# A whole name, as contracts write it: no part of a longer one, and no topic's, which may be called so as well.
_NAME = re.compile(r"(?<![\w.-])(?<!opic ')(?<!opic )[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?![\w-])")
# To its end: the names are any that the catalog has, their folders tell them too, and what is kept is cut short.
_FOLDERS = re.compile(r"(FolderSharedError: (?!Another table, )|TableDamagedError: (?=Files of )).*", re.DOTALL)
_WHICH = (
    r"\1Files of other tables lie, or may lie, in this one's folder: `python -m sluice status TABLE` tells of which."
)


def without(text: str, names: Collection[str] | None) -> str:
    """A text, with `another table` in the place of these names."""
    return _NAME.sub(lambda found: ANOTHER if found[0] in names else found[0], text) if names else text


def of_maintenance(text: str, names: Collection[str] | None) -> str:
    """The same of what maintenance tells, which may name tables that no contract has, and whose folders they are."""
    return text if names is None else without(_FOLDERS.sub(_WHICH, text), names)


def of_effect(effect: Effect, names: Collection[str] | None) -> Effect:
    """The same of what one action did to a table."""
    return replace(effect, error=effect.error and of_maintenance(effect.error, names))


def of_events(found: Iterable[Event], names: frozenset[str] | None) -> list[Event]:
    """The same of what happened. A topic may be called as a table is."""
    if names is None:
        return [*found]
    how = {Lane.MAINTENANCE: of_maintenance}
    return [
        replace(e, told=how.get(e.lane, without)(e.told, names - {e.topic} if e.topic in names else names))
        for e in found
    ]
