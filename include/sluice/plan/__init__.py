"""Plan: cursors and watermarks become frozen batches. Runs on the Airflow worker, without a JVM.

In: contracts, the catalog, the broker. Out: a `GroupPlan`, its `planned` rows in the ledger, and warnings.
"""
