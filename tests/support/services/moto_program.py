"""Starts moto's server with Glue's optimistic lock, which moto (5.2) lacks: `python moto_program.py PORT`.

Glue refuses `UpdateTable` with a `VersionId` that is no longer the table's; moto would take both of two writers.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from moto.core.exceptions import JsonRESTError
from moto.glue.responses import GlueResponse
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

_lock = threading.Lock()
_update_table = GlueResponse.update_table


def update_table(response: GlueResponse) -> Any:
    """Update the table if the given version is the newest."""
    given = response.parameters.get("VersionId")
    with _lock:
        name = response.parameters["TableInput"]["Name"]
        table = response.glue_backend.get_table(response.parameters["DatabaseName"], name)
        newest = table.as_dict()["VersionId"]
        if given is not None and given != newest:
            raise JsonRESTError("ConcurrentModificationException", f"version {given} of {name} is not {newest}")
        return _update_table(response)


GlueResponse.update_table = update_table
server = ThreadedMotoServer("127.0.0.1", int(sys.argv[1]))
server.start()
threading.Event().wait()
