"""Removes secrets from texts: libraries quote addresses and settings in their errors.

In: the environment. Out: texts in which the values of secret settings, and users and passwords in addresses, are gone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

HIDDEN = "…"
_NAME = re.compile(
    r"secret|password|passwd|token|credential|access.?key|(private|mask).?key|sas|jaas|user.info|airflow_conn_", re.I
)
_USER_INFO = re.compile(r"(?<=//)[^/\s@]+@")
_SHORTEST = 4
"""Shorter values would remove parts of words."""


@dataclass(frozen=True)
class SecretValues:
    """The values that no text may show, the longest first."""

    values: tuple[str, ...]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> SecretValues:
        """Collect the values of variables, and of settings in JSON variables, whose names are those of secrets."""
        found = {each for each in _secrets(environment) if len(each) >= _SHORTEST}
        return cls(tuple(sorted(found, key=len, reverse=True)))

    def hide(self, text: str) -> str:
        """Return the text without them."""
        for value in self.values:
            text = text.replace(value, HIDDEN)
        return _USER_INFO.sub(f"{HIDDEN}@", text)


def _secrets(settings: Mapping[str, Any]) -> Iterator[str]:
    for name, value in settings.items():
        text = str(value)
        if _NAME.search(name):
            yield text
        if found := re.search(r"//[^/\s@]*:([^/\s@]+)@", text):  # the password of an address
            yield from (found[1], unquote(found[1]))
        if text.startswith("{"):
            try:
                inner = json.loads(text)
            except ValueError:
                continue
            if isinstance(inner, dict):
                yield from _secrets(inner)
