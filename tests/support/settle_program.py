"""A job for `killable_driver`: Airflow's task `settle` as a process that can be killed."""

from __future__ import annotations

import argparse
import json

from sluice.contract import folder as contract_folder
from sluice.iceberg import catalog as iceberg_catalog
from sluice.ingest import settle
from sluice.plan import resolve_topics


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--group")
    parser.add_argument("--promised", type=json.loads)
    parser.add_argument("--run-id")
    given = parser.parse_args(argv)
    lake = iceberg_catalog.load()
    group = resolve_topics.resolve(contract_folder.load_contracts(), lake, None).group(given.group)
    settle.settle(group, lake, given.promised, run_id=given.run_id)
    return 0
