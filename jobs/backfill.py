"""What spark-submit starts: one slice of a backfill. Arguments → `sluice.backfill_run.run` → exit code.

Exit codes: 0 the table holds the slice, 2 a retry may help, 3 somebody must act, 1 a bug.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from sluice import backfill_run, broker, catalog, contracts, session
from sluice.commit import Context
from sluice.errors import SluiceError, exit_code
from sluice.slices import Origin


def main(argv: list[str] | None = None) -> int:
    """Run the slice; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--slice", required=True, type=int, help="its number, below zero, as in the ledger")
    parser.add_argument("--source", required=True, choices=[str(o) for o in Origin])
    parser.add_argument("--run-id", required=True)
    arguments = parser.parse_args(argv)
    session.log_to_stdout()
    began = time.monotonic()
    try:
        promises = contracts.load(strict=False)
        kafka = broker.client_config()
        spark = session.build(f"sluice backfill {arguments.table}")
        spark.sparkContext.setLogLevel("WARN")
        logging.info("Spark is up after %.1f s", time.monotonic() - began)
        backfill_run.run(
            Context(spark, catalog.load(), catalog.catalog_name(), kafka, arguments.run_id),
            promises,
            broker.admin(kafka),
            table=arguments.table,
            topic=arguments.topic,
            seq=arguments.slice,
            origin=Origin(arguments.source),
        )
        spark.stop()
    except SluiceError as error:
        logging.error("%s", error)
        return exit_code(error)
    logging.info("done after %.1f s", time.monotonic() - began)
    return 0


if __name__ == "__main__":
    sys.exit(main())
