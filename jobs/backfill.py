"""What spark-submit starts: one slice of a backfill. Arguments → `sluice.backfill_run.run` → exit code.

Exit codes: 0 the table holds the slice, 2 a retry may help, 3 somebody must act, 1 a bug.
"""

from __future__ import annotations

import argparse
import sys

from sluice import application, backfill_run, broker, contracts, topics
from sluice.slices import Origin


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
    promises = contracts.load(strict=False)
    kafka = broker.client_config()
    with application.spark(f"sluice backfill {arguments.table}", arguments.run_id, kafka) as context:
        backfill_run.run(
            context,
            topics.resolve(promises, context.catalog, None),
            broker.admin(kafka),
            table=arguments.table,
            topic=arguments.topic,
            seq=arguments.slice,
            origin=Origin(arguments.source),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(None))
