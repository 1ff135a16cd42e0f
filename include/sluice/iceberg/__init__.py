"""The Iceberg catalog through PyIceberg: tables, snapshots, refs, and the cursor that snapshots carry.

In: a catalog and a contract. Out: tables, batches read from snapshot summaries, commits with explicit requirements.
"""
