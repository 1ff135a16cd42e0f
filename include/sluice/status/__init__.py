"""Where every table stands: offsets, freshness, blocked batches, incidents, readiness.

In: contracts, tables, ledger, broker. Out: plain values for the command line, the pages, the metrics and the alerts.
"""
