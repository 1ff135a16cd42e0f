"""The embedded stack: a real broker, catalog, warehouse and Airflow on loopback, for the demo, for tests and to look around."""
