"""An HTTP proxy in front of a local service that a subclass makes refuse, change or lose requests and answers."""

from __future__ import annotations

import http.client
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from tests.support.services.servers import HOST, ThreadedServer

NOT_PASSED_ON = {"connection", "transfer-encoding", "expect", "keep-alive", "content-length"}


class Request(NamedTuple):
    """A client's request, read to its end."""

    method: str
    path: str
    headers: dict[str, str]  # by lower-case name
    body: bytes


class Answer(NamedTuple):
    """An answer to a client."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class HangUpError(Exception):
    """Close the client's connection without an answer."""


class HttpProxy(ThreadedServer):
    """Forwards requests to a local port, for a `with` block.

    Attributes:
        port: The port that it listens on.
    """

    def __init__(self, target: int) -> None:
        proxy, self._target = self, target

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_one_request(handler) -> None:  # noqa: N805
                handler.raw_requestline = handler.rfile.readline(65537)
                if not handler.raw_requestline or not handler.parse_request():
                    handler.close_connection = True
                    return
                try:
                    answer = proxy.reply(Request(handler.command, handler.path, handler._names(), handler._body()))
                except HangUpError:
                    handler.close_connection = True
                    handler.connection.shutdown(socket.SHUT_RDWR)
                    return
                handler._send(answer)

            def _names(handler) -> dict[str, str]:  # noqa: N805
                return {name.lower(): value for name, value in handler.headers.items()}

            def _body(handler) -> bytes:  # noqa: N805
                if handler.headers.get("Transfer-Encoding", "").lower() != "chunked":
                    return handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
                found = b""
                while size := int(handler.rfile.readline().split(b";")[0], 16):
                    found += handler.rfile.read(size)
                    handler.rfile.readline()
                while handler.rfile.readline().strip():
                    pass
                return found

            def _send(handler, answer: Answer) -> None:  # noqa: N805
                handler.send_response_only(answer.status)
                for name, value in answer.headers:
                    handler.send_header(name, value)
                if not any(name.lower() == "content-length" for name, _ in answer.headers):
                    handler.send_header("Content-Length", str(len(answer.body)))
                handler.end_headers()
                handler.wfile.write(answer.body)

        server = self._server = ThreadingHTTPServer((HOST, 0), Handler)
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign] - clients hang up
        self.port = int(server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def reply(self, request: Request) -> Answer:
        """Return what the client gets; a subclass may refuse before, or change the answer of, this."""
        behind = http.client.HTTPConnection(HOST, self._target, timeout=60)
        try:
            behind.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name not in NOT_PASSED_ON:
                    behind.putheader(name, value)
            if request.body or request.method in ("POST", "PUT"):
                behind.putheader("Content-Length", str(len(request.body)))
            behind.endheaders(request.body)
            answer = behind.getresponse()
            body = answer.read()
            # The answer to HEAD has no body, and the length of the one that GET would have.
            kept = NOT_PASSED_ON - ({"content-length"} if request.method == "HEAD" else set())
            headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in kept]
            return Answer(answer.status, headers, body)
        finally:
            behind.close()
