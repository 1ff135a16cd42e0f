"""Whether failures of a table were rehearsed. In: `sluice.pilot`. Out: the last outcome of each scenario, as text."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sluice.ledger import pilot_table
from sluice.ledger.pilot_table import Stage
from sluice.status.text import utc_text

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

STEP = "Rehearse failures on a copy of this table: DAG {dag}, or `sluice rehearse TABLE`."


def read_rehearsal(catalog: Catalog, table: str, now: datetime, max_age: timedelta) -> tuple[bool, str]:
    """Return whether scenarios were played lately and ended as expected, and the facts.

    Args:
        max_age: how old the newest outcome may be.
    """
    rows = [each for each in pilot_table.read(catalog, table) if each.stage == Stage.REHEARSED]
    if not rows:
        return False, "never, according to `sluice.pilot`"
    last = {str(each.evidence.get("scenario", "")): each for each in rows}
    played = {name: each for name, each in last.items() if each.evidence.get("state") != "skipped"}
    failed = [name for name, each in played.items() if not each.ok]
    at = max(each.at for each in rows)
    evidence = f"last at {utc_text(at)}, {len(played) - len(failed)} of {len(played)} as expected"
    evidence += f", not: {', '.join(failed)}" if failed else ""
    if left := [name for name in last if name not in played]:
        evidence += f"; skipped: {', '.join(left)}"
    return bool(played) and not failed and now - at <= max_age, evidence
