"""Whether failures of a table were rehearsed. In: its pilot's rows. Out: the last outcome of each scenario, as text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sluice.ledger.pilot_table import PilotRow, Stage
from sluice.status.text import utc_text

STEP = "Rehearse failures on a copy of this table: DAG {dag}, or `sluice rehearse TABLE`."


def describe_rehearsals(pilot: Sequence[PilotRow], now: datetime, max_age: timedelta) -> tuple[bool, str]:
    """Return whether scenarios were played lately and ended as expected, and the facts.

    Args:
        pilot: the table's rows of `sluice.pilot`.
        now: the time.
        max_age: how old the newest outcome may be.
    """
    rows = [each for each in pilot if each.stage == Stage.REHEARSED]
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
