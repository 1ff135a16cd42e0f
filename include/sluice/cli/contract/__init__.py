"""`sluice contract`: drafts, checks, tests and exchanges contracts.

In: topics, contract files, sample records. Out: contract files, problems, outcomes.
"""
