"""The Spark job of one maintenance action on some tables: arguments → `sluice.maintain.maintain` → exit code.

Exit codes: 0 the run ended (each table's own task reports its failure; tables without a result in `sluice.maintenance`
wait for the next application), 2 a retry may help, 3 action required, 1 a bug.
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


@application.as_job
def main(argv: list[str] | None = None) -> int:
    """Run the action; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--action", required=True, choices=[str(a) for a in Action])
    parser.add_argument("--tables", required=True, help="a JSON list of names, or @ and the path of a file with one")
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--seconds", type=float, default=240.0, help="no further table is started after this time")
    parser.add_argument("--dry-run", action="store_true", help="list orphan files and delete none")
    arguments = parser.parse_args(argv)
    names = read_table_names(arguments.tables)
    contracts = contract_folder.load_contracts(strict=False)
    action = Action(arguments.action)
    with application.start_spark(f"sluice {action}", arguments.run_id, {}) as context:
        contracts = resolve_topics.resolve(contracts, context.catalog, None)
        remaining = maintenance_table.find_tables_without_result(
            context.catalog, action, names, run_id=arguments.run_id
        )
        # If the task was cleared after all tables were tried, all are tried again.
        chosen, deadline = remaining or names, time.monotonic() + arguments.seconds
        maintain.maintain_tables(
            maintain.MaintenanceRun(context, contracts, action, dry_run=arguments.dry_run), chosen, deadline=deadline
        )
    return 0


def read_table_names(text: str) -> list[str]:
    """Read table names from the argument, or from the file that `@path` names.

    Raises:
        ConfigError: they are not a JSON list of strings.
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
