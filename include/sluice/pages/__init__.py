"""The pages that show where every table stands: what is read, what it means, how it looks. Knows nothing of Airflow."""
