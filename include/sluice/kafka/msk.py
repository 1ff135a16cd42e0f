"""The log-in AWS_MSK_IAM of Amazon MSK, for librdkafka and for Spark's Kafka client.

librdkafka does not know it: it logs in by OAUTHBEARER, with tokens that AWS's signer makes on this machine. Java has
AWS's login module. Credentials come by AWS's own chain (variables, profile, role), never by Kafka's settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from sluice.errors import BrokerRefusedError, ConfigError

MECHANISM = "AWS_MSK_IAM"
PACKAGE = "aws-msk-iam-sasl-signer-python"
JAVA_OPTIONS = {
    "sasl.mechanism": MECHANISM,
    "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
}
_SELECTING = ("sasl.mechanism", "sasl.mechanisms")
_CHAIN = "AWS's own variables (AWS_ACCESS_KEY_ID, AWS_PROFILE, …) or the machine's role"
_HOST_REGION = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.")
# How Java reports that the login module, or AWS's SDK that it uses, is not among the jars.
_MISSING_JAR = re.compile(
    r"Class software\.amazon\.msk\.\S+ could not be found|NoClassDefFoundError: software/amazon/(?:msk|awssdk)/"
    r"|unable to find LoginModule class: software\.amazon\.msk\."
)


def is_chosen(config: Mapping[str, Any]) -> bool:
    """Whether librdkafka's settings name this log-in."""
    return any(config.get(name) == MECHANISM for name in _SELECTING)


def check(config: Mapping[str, Any]) -> None:
    """Check the settings beside this mechanism.

    Raises:
        ConfigError: The protocol is not SASL_SSL, or a setting has no effect with this mechanism.
    """
    protocol = str(config.get("security.protocol", ""))
    if protocol.upper() != "SASL_SSL":
        raise ConfigError(
            f"{MECHANISM} needs security.protocol SASL_SSL, not {protocol or 'none'}.",
            next_step="Set it in connection sluice_kafka, with the brokers' port for IAM (9098, or 9198 from outside).",
        )
    if others := sorted(name for name in config if name.startswith("sasl.") and name not in _SELECTING):
        raise ConfigError(
            f"{', '.join(others)} has no effect with sasl.mechanism {MECHANISM}.",
            next_step="Remove it from connection sluice_kafka, with its login and password. Sluice itself sets the "
            f"login module; the credentials come from {_CHAIN}.",
        )


def librdkafka_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by which librdkafka logs in, with a first token, so that a failure is raised here.

    Raises:
        ConfigError: A setting is wrong, the region is unknown, or AWS's signer is not installed.
        BrokerRefusedError: There are no AWS credentials.
    """
    check(config)
    others = {name: value for name, value in config.items() if name not in _SELECTING}
    return {**others, "sasl.mechanism": "OAUTHBEARER", "oauth_cb": TokenSource(find_region(config))}


def find_region(config: Mapping[str, Any]) -> str:
    """Return the cluster's region: that of a broker's host name, else AWS_REGION, as AWS's login module for Java does.

    Raises:
        ConfigError: None of them has it.
    """
    of_host = _HOST_REGION.search(str(config.get("bootstrap.servers", "")))
    found = of_host[1] if of_host else os.environ.get("AWS_REGION")
    if not found:
        raise ConfigError(
            f"{MECHANISM} needs the cluster's AWS region, which the brokers' host names do not have.",
            next_step="Set the variable AWS_REGION for Airflow's tasks and pages, and for Spark's executors.",
        )
    return found


class TokenSource:
    """librdkafka's `oauth_cb`: makes a token of 15 minutes each time; a thread of librdkafka calls it.

    Attributes:
        failure: Why the newest token could not be made; empty if it was. librdkafka itself reports no reason.
    """

    def __init__(self, region: str) -> None:
        """Make the first token.

        Raises:
            ConfigError: AWS's signer is not installed.
            BrokerRefusedError: There are no AWS credentials.
        """
        self.failure = ""
        self._region = region
        self._first: tuple[str, float] | None = self._sign()

    def __call__(self, _config: str | None) -> tuple[str, float]:
        """Return a token, and when it expires in seconds since 1970."""
        first, self._first = self._first, None
        if first:
            return first
        try:
            token = self._sign()
        except (BrokerRefusedError, ConfigError) as error:
            self.failure = error.message
            raise
        self.failure = ""
        return token

    def _sign(self) -> tuple[str, float]:
        try:
            from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise ConfigError(
                f"{MECHANISM} needs the Python package {PACKAGE}, which is not installed here.",
                next_step=f"Install it where Airflow's tasks and Spark's drivers run: pip install {PACKAGE}, "
                "or Sluice's wheel with its extra msk.",
            ) from error
        try:
            token, expires_ms = MSKAuthTokenProvider.generate_auth_token(self._region)
        except (BotoCoreError, ClientError, AttributeError, ValueError) as error:
            # The signer reads the keys of credentials that it did not find.
            is_none = isinstance(error, AttributeError | ValueError)
            reason = "no AWS credentials were found" if is_none else f"{type(error).__name__}: {error}"
            raise BrokerRefusedError(
                f"No token for Kafka's log-in {MECHANISM} could be made: {reason}.",
                next_step=f"Give this machine credentials by {_CHAIN}. The next run continues from the same offsets.",
            ) from error
        return token, expires_ms / 1000


def missing_jar_error(text: str) -> ConfigError | None:
    """Return an error if Spark's error says that the jar of this log-in is missing; None if it is another error."""
    if not _MISSING_JAR.search(text):
        return None
    return ConfigError(
        f"Spark has no jar for Kafka's log-in {MECHANISM}, or none with AWS's SDK.",
        next_step="Fetch both by make jars SET=msk, or python -m sluice.embedded jars --clouds msk, and set "
        "SLUICE_JARS to the folder that it prints.",
    )
