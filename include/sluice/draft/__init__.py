"""A first contract for a topic, with the evidence for each proposal.

In: a sample of the topic's records, and its schemas. Out: the text of a contract that passes the checks.
"""
