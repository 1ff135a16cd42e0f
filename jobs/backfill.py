"""What spark-submit starts: one slice of a backfill. Arguments → `sluice.backfill.run.run` → exit code.

Exit codes: 0 the table holds the slice, 2 a retry may help, 3 somebody must act, 1 a bug.
"""

from __future__ import annotations

import argparse
import sys

from sluice.backfill import run
from sluice.contract import folder as contract_folder
from sluice.ingest import application
from sluice.kafka import broker
from sluice.ledger.slices import Origin
from sluice.plan import resolve_topics


@application.exits
def main(argv: list[str] | None = None) -> int:
    """Run the slice; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--slice", required=True, type=int, help="its number, below zero, as in the ledger")
    parser.add_argument("--source", required=True, choices=[str(o) for o in Origin])
    parser.add_argument("--run-id", required=True)
    arguments = parser.parse_args(argv)
    promises = contract_folder.load(strict=False)
    kafka = broker.client_config()
    with application.spark(f"sluice backfill {arguments.table}", arguments.run_id, kafka) as context:
        run.run(
            context,
            resolve_topics.resolve(promises, context.catalog, None),
            broker.admin(kafka),
            table=arguments.table,
            topic=arguments.topic,
            seq=arguments.slice,
            origin=Origin(arguments.source),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(None))
