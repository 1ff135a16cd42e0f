"""What every Spark step is given: the session, the catalog, how to reach Kafka, and the id of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from confluent_kafka.admin import AdminClient
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from sluice.kafka import broker, registry
from sluice.kafka.registry import WriterSchema
from sluice.ledger import writer_schemas_table
from sluice.usage.meter import Meter


@dataclass
class Context:
    """What every Spark step is given; `kafka` are librdkafka settings, `meter` measures what the steps use."""

    spark: SparkSession
    catalog: Catalog
    catalog_name: str
    kafka: Mapping[str, object]
    run_id: str
    meter: Meter = field(init=False, repr=False)
    _idle: list[SparkSession] = field(default_factory=list, init=False, repr=False)
    _checked: set[tuple[str, WriterSchema]] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        self.meter = Meter(self.spark, self.run_id)

    @cached_property
    def client(self) -> AdminClient:
        """Kafka's admin client, shared by all steps because each client logs in, and fetches its token, by itself."""
        return broker.make_admin_client(self.kafka)

    @contextmanager
    def session(self, properties: Mapping[str, str]) -> Iterator[SparkSession]:
        """Lend a session whose commits carry `properties`; the setting applies to all commits of a session.

        A session has a client of the catalog with connections of its own, which Spark never closes. So a session that
        was given back is lent again. One in which a step has failed is not.
        """
        try:
            session = self._idle.pop()  # topics run in threads
        except IndexError:
            session = self.spark.newSession()
        names = {f"spark.sql.iceberg.snapshot-property.{name}": value for name, value in properties.items()}
        for name, value in names.items():
            session.conf.set(name, value)
        yield session
        for name in names:
            session.conf.unset(name)
        self._idle.append(session)

    def check_writer_schemas(self, topic: str) -> None:
        """Check the schemas that this attempt reads the topic's records with, once for each; without one do nothing.

        Raises:
            SchemaIdReusedError: earlier records with the same id were read by another schema.
        """
        new = {(topic, schema) for schema in registry.pinned_schemas()} - self._checked
        writer_schemas_table.check_and_record(self.catalog, topic, (s for _, s in new), run_id=self.run_id)
        self._checked |= new
