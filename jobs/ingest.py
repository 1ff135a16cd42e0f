"""What spark-submit starts: one run of one group. Arguments → `sluice.ingest.run.run` → exit code.

Exit codes: 0 the run ended (a table may have failed: settle tells), 2 a retry may help, 3 somebody must act, 1 a bug.
"""

from __future__ import annotations

import argparse
import sys
import time

from sluice.contract import folder as contract_folder
from sluice.ingest import application, run
from sluice.kafka import broker
from sluice.plan import resolve_topics


@application.exits
def main(argv: list[str] | None = None) -> int:
    """Run the group; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", required=True)
    parser.add_argument("--run-id", required=True)
    arguments = parser.parse_args(argv)
    # A broken file of another group must not stop this one; the plan has reported it.
    promises = contract_folder.load(strict=False)
    seconds = promises.group(arguments.group).seconds
    kafka = broker.client_config()
    with application.spark(f"sluice ingest {arguments.group}", arguments.run_id, kafka) as context:
        promises = resolve_topics.resolve(promises, context.catalog, None)  # what is planned has a staging table
        group = promises.group(arguments.group)
        report = run.run(context, group, promises, broker.admin(kafka), deadline=time.monotonic() + seconds)
    # A table that needs a person is settle's to report; only what another try may cure fails the submit.
    return 2 if report.retryable else 0


if __name__ == "__main__":
    sys.exit(main(None))
