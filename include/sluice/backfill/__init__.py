"""Replays offset ranges that an operator names, in slices. A backfill never moves a cursor.

In: a table and ranges or times. Out: slices in the ledger, then rows in the table, and an outcome per slice.
"""
