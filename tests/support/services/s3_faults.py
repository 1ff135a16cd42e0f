"""An S3 store on a bad network: connections drop before or after a request took effect; answers are late or refused."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

from tests.support.services.http_proxy import Answer, HangUpError, HttpProxy, Request

KINDS = ("drop", "drop after", "late", "503", "412")


def error(status: int, code: str) -> Answer:
    """An answer as S3 refuses."""
    return Answer(status, [("Content-Type", "application/xml")], f"<Error><Code>{code}</Code></Error>".encode())


class S3Faults(HttpProxy):
    """Disturbs a share of all requests, in an order that the seed decides, for a `with` block.

    412 answers writes; clients do not try it again. AWS answers so only to writes with a condition; neither PyIceberg
    nor Iceberg in Java sent one here.

    Attributes:
        share: The share of requests that it disturbs; 0 none.
        done: How often each kind of fault happened.
    """

    def __init__(self, target: int, seed: int) -> None:
        super().__init__(target)
        self.share = 0.0
        self.done: Counter[str] = Counter()
        self._random, self._lock = random.Random(seed), threading.Lock()

    def reply(self, request: Request) -> Answer:
        with self._lock:
            kind = self._random.choice(KINDS) if self._random.random() < self.share else ""
            if kind == "412" and request.method not in ("PUT", "POST"):
                kind = "503"
            if kind:
                self.done[kind] += 1
        if kind == "drop":
            raise HangUpError
        if kind == "drop after":
            super().reply(request)
            raise HangUpError
        if kind == "late":
            time.sleep(0.5)
        if kind == "503":
            return error(503, "SlowDown")
        return error(412, "PreconditionFailed") if kind == "412" else super().reply(request)
