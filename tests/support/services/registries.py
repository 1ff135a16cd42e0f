"""A producer's client of the test run's schema registry; and a registry that answers as a test wants it to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient

from sluice.embedded.schema_registry import EmbeddedRegistry


def registry_client(registry: EmbeddedRegistry) -> SchemaRegistryClient:
    """The client, with an end to its patience: by default an answer that is lost is waited for without one."""
    return SchemaRegistryClient({"url": registry.url, "timeout": 30})


Answer = tuple[int, Any, Mapping[str, str]]
"""Status, body (what is no text becomes JSON) and headers."""
NOT_FOUND = {"schemas": (404, {"error_code": 40403}, {}), "subjects": (404, {"error_code": 40401}, {})}


@dataclass
class ScriptedRegistry:
    """A registry of one's own.

    Attributes:
        schemas: By id, as the registry's JSON.
        subjects: The newest of each, likewise.
        asked: The paths that were asked for.
        otherwise: What is answered to a path instead, if anything.
    """

    url: str = ""
    schemas: dict[int, Any] = field(default_factory=dict)
    subjects: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    otherwise: Callable[[str], Answer | None] = lambda _: None

    def answer(self, path: str) -> Answer:
        self.asked.append(path)
        if given := self.otherwise(path):
            return given
        kind, *rest = path.strip("/").split("/")
        found = self.schemas.get(int(rest[1])) if kind == "schemas" else self.subjects.get(rest[0])
        return (200, found, {}) if found else NOT_FOUND[kind]

    def count(self, path: str) -> int:
        """How often a path was asked for."""
        return self.asked.count(path)


@contextmanager
def scripted_registry() -> Iterator[ScriptedRegistry]:
    """One that runs."""
    registry = ScriptedRegistry()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002

        def do_GET(self) -> None:
            status, body, headers = registry.answer(self.path.split("?")[0])
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            with suppress(OSError):  # whoever asked has given up
                self.end_headers()
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.url = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
