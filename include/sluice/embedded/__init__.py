"""The embedded stack: a real broker, schema registry, catalog and Airflow on loopback, for the demo and the tests."""
