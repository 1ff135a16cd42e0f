"""Kafka does not let us in, or the identity provider gives no token: told as that, where a client says it by silence.

Librdkafka goes on trying for ever and tells of it by events alone; Java throws, deep within Spark's error.
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

from sluice.errors import BrokerRefusedError, ConfigError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

Answer = TypeVar("Answer")

GRACE_S = 5.0
"""So long others may still answer after one has refused us: another broker, or the identity provider's next try."""
_LOOK_S = 0.1
_heard: WeakKeyDictionary[AdminClient, list[str]] = WeakKeyDictionary()
"""Per client why it was not let in, if it was not, since it last got an answer."""

# Where in Java's chain of causes it is said.
_IN_JAVA = re.compile(
    r"org\.apache\.kafka\.common\.(?:errors\.SaslAuthentication|KafkaException: .*\.Login)Exception: (.+)"
)

# Where systems keep their CAs in one file; the client's own wheels know Red Hat's alone, `probe` or not.
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


def trusting(config: Mapping[str, Any]) -> dict[str, Any]:
    """Librdkafka's settings, with this machine's own CAs for the token endpoint where none are named."""
    named = config.get("https.ca.pem") or config.get("https.ca.location") not in (None, "", "probe")
    if named or str(config.get("sasl.oauthbearer.method", "")).lower() != "oidc":
        return dict(config)
    places = filter(None, (ssl.get_default_verify_paths().cafile, *_BUNDLES))
    found = next((place for place in places if Path(place).is_file()), None)
    return {**config, **({"https.ca.location": found} if found else {})}


def client(config: Mapping[str, Any]) -> AdminClient:
    """A client that hears why it is not let in.

    Raises:
        ConfigError: librdkafka does not take the settings.
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

    heard: list[str] = []

    def hear(error: KafkaError) -> None:
        # A broker that went away in the middle of it has refused nobody.
        if error.code() == KafkaError._AUTHENTICATION and "Local: " not in error.str():
            heard[:] = [error.str()]

    settings: dict[str, Any] = {**trusting(config), "error_cb": hear}
    try:
        made = AdminClient(settings)
    except KafkaException as error:
        raise ConfigError(
            f"Kafka's client does not take its settings: {error.args[0].str()}.",
            way_out="Correct them in connection sluice_kafka, or SLUICE_KAFKA_CONFIG on the command line.",
        ) from error
    _heard[made] = heard
    return made


def answer(client: AdminClient, future: Future[Answer]) -> Answer:
    """What a question brings; it is not waited for while the client is not let in.

    Raises:
        BrokerRefusedError: it is not, and that does not pass within `GRACE_S`.
        KafkaException: what else the question ended with.
    """
    from confluent_kafka import KafkaException

    since = None
    while True:
        try:
            found = future.result(_LOOK_S)
        except TimeoutError:
            told, now = refusal(client), time.monotonic()
            since = since or (now if told else None)
            if told and since and now - since > GRACE_S:
                raise told from None
        except KafkaException as error:
            # Not the one that the future holds: by this frame it would hold the future, and the client for as long.
            error.__traceback__ = None
            raise KafkaException(*error.args) from None
        else:
            refusal(client)
            _heard.get(client, []).clear()
            return found


def refusal(client: AdminClient) -> BrokerRefusedError | None:
    """Why the client was not let in since it last got an answer; None where nobody refused it."""
    client.poll(0)
    heard = _heard.get(client)
    return _refused(heard[0]) if heard else None


def spark_refusal(error: Exception) -> BrokerRefusedError | None:
    """The same of an error in Spark's reading; None where it is about something else."""
    found = _IN_JAVA.search(str(error))
    return _refused(found[1].split("IOException: ")[-1]) if found else None


def _refused(said: str) -> BrokerRefusedError:
    return BrokerRefusedError(f"Kafka does not let us in: {' '.join(said.split())[:300]}.")
