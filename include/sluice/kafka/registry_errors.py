"""Failed requests to the schema registry, raised as Sluice's errors that name the request.

A registry that is away is not asked again for `RETRY_INTERVAL_S`; an error about one subject concerns only that one.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sluice.errors import ConfigError, RegistryUnavailableError, SluiceError
from sluice.kafka.compat import RedirectError, is_transport_error
from sluice.kafka.registry_settings import SETTINGS_SOURCE

Answer = TypeVar("Answer")

NO_SUBJECT, NO_LEVEL = (40401, 40402), (40401, 40408)
NO_SCHEMA = (*NO_SUBJECT, 40403)  # Apicurio's answer for an id with a deleted reference
OUTAGE_STATUSES = (408, 429, 502, 503, 504)
"""Statuses of a registry, or a proxy before it, that is away for every request."""
RETRY_INTERVAL_S = 30.0
"""How long a registry that was away is not asked again: timeouts would add up over tables and ids."""


@dataclass(frozen=True)
class Outage:
    """A failed request to a registry that was away.

    Attributes:
        at: when, by `time.monotonic()`.
        reason: what happened, to follow the registry's name in messages.
        silent: it did not answer at all; after HTTP 429 or 503 the next request may succeed.
    """

    at: float
    reason: str
    silent: bool


_outages: dict[str, Outage] = {}
"""The last outage of each registry, by URL."""


def check_reachable(url: str, what: str, *, only_silent: bool = False) -> None:
    """Refuse a request to a registry that was away within the last `RETRY_INTERVAL_S`.

    Args:
        url: the registry.
        what: the request, for the message.
        only_silent: ignore outages with an HTTP answer.

    Raises:
        RegistryUnavailableError: it was away.
    """
    outage = _outages.get(url)
    if outage and time.monotonic() - outage.at < RETRY_INTERVAL_S and (outage.silent or not only_silent):
        raise RegistryUnavailableError(
            f"The schema registry at {url} {outage.reason} less than {RETRY_INTERVAL_S:g} s ago; "
            f"Sluice does not ask it for {what} yet."
        )


def call_registry(url: str, what: str, absent: tuple[int, ...], call: Callable[[], Answer]) -> Answer | None:
    """Return the result of a call of the registry's client; None if the answer has one of the error codes `absent`.

    Args:
        url: the registry.
        what: the request, for messages.
        absent: the registry's error codes for "does not exist".
        call: the request.

    Raises:
        RegistryUnavailableError: The registry does not answer, or not as a registry does.
        ConfigError: The address is not a registry's, or the registry rejects the login or the request.
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
                f"The schema registry rejects the login (HTTP {status}).",
                next_step=f"Correct login and password of {SETTINGS_SOURCE}.",
            ) from error
        if status == 404:
            raise ConfigError(
                f"The server at {url} is not a schema registry.",
                next_step=f"Correct the address and path of {SETTINGS_SOURCE}.",
            ) from error
        answered = f"answered HTTP {status}"
        if 400 <= status < 500 and status not in OUTAGE_STATUSES:
            raise ConfigError(
                f"The schema registry at {url} {answered} when asked for {what}.",
                next_step=f"Correct the address of {SETTINGS_SOURCE}, or the subject in the contract.",
            ) from error
        if status in OUTAGE_STATUSES:
            _outages[url] = Outage(time.monotonic(), answered, silent=False)
        raise RegistryUnavailableError(f"The schema registry at {url} {answered} when asked for {what}.") from error
    except RedirectError as error:
        to = f" (redirect to {error.host})" if error.host else ""
        raise ConfigError(
            f"The schema registry at {url} answered HTTP {error.status}{to} when asked for {what}.",
            next_step=f"Correct the address of {SETTINGS_SOURCE}: redirects are not followed.",
        ) from error
    except (OSError, OAuthTokenError) as error:
        raise _transport_error(url, what, error) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # The page of a proxy, or JSON that is no schema. The client's error may quote it with secrets: `from None`.
        raise RegistryUnavailableError(
            f"The schema registry at {url} answered HTTP 200 without a registry's JSON when asked for {what} "
            f"({type(error).__name__}): perhaps the page of a proxy."
        ) from None
    except Exception as error:
        if not is_transport_error(error):
            raise
        raise _transport_error(url, what, error) from error


def _transport_error(url: str, what: str, error: Exception) -> SluiceError:
    cause: BaseException | None = error
    while cause:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ConfigError(
                f"The certificate of the schema registry at {url} is not trusted: {cause.verify_message}.",
                next_step=f"Set ssl.ca.location to the file with its CA, in the extra of {SETTINGS_SOURCE}.",
            )
        cause = cause.__cause__ or cause.__context__
    _outages[url] = Outage(time.monotonic(), "did not answer", silent=True)
    return RegistryUnavailableError(
        f"The schema registry at {url} did not answer when asked for {what} ({type(error).__name__})."
    )


def is_not_a_registry(error: SluiceError) -> bool:
    """Return whether another server answered: with a redirect, or an error without a registry's error code."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    cause = error.__cause__
    if isinstance(cause, SchemaRegistryError):
        return cause.http_status_code not in (401, 403) and cause.error_code in (None, SchemaRegistryError.UNKNOWN)
    return isinstance(cause, RedirectError)
