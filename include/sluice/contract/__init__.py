"""The contract: the YAML files that say what each table promises, and `groups.yaml`.

In: YAML files. Out: frozen, checked values (`Contract`, `Contracts`, `GroupSettings`). Light: DAG files import it.
"""
