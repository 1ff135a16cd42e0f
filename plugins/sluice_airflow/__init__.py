"""What the DAG files are made of: operators, connections, forms, assets, lineage, mapped tasks."""
