"""The Spark job of a backfill's slices: arguments → `sluice.backfill.slice_run.run_slices` → exit code.

Exit codes: 0 the table holds the slices, or the time is up; 2 a retry may help, 3 action required, 1 a bug.
"""

from __future__ import annotations

import argparse
import sys
from math import inf

from sluice.backfill import slice_run
from sluice.contract import folder as contract_folder
from sluice.ingest import application
from sluice.kafka import broker
from sluice.ledger.slices import Origin
from sluice.plan import resolve_topics


@application.as_job
def main(argv: list[str] | None = None) -> int:
    """Run the slices; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--slices", required=True, help="their numbers in the ledger, below zero, with commas")
    parser.add_argument("--seconds", type=float, default=inf, help="begin no untried slice after so many")
    parser.add_argument("--source", required=True, choices=[str(o) for o in Origin])
    parser.add_argument("--run-id", required=True)
    arguments = parser.parse_args(argv)
    contracts = contract_folder.load_contracts(strict=False)
    kafka = broker.librdkafka_config()
    with application.start_spark(f"sluice backfill {arguments.table}", arguments.run_id, kafka) as context:
        slice_run.run_slices(
            context,
            resolve_topics.resolve(contracts, context.catalog, None),
            broker.make_admin_client(kafka),
            [
                slice_run.SliceTask(arguments.table, arguments.topic, int(seq), Origin(arguments.source))
                for seq in arguments.slices.split(",")
            ],
            seconds=arguments.seconds,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(None))
