"""What the registry answers where it gives nothing: ours are the errors, which say what it was asked for.

One that does not answer at all is left alone for a while; an error that is about one subject is that subject's.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from sluice.errors import ConfigError, RegistryUnavailableError, SluiceError
from sluice.kafka.registry_settings import CONNECTION

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

Answer = TypeVar("Answer")

NO_SUBJECT, NO_LEVEL = (40401, 40402), (40401, 40408)
NO_SCHEMA = (*NO_SUBJECT, 40403)  # of an id Apicurio says so where what it refers to is gone for good
AWAY = (408, 429, 502, 503, 504)
"""What it, or a proxy before it, answers to everybody, whatever is asked."""
ASK_AGAIN_S = 30.0
"""A registry that was away is not asked before: its time-outs would add up, table by table and id by id."""


@dataclass(frozen=True)
class Away:
    """That a registry could not be asked.

    Attributes:
        words: how that was told, to follow its name.
        silent: it did not answer at all; whoever is told HTTP 429 or 503 may be answered the next time.
    """

    at: float
    words: str
    silent: bool


_away: dict[str, Away] = {}
"""By address."""


class Redirected(Exception):  # noqa: N818 - that it is an error is for `ask` to say
    """The registry sends elsewhere, which its client would tell without saying where."""

    def __init__(self, status: int, host: str | None) -> None:
        super().__init__(status, host)
        self.status, self.host = status, host


def told_of_redirections(client: SchemaRegistryClient) -> SchemaRegistryClient:
    """The client, made to raise `Redirected`."""

    def look(response: Any) -> None:
        if 300 <= response.status_code < 400:
            raise Redirected(response.status_code, urlsplit(response.headers.get("location", "")).hostname)

    client._rest_client.session.event_hooks["response"].append(look)
    return client


def check_not_away(url: str, what: str, *, silent: bool = False) -> None:
    """Ask for nothing where the registry could not be asked a moment ago.

    Args:
        silent: only where it did not answer at all.

    Raises:
        RegistryUnavailableError: it could not.
    """
    away = _away.get(url)
    if away and time.monotonic() - away.at < ASK_AGAIN_S and (away.silent or not silent):
        raise RegistryUnavailableError(
            f"The schema registry at {url} {away.words} a moment ago, and is not asked for {what} yet."
        )


def ask(url: str, what: str, absent: tuple[int, ...], call: Callable[[], Answer]) -> Answer | None:
    """What a call of the registry's client gives; None where the registry answers with one of the errors `absent`.

    Raises:
        RegistryUnavailableError: It does not answer, or with what is no answer of a registry.
        ConfigError: What answers is no registry, or refuses us.
    """
    from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

    try:
        return call()
    except SchemaRegistryError as error:
        status = error.http_status_code
        if status == 404 and error.error_code in absent:
            return None
        if status in (401, 403):
            raise ConfigError(
                f"The schema registry refuses us (HTTP {status}).",
                way_out=f"Correct login and password of {CONNECTION}.",
            ) from error
        if status == 404:
            raise ConfigError(
                f"What answers at {url} is no schema registry.",
                way_out=f"Correct the address in {CONNECTION}, path included.",
            ) from error
        said = f"answered HTTP {status}"
        if 400 <= status < 500 and status not in AWAY:
            raise ConfigError(
                f"The schema registry at {url} {said}, asked for {what}.",
                way_out=f"Correct the address in {CONNECTION}, or the subject in the contract.",
            ) from error
        if status in AWAY:
            _away[url] = Away(time.monotonic(), said, silent=False)
        raise RegistryUnavailableError(f"The schema registry at {url} {said}, asked for {what}.") from error
    except Redirected as error:
        to = f", and sends to {error.host}" if error.host else ""
        raise ConfigError(
            f"The schema registry at {url} answered HTTP {error.status}{to}, asked for {what}.",
            way_out=f"Correct the address in {CONNECTION}: nobody follows it elsewhere.",
        ) from error
    except (OSError, OAuthTokenError) as error:
        raise _unanswered(url, what, error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # A page of a proxy, or JSON that the client makes no schema of; its errors may quote it, secrets and all.
        raise RegistryUnavailableError(
            f"The schema registry at {url} answered HTTP 200 without the JSON of a registry, asked for {what} "
            f"({type(error).__name__}): a page of a proxy, perhaps."
        ) from None
    except Exception as error:
        # Its HTTP library's errors, which have no base class that the client makes public.
        if "TransportError" not in {each.__name__ for each in type(error).__mro__}:
            raise
        raise _unanswered(url, what, error) from error


def _unanswered(url: str, what: str, error: Exception) -> SluiceError:
    cause: BaseException | None = error
    while cause:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ConfigError(
                f"The certificate of the schema registry at {url} is not trusted: {cause.verify_message}.",
                way_out=f"Name the file with its CA as ssl.ca.location, in the extra of {CONNECTION}.",
            )
        cause = cause.__cause__ or cause.__context__
    _away[url] = Away(time.monotonic(), "did not answer", silent=True)
    return RegistryUnavailableError(
        f"The schema registry at {url} did not answer, asked for {what} ({type(error).__name__})."
    )


def of_another(error: SluiceError) -> bool:
    """Whether it is no registry that answered: a redirection, or an error without the code that theirs have."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    cause = error.__cause__
    if isinstance(cause, SchemaRegistryError):
        return cause.http_status_code not in (401, 403) and cause.error_code in (None, SchemaRegistryError.UNKNOWN)
    return isinstance(cause, Redirected)
