"""What docker-compose.yaml says of a service, for tests that run it without a container."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from sluice.embedded.home import REPOSITORY

COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker-compose.yaml").read_text("utf-8"))


def interpolate(text: str, values: Mapping[str, str]) -> str:
    """Replace `${NAME:?…}` and `$$` as Compose does.

    Args:
        text: A value of the file.
        values: The variables of Compose's environment.
    """
    pattern = r"\$\$|\$\{(\w+)(?::[?-][^}]*)?\}"
    return re.sub(pattern, lambda found: values[found[1]] if found[1] else "$", text)


def health_check(service: str, replaced: Mapping[str, str]) -> Sequence[str]:
    """Return the command of a service's health check.

    Args:
        service: The service's name.
        replaced: What stands in the file, and what is here in its place, such as a port.
    """
    kind, *command = COMPOSE["services"][service]["healthcheck"]["test"]
    command = [interpolate(part, {}) for part in command]
    for there, here in replaced.items():
        assert any(there in part for part in command), f"{service}: {there} is not in {command}"
        command = [part.replace(there, here) for part in command]
    return command if kind == "CMD" else ["/bin/sh", "-c", *command]
