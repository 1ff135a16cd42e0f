"""Shows errors in the contracts as an import error in Airflow; has no DAG.

`ingest.py` skips broken contracts, so that one bad file does not stop the other groups.
"""

from __future__ import annotations

from sluice.contract import folder as contract_folder

contract_folder.load_contracts()
