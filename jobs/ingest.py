"""The Spark job of one run of one group: arguments → `sluice.ingest.run` or `sluice.ingest.rounds` → exit code.

Exit codes: 0 the run ended (settle reports tables that failed), 2 a retry may help, 3 action required, 1 a bug.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from sluice.contract import folder as contract_folder
from sluice.ingest import application, rounds, run
from sluice.kafka import broker
from sluice.plan import resolve_topics


@application.as_job
def main(argv: list[str] | None = None) -> int:
    """Run the group; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", required=True)
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--stay", type=float, metavar="SECONDS", help="make one round after another for so long")
    parser.add_argument("--end-file", type=Path, help="with --stay: end before the next round when this file exists")
    arguments = parser.parse_args(argv)
    # Not strict: an invalid file of another group must not stop this one, and planning has reported it.
    contracts = contract_folder.load_contracts(strict=False)
    seconds = contracts.group(arguments.group).seconds
    kafka = broker.librdkafka_config()
    with application.start_spark(f"sluice ingest {arguments.group}", arguments.run_id, kafka) as context:
        if arguments.stay is not None:
            term = rounds.Term(arguments.stay, arguments.end_file)
            return rounds.run(context, arguments.group, broker.make_admin_client(kafka), term)
        contracts = resolve_topics.resolve(contracts, context.catalog, None)  # planned topics have a staging table
        group = contracts.group(arguments.group)
        deadline = time.monotonic() + seconds
        report = run.run(context, group, contracts, broker.make_admin_client(kafka), deadline=deadline)
    # Settle reports tables that require action; only an error that a retry may cure fails the application.
    return 2 if report.retryable else 0


if __name__ == "__main__":
    sys.exit(main(None))
