"""What confluent-kafka has no public API for, as of version 2.16.1. Each has a test that fails when it gets one.

Used by the login for Java, by the schema registry's client and by the check for truncated logs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient


_TRUNCATED = re.compile(
    r"log truncation detected at offset .*: broker end offset is (\d+)|No epoch found less or equal"
)


class RedirectError(Exception):
    """The schema registry answered with a redirect, which its client does not follow.

    Attributes:
        status: the HTTP status.
        host: the host that it redirects to; None if that is the same.
    """

    def __init__(self, status: int, host: str | None) -> None:
        super().__init__(status, host)
        self.status, self.host = status, host


def raise_on_redirect(client: SchemaRegistryClient) -> SchemaRegistryClient:
    """Make the client raise `RedirectError`: its own error leaves out where the redirect leads."""

    def check(response: Any) -> None:
        if 300 <= response.status_code < 400:
            raise RedirectError(response.status_code, urlsplit(response.headers.get("location", "")).hostname)

    client._rest_client.session.event_hooks["response"].append(check)
    return client


def is_transport_error(error: Exception) -> bool:
    """Return whether the registry client's HTTP library failed to connect, send or receive.

    The client uses httpx or httpx2, whichever is installed, and does not export the library's exceptions.
    """
    return any(each.__name__ == "TransportError" for each in type(error).__mro__)


def parse_key_values(text: str) -> dict[str, str]:
    """Parse librdkafka's `name=value,…` with its escapes.

    Raises:
        ValueError: an entry has no `=` or no name.
    """
    from confluent_kafka._util import librdkafka_string_parser

    return dict(librdkafka_string_parser.parse_key_values(text, ","))


def truncated_at(text: str) -> int | None:
    """Return the offset from which on a log was replaced, by the text of a consumer's error; None of another error.

    librdkafka reports a truncation under the code that it has for all positions it cannot start from.

    Returns:
        0 if the log has no record that old.
    """
    found = _TRUNCATED.search(text)
    return int(found[1] or 0) if found else None
