"""A server of a test, in threads of its own, for as long as a `with` block."""

from __future__ import annotations

import socketserver
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"


class ThreadedServer:
    """What a test's servers have in common; who derives makes `_server` first."""

    _server: socketserver.BaseServer

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class JsonHandler(BaseHTTPRequestHandler):
    """Answers with JSON, and says nothing else."""

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class TlsServer(ThreadedServer):
    """The same behind TLS.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, handler: type[BaseHTTPRequestHandler], certificate: Path) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        server = self._server = ThreadingHTTPServer((HOST, 0), handler)
        server.daemon_threads = True
        # The handshake in each connection's own thread: a client that hangs up then ends no other's.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.handle_error = lambda *_: None  # type: ignore[method-assign] - who does not trust us hangs up
        self.port = int(server.server_address[1])
