"""Prints what the Airflow that is configured here has; commands of Sluice run this file as a process of its own.

In: `connections` or `setup`, and names to look for as JSON. Out: a line of JSON, read by `sluice.airflow_process`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from airflow.exceptions import AirflowNotFoundException
from airflow.models.connection import Connection

FIELDS = ("host", "port", "schema", "login", "password", "extra_dejson")


def find_connections(names: Iterable[str]) -> Iterator[tuple[str, Connection]]:
    """Yield those of the connections that exist, from whichever secrets backend has them."""
    for name in names:
        with suppress(AirflowNotFoundException):
            yield name, Connection.get_connection_from_secrets(name)


def read_connections(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the fields of the connections that exist, secrets too."""
    return {name: {field: getattr(each, field) for field in FIELDS} for name, each in find_connections(names)}


def read_setup(names: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    """Return which connections, pools and plugins exist. Of a connection no secret is told."""
    from airflow import plugins_manager
    from airflow.models.pool import Pool

    return {
        "connections": {
            name: (each.extra_dejson.get("deploy-mode") or "client", each.conn_type, each.host, each.port)
            for name, each in find_connections(names["connections"])
        },
        "pools": [name for name in names["pools"] if Pool.get_pool(name)],
        "plugins": [each["name"] for each in plugins_manager.get_plugin_info(["name"])],
        "errors": {name: str(text) for name, text in plugins_manager.get_import_errors().items()},
    }


if __name__ == "__main__":
    question = {"connections": read_connections, "setup": read_setup}[sys.argv[1]]
    print(json.dumps(question(json.loads(sys.argv[2]))))
