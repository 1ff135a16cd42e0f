"""How the schema registry is reached: the settings of confluent-kafka's client, from the environment."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from sluice.errors import ConfigError

CONNECTION = "the Airflow connection sluice_registry, or of the variables SCHEMA_REGISTRY_…"
"""Where an operator sets them, to follow `of`."""


def config() -> dict[str, Any]:
    """Settings of confluent-kafka's client: `SLUICE_REGISTRY_CONFIG` (JSON), else Confluent's own variables.

    These are `SCHEMA_REGISTRY_URL`, `SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO` (user:password) and
    `SCHEMA_REGISTRY_SSL_CA_LOCATION`.

    Raises:
        ConfigError: no registry is named.
    """
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
            way_out="Set the Airflow connection sluice_registry, or SCHEMA_REGISTRY_URL for the command line.",
        )
    return found


def without_password_in_url(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with a URL's user and password as a setting of their own: the client's HTTP library logs URLs.

    Raises:
        ConfigError: there is another user and password beside it.
    """
    urls = re.split(r",(?=\s*https?://)", str(settings.get("url", "")))
    found = re.search(r"//(.*)@", urls[0])
    # Of further addresses, too: the client takes those of the first for all.
    bare = {**settings, "url": ",".join(re.sub(r"//.*@", "//", each) for each in urls)}
    if found is None:
        return bare
    if "basic.auth.user.info" in settings:
        raise ConfigError(
            "The schema registry's user and password are set twice: in its URL, and by themselves.",
            way_out=f"Take them out of the URL of {CONNECTION}.",
        )
    return {**bare, "basic.auth.user.info": unquote(found[1])}
