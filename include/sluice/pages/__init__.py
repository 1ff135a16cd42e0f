"""What the pages, the JSON API, the metrics and the reports show. The routes are in `plugins/sluice_web/`.

In: values of `status` and of the ledger. Out: HTML and JSON, escaped. Knows nothing of Airflow.
"""
