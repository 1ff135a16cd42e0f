"""Rehearses failures of a table on a copy of it, which is dropped afterwards. Nothing of production is changed.

In: a table and the names of scenarios. Out: for each scenario what was expected, and what happened.
"""
