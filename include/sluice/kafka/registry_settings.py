"""Settings of the schema registry's client, from the environment."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from sluice.errors import ConfigError
from sluice.kafka import airflow_connections

SETTINGS_SOURCE = "the Airflow connection sluice_registry, or of the variables SCHEMA_REGISTRY_…"
"""Where an operator sets them, for messages."""


def registry_config() -> dict[str, Any]:
    """Return settings of confluent-kafka's client: `SLUICE_REGISTRY_CONFIG` (JSON), else Confluent's variables.

    Those are `SCHEMA_REGISTRY_URL`, `SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO` (user:password) and
    `SCHEMA_REGISTRY_SSL_CA_LOCATION`. Without any of them, a command takes those of Airflow's connection, if Airflow is
    configured.

    Raises:
        ConfigError: no registry is configured, or the JSON is not an object.
        RetryableError: Airflow did not answer in time.
    """
    airflow_connections.export(airflow_connections.REGISTRY)
    if text := os.environ.get("SLUICE_REGISTRY_CONFIG"):
        try:
            return dict(json.loads(text))
        except (ValueError, TypeError):  # never print the value: it may hold a password
            raise ConfigError("SLUICE_REGISTRY_CONFIG is not a JSON object of registry settings.") from None
    names = {
        "url": "SCHEMA_REGISTRY_URL",
        "basic.auth.user.info": "SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO",
        "ssl.ca.location": "SCHEMA_REGISTRY_SSL_CA_LOCATION",
    }
    found = {setting: value for setting, name in names.items() if (value := os.environ.get(name))}
    if "url" not in found:
        raise ConfigError(
            "The contract's format needs a schema registry, and none is configured.",
            next_step="Set the Airflow connection sluice_registry, or SCHEMA_REGISTRY_URL for the command line.",
        )
    return found


def extract_url_credentials(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the URL's user and password moved to `basic.auth.user.info`.

    The client's HTTP library logs URLs.

    Raises:
        ConfigError: `basic.auth.user.info` is set as well.
    """
    urls = re.split(r",(?=\s*https?://)", str(settings.get("url", "")))
    found = re.search(r"//(.*)@", urls[0])
    # Removed from all addresses: the client uses those of the first for all.
    bare = {**settings, "url": ",".join(re.sub(r"//.*@", "//", each) for each in urls)}
    if found is None:
        return bare
    if "basic.auth.user.info" in settings:
        raise ConfigError(
            "The schema registry's user and password are set twice: in its URL and separately.",
            next_step=f"Remove them from the URL of {SETTINGS_SOURCE}.",
        )
    return {**bare, "basic.auth.user.info": unquote(found[1])}
