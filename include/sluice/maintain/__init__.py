"""Table maintenance: rewrite data files, expire snapshots, remove orphan files, by Iceberg's procedures.

In: an action and tables. Out: rows in `sluice.maintenance`. Loses no record and no cursor.
"""
