"""What the registry answers where it gives nothing: ours are the errors, which say what it was asked for."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import TypeVar

from sluice.errors import ConfigError, RegistryUnavailableError, SluiceError
from sluice.registry_settings import CONNECTION

Answer = TypeVar("Answer")

NO_SUBJECT, NO_LEVEL = (40401, 40402), (40401, 40408)
NO_SCHEMA = (*NO_SUBJECT, 40403)  # of an id Apicurio says so where what it refers to is gone for good


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
        raise RegistryUnavailableError(f"The schema registry answered HTTP {status}, asked for {what}.") from error
    except (OSError, OAuthTokenError) as error:
        raise _away(url, what, error) from error
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
        raise _away(url, what, error) from error


def _away(url: str, what: str, error: Exception) -> SluiceError:
    cause: BaseException | None = error
    while cause:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ConfigError(
                f"The certificate of the schema registry at {url} is not trusted: {cause.verify_message}.",
                way_out=f"Name the file with its CA as ssl.ca.location, in the extra of {CONNECTION}.",
            )
        cause = cause.__cause__ or cause.__context__
    return RegistryUnavailableError(
        f"The schema registry at {url} did not answer, asked for {what} ({type(error).__name__})."
    )
