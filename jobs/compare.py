"""The Spark job of a comparison: arguments → `sluice.compare.compare_tables.compare` → exit code.

Exit codes: 0 compared, whatever the verdict, which `sluice.pilot` has; 2 a retry may help, 3 action required, 1 a bug.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys

from sluice.compare import compare_tables
from sluice.compare.request import make_request
from sluice.contract import folder as contract_folder
from sluice.ingest import application
from sluice.ledger import pilot_table
from sluice.ledger.pilot_table import PilotRow, Stage
from sluice.pages import comparison_report
from sluice.plan import resolve_topics


@application.as_job
def main(argv: list[str] | None = None) -> int:
    """Compare, record the verdict and write the reports; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--request", required=True, help="the fields of CompareRequest, as JSON")
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--who", default="", help="who started it")
    parser.add_argument("--output", action="append", default=[], help="a report's path or URL; .html or .json")
    arguments = parser.parse_args(argv)
    request = make_request(json.loads(arguments.request))
    contracts = contract_folder.load_contracts(strict=False)
    with application.start_spark(f"sluice compare {request.table}", arguments.run_id, {}) as context:
        contracts = resolve_topics.resolve(contracts, context.catalog, None)
        found = compare_tables.compare(context, contracts, request)
        for line in found.lines():
            logging.info("%s", line)
        row = PilotRow(
            request.table, Stage.COMPARED, found.equal, found.verdict, found.evidence(), arguments.who,
            run_id=arguments.run_id,
        )  # fmt: skip
        pilot_table.record(context.catalog, row)
        default = comparison_report.default_address(request.table, arguments.run_id)
        for address in (*arguments.output, *([default] if default else [])):
            comparison_report.write_report(context.catalog, found, address)
            logging.info("report: %s", address)
    return 0


if __name__ == "__main__":
    sys.exit(main(None))
