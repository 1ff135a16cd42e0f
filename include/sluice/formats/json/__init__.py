"""The formats in JSON: records without a schema, with a JSON Schema of the registry, or with Connect's schema.

In: staged bytes. Out: the wanted fields and a problem, as of every format.
"""
