"""Sluice moves Kafka topics into Apache Iceberg tables in bounded batches whose offsets commit with the data."""

__version__ = "0.1.0"
