"""What changed between two contracts of a table, and applying it to the table.

In: the contract file and the active contract. Out: a `PendingChange`, which is applied, ignored or waits for a review.
"""
