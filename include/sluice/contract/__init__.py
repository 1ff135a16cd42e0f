"""Contracts: one YAML file per table, and `groups.yaml` with the settings of their groups.

In: YAML files. Out: frozen, validated values (`Contract`, `Contracts`, `GroupSettings`). Light, as DAG files import it.
"""
