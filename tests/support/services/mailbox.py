"""A mail server on loopback that stores the messages it gets; it speaks enough SMTP to receive them."""

from __future__ import annotations

import socketserver
from email import message_from_bytes, policy
from email.message import EmailMessage

from tests.support.services.servers import ThreadedServer


class Mailbox(ThreadedServer):
    """The server; `messages` has the accepted messages in order. While `refuses` is set it accepts none."""

    def __init__(self) -> None:
        self.messages: list[EmailMessage] = []
        self.refuses = False
        box = self

        class Session(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self._say("220 mailbox")
                while line := self.rfile.readline().strip().upper():
                    if line.startswith(b"QUIT"):
                        self._say("221 bye")
                        return
                    if line.startswith(b"DATA") and not box.refuses:
                        self._say("354 go on")
                        lines = []
                        while (got := self.rfile.readline()).rstrip(b"\r\n") != b".":
                            lines.append(got)
                        box.messages.append(message_from_bytes(b"".join(lines), policy=policy.default))  # type: ignore[arg-type]
                    self._say("451 not now" if line.startswith(b"DATA") and box.refuses else "250 fine")

            def _say(self, text: str) -> None:
                self.wfile.write(f"{text}\r\n".encode())

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", 0), Session)
        self.port: int = self._server.server_address[1]
