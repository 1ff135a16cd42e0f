"""Reading with librdkafka: what its Python client cannot return."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.ingest import librdkafka_source


class Message:
    def __init__(self, headers: Any) -> None:
        self.found = headers

    def headers(self) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.mark.parametrize(
    ("found", "headers"),
    [
        (None, []),
        ([("h", b"\xff"), ("h", None)], [("h", b"\xff"), ("h", None)]),
        # As confluent-kafka 2 answers for names that are not UTF-8, which other clients send.
        (SystemError("returned a result with an exception set"), [("header names are not UTF-8", None)]),
    ],
)
def test_headers_are_read_or_say_that_they_could_not_be(found: Any, headers: list[tuple[str, bytes | None]]) -> None:
    assert librdkafka_source.read_headers(Message(found)) == headers  # type: ignore[arg-type]
