"""What the pages and reports show of expectations.

In: rows of `sluice.quality`. Out: values for the templates.
"""
