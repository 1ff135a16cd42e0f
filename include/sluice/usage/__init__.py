"""What the steps cost: measured in the driver, kept in `sluice.costs`, divided among the tables, and in money.

In: counters of the driver, of Spark and of snapshots; a price file. Out: costs, storage and estimates per table.
Recording costs never fails or delays a commit.
"""
