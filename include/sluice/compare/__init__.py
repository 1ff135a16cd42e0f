"""Comparing one of Sluice's tables with a table or view that another writer fills.

In: a request, and a Spark session that reads both. Out: the verdict, with counts and a few examples.
"""
