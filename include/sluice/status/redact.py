"""Removes the names of tables that a user may not see from errors and events.

An error about one table may name others that share its topic or folder. The command line and the logs show all names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from sluice.status.events import Event, Lane

if TYPE_CHECKING:
    from sluice.ledger.maintenance_table import ActionResult

ANOTHER = "another table"
# A whole table name: not a part of a longer one, and not a topic of the same name.
_NAME = re.compile(r"(?<![\w.-])(?<!opic ')(?<!opic )[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?![\w-])")
# To the end of the text: it lists any tables of the catalog and their folders, and stored errors are truncated.
_FOLDERS = re.compile(r"(FolderSharedError: (?!Another table, )|TableDamagedError: (?=Files of )).*", re.DOTALL)
_FOLDERS_REDACTED = r"\1The table's folder holds, or may hold, files of other tables. `sluice status TABLE` names them."


def without_paths(text: str) -> str:
    """Return the text with paths and addresses replaced by `…`: they may name tables that the reader may not see."""
    return re.sub(r"[^\s'\"(]*/[^\s'\"]*/[^\s'\"]*", "…", text)


def hide_names(text: str, names: Collection[str] | None) -> str:
    """Replace these table names by `another table`; None as names keeps the text."""
    return _NAME.sub(lambda found: ANOTHER if found[0] in names else found[0], text) if names else text


def redact_maintenance(text: str, names: Collection[str] | None) -> str:
    """Redact the text of a maintenance action, which may name folders, and tables without a contract."""
    return text if names is None else hide_names(_FOLDERS.sub(_FOLDERS_REDACTED, text), names)


def redact_effect(effect: ActionResult, names: Collection[str] | None) -> ActionResult:
    """Redact the error of a maintenance action."""
    return replace(effect, error=effect.error and redact_maintenance(effect.error, names))


def redact_events(found: Iterable[Event], names: frozenset[str] | None) -> list[Event]:
    """Redact the texts of events. A topic may have the name of a table."""
    if names is None:
        return [*found]
    redact_by_lane = {Lane.MAINTENANCE: redact_maintenance}
    return [
        replace(
            e, told=redact_by_lane.get(e.lane, hide_names)(e.told, names - {e.topic} if e.topic in names else names)
        )
        for e in found
    ]
