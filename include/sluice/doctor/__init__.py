"""Checks an installation: versions, Java, jars, Kafka, registry, catalog, storage, Spark and Airflow.

In: the environment and the contracts. Out: a finding per check, with the next step. Leaves nothing behind.
"""
