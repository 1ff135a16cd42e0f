"""A server of a test, in threads of its own, for as long as a `with` block."""

from __future__ import annotations

import socketserver
import threading
from types import TracebackType
from typing import Self


class Served:
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
