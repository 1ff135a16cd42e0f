"""The embedded stack: a real broker, catalog, warehouse and Airflow on loopback, for demo, tests and a look around."""
