"""Sluice's own tables (`sluice.offsets`, `.schemas`, `.quality`, `.maintenance`, `.pilot`) and what they record.

In: rows that the steps append. Out: batches, backlog, backfill slices, accepted gaps; a rebuild from snapshots.
"""
