"""Bytes become typed columns: wire format, Avro, Protobuf, JSON, change events, expressions, masks.

In: a DataFrame of raw records and a contract. Out: the same DataFrame with typed columns, or an error class per record.
"""
