"""A producer's client of the test run's schema registry."""

from __future__ import annotations

from confluent_kafka.schema_registry import SchemaRegistryClient

from sluice.embedded.registry import Registry


def client_of(registry: Registry) -> SchemaRegistryClient:
    """The client, with an end to its patience: by default an answer that is lost is waited for without one."""
    return SchemaRegistryClient({"url": registry.url, "timeout": 30})
