"""Makes no DAG: shows in Airflow, as an import error, what is wrong with the folder of contracts.

`ingest.py` leaves out what is not sound, so that one bad file does not stop the other groups; here it is said.
"""

from __future__ import annotations

from sluice.contract import folder as contract_folder

contract_folder.load()
