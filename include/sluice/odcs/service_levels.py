"""The freshness target as ODCS has it: the service level `latency`."""

from __future__ import annotations

from datetime import timedelta

from open_data_contract_standard.model import ServiceLevelAgreementProperty

from sluice.contract.values import parse_duration

LATENCY = ("latency", "ly", "freshness")
"""Names of the service level, in lower case; the standard prefers the first to the last."""

_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_NAMES = {
    "s": "s sec secs second seconds",
    "m": "m min mins minute minutes",
    "h": "h hr hrs hour hours",
    "d": "d day days",
    "w": "w week weeks",
}
_BY_NAME = {name: unit for unit, names in _NAMES.items() for name in names.split()}


def write_freshness(freshness: timedelta, element: str) -> ServiceLevelAgreementProperty:
    """Return the service level of a freshness target.

    Args:
        freshness: The target.
        element: The schema object that it is of.
    """
    seconds = int(freshness.total_seconds())
    lengths = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
    unit = next(each for each, length in lengths.items() if seconds % length == 0)
    return ServiceLevelAgreementProperty(
        property=LATENCY[0],
        value=seconds // lengths[unit],
        unit=_UNITS[unit],
        element=element,
        description="How old records in Kafka may be that the table does not have yet.",
    )


def is_latency(level: ServiceLevelAgreementProperty, names: set[str | None]) -> bool:
    """Whether it is the latency of a schema object, or of all.

    Args:
        level: The service level.
        names: The object's names.
    """
    elements = {each.strip().split(".")[0] for each in (level.element or "").split(",")} - {""}
    return (level.property or "").lower() in LATENCY and (not elements or bool(elements & names))


def read_freshness(level: ServiceLevelAgreementProperty) -> str | None:
    """Return a latency as a contract's duration; None if it is none that contracts have."""
    unit = _BY_NAME.get((level.unit or "").lower())
    number = level.value
    if isinstance(number, str) and number.isdecimal():
        number = int(number)
    if unit is None or isinstance(number, bool) or not isinstance(number, int | float) or number != int(number):
        return None
    text = f"{int(number)}{unit}"
    try:
        parse_duration(text)
    except ValueError:
        return None
    return text
