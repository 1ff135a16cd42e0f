"""What spark-submit starts: one maintenance action on some tables. Arguments → `maintain.maintain.run` → exit code.

Exit codes: 0 the run ended (a table may have failed: the table's own task tells), 4 it goes on with tables for which no
time was left, 2 a retry may help, 3 somebody must act, 1 a bug.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from sluice.contract import folder as contract_folder
from sluice.errors import ConfigError
from sluice.ingest import application
from sluice.ledger import maintenance_table
from sluice.ledger.maintenance_table import Action
from sluice.maintain import maintain
from sluice.plan import resolve_topics

TABLES_WAIT = 4


@application.exits
def main(argv: list[str] | None = None) -> int:
    """Run the action; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--action", required=True, choices=[str(a) for a in Action])
    parser.add_argument("--tables", required=True, help="a JSON list of names, or @ and a file that holds one")
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--seconds", type=float, default=240.0, help="no further table is begun after so many")
    parser.add_argument("--dry-run", action="store_true", help="orphan files are listed, and stay")
    arguments = parser.parse_args(argv)
    names = table_names(arguments.tables)
    promises = contract_folder.load(strict=False)
    action = Action(arguments.action)
    with application.spark(f"sluice {action}", arguments.run_id, {}) as context:
        promises = resolve_topics.resolve(promises, context.catalog, None)
        untried = maintenance_table.untried(context.catalog, action, names, run_id=arguments.run_id)
        # None is left where somebody cleared the task: all of them again, as far as the time goes.
        chosen, deadline = untried or names, time.monotonic() + arguments.seconds
        effects = maintain.run(context, action, chosen, promises, deadline=deadline, dry_run=arguments.dry_run)
    return TABLES_WAIT if len(effects) < len(untried) else 0


def table_names(text: str) -> list[str]:
    """The names, from the argument itself or from the file that it names.

    Raises:
        ConfigError: it is not a JSON list of text.
    """
    try:
        names = json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--tables can't be read: {error}") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError('--tables must be a JSON list of names, such as ["shop.orders"].')
    return names


if __name__ == "__main__":
    sys.exit(main(None))
