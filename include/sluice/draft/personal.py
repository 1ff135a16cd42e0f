"""Which fields may hold personal data, by their names and by what their values look like."""

from __future__ import annotations

import re

from sluice.draft.observe import Field

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def words(name: str) -> set[str]:
    """Return the words of a name in lower case: of `customerEmail` and `customer_email` they are the same."""
    return {each.lower() for each in _WORD.findall(name)}


_WORDS = words(
    "address birthday birthdate birthplace creditcard dob email fax firstname forename fullname gender iban iin ip "
    "ipaddress lastname mail maidenname mobile msisdn nationality passport password phone postcode religion salary "
    "ssn street surname taxid telephone username zip zipcode"
)
_PAIRS = (
    {"birth", "date"}, {"card", "number"}, {"credit", "card"}, {"first", "name"}, {"full", "name"}, {"last", "name"},
    {"ip", "addr"}, {"national", "id"}, {"social", "security"}, {"tax", "id"}, {"user", "name"}, {"customer", "name"},
)  # fmt: skip


def personal_evidence(name: str, seen: Field | None = None) -> str:
    """Return why a field may hold personal data; empty if nothing suggests it."""
    if seen and seen.personal and seen.values:
        (looks, count), *_ = seen.personal.most_common(1)
        if count * 10 >= seen.values:
            return f"{count} of {seen.values} values look like {looks}"
    found = words(name)
    if found & _WORDS or any(pair <= found for pair in _PAIRS):
        return "its name suggests it"
    return ""
