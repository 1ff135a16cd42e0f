"""Kafka and the schema registry: clients, login, and their settings for librdkafka and for Java.

In: settings of an Airflow connection or of the environment. Out: clients, watermarks, topic states, writer schemas.
"""
