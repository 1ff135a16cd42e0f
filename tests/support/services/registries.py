"""Schema registries: a client for the test run's real one, and a stub whose answers a test chooses."""

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
    """Return a client with a timeout; by default it waits for a lost answer without limit."""
    return SchemaRegistryClient({"url": registry.url, "timeout": 30})


Answer = tuple[int, Any, Mapping[str, str]]
"""Status, body (encoded as JSON unless it is a text) and headers."""
NOT_FOUND = {"schemas": (404, {"error_code": 40403}, {}), "subjects": (404, {"error_code": 40401}, {})}


@dataclass
class ScriptedRegistry:
    """The answers and requests of a stub registry.

    Attributes:
        url: Its address.
        schemas: The registry's JSON for a schema, by id.
        subjects: The registry's JSON for the latest version, by subject.
        asked: The requested paths.
        otherwise: Returns another answer for a path, or None.
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
        """Return how often a path was requested."""
        return self.asked.count(path)


@contextmanager
def scripted_registry() -> Iterator[ScriptedRegistry]:
    """Run a stub registry for a `with` block."""
    registry = ScriptedRegistry()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002

        def do_GET(self) -> None:
            status, body, headers = registry.answer(self.path.split("?")[0])
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            with suppress(OSError):  # the client has closed the connection
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
