"""Base classes of servers that run in threads of the test process for a `with` block, with or without TLS."""

from __future__ import annotations

import json
import socketserver
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

HOST = "127.0.0.1"

S = TypeVar("S", bound=socketserver.BaseServer)


class ThreadedServer:
    """A server in a thread; a subclass creates `_server`."""

    _server: socketserver.BaseServer

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving(server: S) -> Iterator[S]:
    """Let a server answer in a thread for a `with` block."""
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


class ServerGroup(ABC):
    """Servers that start and stop together; a subclass starts them."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    @abstractmethod
    def start(self, stack: ExitStack) -> None:
        """Enter each server into the stack."""

    def __enter__(self) -> Self:
        with self._stack as stack:
            self.start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class JsonHandler(BaseHTTPRequestHandler):
    """A request handler that answers with JSON and does not log."""

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer_json(self, status: int, body: object) -> None:
        self.answer(status, json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class TlsServer(ThreadedServer):
    """An HTTPS server.

    Attributes:
        port: The port that it listens on.
    """

    def __init__(self, handler: type[BaseHTTPRequestHandler], certificate: Path) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        server = self._server = ThreadingHTTPServer((HOST, 0), handler)
        server.daemon_threads = True
        # The handshake is in each connection's thread, so that a client that hangs up does not disturb others.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.handle_error = lambda *_: None  # type: ignore[method-assign] - clients without the CA hang up
        self.port = int(server.server_address[1])
