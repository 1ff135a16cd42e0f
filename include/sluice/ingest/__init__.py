"""Stage, check and publish in Spark, and settle on the Airflow worker: one run of one group.

In: a `GroupPlan`. Out: snapshots that carry data and offsets, ledger rows, and an `Outcome` per table.
"""
