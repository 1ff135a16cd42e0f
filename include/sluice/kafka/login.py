"""Failed logins, raised as `BrokerRefusedError` within seconds.

librdkafka retries a rejected login forever and reports it only through its error callback; the Java client throws,
deep inside Spark's error.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from sluice.errors import BrokerRefusedError, ConfigError, SluiceError
from sluice.kafka import kerberos, msk

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka.admin import AdminClient

Answer = TypeVar("Answer")

GRACE_S = 5.0
"""How long a request may still succeed after a rejected login: another broker or the next token may work."""
_POLL_S = 0.1
_login_errors: WeakKeyDictionary[AdminClient, list[str]] = WeakKeyDictionary()
"""Per client the last login error since its last successful request."""
_settings: WeakKeyDictionary[AdminClient, dict[str, Any]] = WeakKeyDictionary()

# The login error in Java's chain of causes.
_IN_JAVA = re.compile(
    r"org\.apache\.kafka\.common\.(?:errors\.SaslAuthentication|KafkaException: .*\.Login)Exception: (.+)"
)

# CA bundles of Linux distributions; the wheels of confluent-kafka look for Red Hat's only, even with `probe`.
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


def with_system_cas(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return librdkafka's settings; where none are set, this machine's CAs are used for the token endpoint."""
    given = config.get("https.ca.pem") or config.get("https.ca.location") not in (None, "", "probe")
    if given or str(config.get("sasl.oauthbearer.method", "")).lower() != "oidc":
        return dict(config)
    paths = filter(None, (ssl.get_default_verify_paths().cafile, *_BUNDLES))
    found = next((path for path in paths if Path(path).is_file()), None)
    return {**config, **({"https.ca.location": found} if found else {})}


def client_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that librdkafka takes for a connection, with a callback for tokens of AWS_MSK_IAM.

    Raises:
        ConfigError, BrokerRefusedError: no token of AWS_MSK_IAM can be made, or Kerberos can't work here.
    """
    if kerberos.is_chosen(config):
        kerberos.check_client(config)
    return msk.librdkafka_settings(config) if msk.is_chosen(config) else with_system_cas(config)


def make_client(config: Mapping[str, Any]) -> AdminClient:
    """Return a client whose login errors are recorded.

    Raises:
        ConfigError: librdkafka rejects the settings.
        BrokerRefusedError: there are no AWS credentials for AWS_MSK_IAM.
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

    errors: list[str] = []
    settings = client_settings(config)
    tokens = settings.get("oauth_cb")

    def record(error: KafkaError) -> None:
        # "Local: " is librdkafka's own error, say a broker that disconnected during the login: no rejection.
        if error.code() == KafkaError._AUTHENTICATION and "Local: " not in error.str():
            errors[:] = [getattr(tokens, "failure", "") or error.str()]

    try:
        client = AdminClient(settings | {"error_cb": record})
    except KafkaException as error:
        raise ConfigError(
            f"Kafka's client rejects its settings: {error.args[0].str()}.",
            next_step="Correct them in connection sluice_kafka, or SLUICE_KAFKA_CONFIG on the command line.",
        ) from error
    _login_errors[client], _settings[client] = errors, settings
    return client


def make_consumer(client: AdminClient, settings: Mapping[str, Any]) -> Consumer:
    """Return a consumer with the connection and the login of a client that `make_client` made."""
    from confluent_kafka import Consumer

    return Consumer({**_settings[client], **settings})


def await_result(client: AdminClient, future: Future[Answer]) -> Answer:
    """Return the result of a request; stop waiting if the client's login is rejected.

    Raises:
        BrokerRefusedError: the login is rejected for longer than `GRACE_S`.
        KafkaException: the request failed otherwise.
    """
    from confluent_kafka import KafkaException

    rejected_since = None
    while True:
        try:
            found = future.result(_POLL_S)
        except TimeoutError:
            rejection, now = login_error(client), time.monotonic()
            rejected_since = rejected_since or (now if rejection else None)
            if rejection and rejected_since and now - rejected_since > GRACE_S:
                raise rejection from None
        except KafkaException as error:
            # A new exception: through its traceback the future's own would keep the future and the client alive.
            error.__traceback__ = None
            raise KafkaException(*error.args) from None
        else:
            login_error(client)
            _login_errors.get(client, []).clear()
            return found


def login_error(client: AdminClient) -> BrokerRefusedError | None:
    """Return the client's login error since its last successful request; None if there is none."""
    client.poll(0)
    errors = _login_errors.get(client)
    return _refused_error(errors[0]) if errors else None


def login_error_from_spark(error: Exception) -> SluiceError | None:
    """Return the login error inside an error of Spark's Kafka source, or that its jar is missing; else None."""
    if missing := msk.missing_jar_error(str(error)):
        return missing
    found = _IN_JAVA.search(str(error))
    return _refused_error(found[1].split("IOException: ")[-1]) if found else None


def _refused_error(reason: str) -> BrokerRefusedError:
    return BrokerRefusedError(f"Login to Kafka failed: {' '.join(reason.split())[:300]}.")
