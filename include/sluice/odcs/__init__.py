"""The Open Data Contract Standard (ODCS): a data contract becomes one of Sluice's contracts, and the other way round.

In: an ODCS file, or a contract. Out: the draft of a contract that names what it left out, or an ODCS document.
"""
