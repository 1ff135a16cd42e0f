"""What an operator decides: roll a table back, accept a gap, review a schema change.

In: a table and the operator's choice. Out: a preview, or one commit that carries the decision and a ledger row.
"""
