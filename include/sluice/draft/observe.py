"""Observes the values of JSON documents: in, one document after the other; out, per field what its values were.

Only counts and forms are kept, never values: they end up as comments in a contract.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

MAX_DEPTH = 12
"""Objects and lists below this depth are not looked into."""
MAX_NAMES = 3000
"""Names of one object beyond these are only counted."""

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?(Z|[+-][0-9]{2}:[0-9]{2})?", re.ASCII
)
_DECIMAL = re.compile(r"[+-]?(0|[1-9][0-9]{0,30})[.]([0-9]{1,20})", re.ASCII)
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,17})", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}", re.ASCII)
_PERSONAL = {
    "an e-mail address": re.compile(r"[^@\s]{1,64}@[^@\s]{1,200}[.][A-Za-z]{2,20}"),
    "an IP address": re.compile(r"([0-9]{1,3}[.]){3}[0-9]{1,3}", re.ASCII),
    "an IBAN": re.compile(r"[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}", re.ASCII),
    "a phone number": re.compile(r"[+][0-9][0-9 ()/-]{6,20}", re.ASCII),
}
_CARD = re.compile(r"[0-9]{4}([ -]?[0-9]{4}){2}[ -]?[0-9]{1,7}", re.ASCII)
_MAX_ZONE = timedelta(hours=18)


class NotJsonError(ValueError):
    """The bytes are not one JSON document in UTF-8."""


@dataclass
class Field:
    """What the values of one field were.

    Attributes:
        kinds: How many values there were of each kind: `null`, `boolean`, `integer`, `number`, `string`, `list`,
            `object`.
        texts: How many texts there were of each form: `timestamptz`, `timestamp`, `date`, `decimal`, `integer`,
            `uuid`, `empty`, `other`.
        personal: How many texts looked like personal data, by what they looked like.
        low: The least integer.
        high: The greatest integer.
        digits: The most digits before the point, of numbers with a fraction and of decimal texts.
        scales: Numbers of digits after the point.
        fields: Of objects, their fields.
        items: Of lists, their elements.
        too_deep: Whether it has objects or lists that were not looked into.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)
    personal: Counter[str] = field(default_factory=Counter)
    low: int = 0
    high: int = 0
    digits: int = 0
    scales: set[int] = field(default_factory=set)
    fields: dict[str, Field] = field(default_factory=dict)
    items: Field | None = None
    too_deep: bool = False

    @property
    def values(self) -> int:
        """How many values were not null."""
        return self.kinds.total() - self.kinds["null"]

    def add(self, value: Any, depth: int = 0) -> None:
        """Observe one value, as `parse_json` returns it."""
        match value:
            case None:
                self.kinds["null"] += 1
            case bool():
                self.kinds["boolean"] += 1
            case int():
                low, high = (self.low, self.high) if self.kinds["integer"] else (value, value)
                self.low, self.high = min(low, value), max(high, value)
                self.kinds["integer"] += 1
            case float() | Decimal():
                self.kinds["number"] += 1
                self._add_digits(value)
            case str():
                self.kinds["string"] += 1
                self._add_text(value)
            case list():
                self.kinds["list"] += 1
                self._add_items(value, depth)
            case _:
                self.kinds["object"] += 1
                self._add_fields(value, depth)

    def _add_digits(self, value: float | Decimal) -> None:
        if isinstance(value, Decimal) and value.is_finite():
            exponent = int(value.as_tuple().exponent)
            self.scales.add(max(-exponent, 0))
            self.digits = max(self.digits, value.adjusted() + 1, 1)
        else:
            self.scales.add(math.inf)  # type: ignore[arg-type]  # NaN has no digits: no decimal holds it

    def _add_text(self, text: str) -> None:
        self.texts[_form(text)] += 1
        if found := _DECIMAL.fullmatch(text):
            self.digits = max(self.digits, len(found[1]))
            self.scales.add(len(found[2]))
        if looks := _looks_personal(text):
            self.personal[looks] += 1

    def _add_items(self, value: list[Any], depth: int) -> None:
        if depth >= MAX_DEPTH:
            self.too_deep = True
            return
        self.items = self.items or Field()
        for each in value:
            self.items.add(each, depth + 1)

    def _add_fields(self, value: dict[str, Any], depth: int) -> None:
        if depth >= MAX_DEPTH:
            self.too_deep = True
            return
        for name, each in value.items():
            if name in self.fields or len(self.fields) < MAX_NAMES:
                self.fields.setdefault(name, Field()).add(each, depth + 1)
            else:
                self.too_deep = True


def parse_json(raw: bytes) -> Any:
    """Return a JSON document as Python values; numbers with a fraction as `Decimal`.

    Raises:
        NotJsonError: The decoder would not read it either.
    """
    try:
        found = json.loads(raw.decode("utf-8"), parse_float=Decimal)
        json.dumps(found, ensure_ascii=False, default=str).encode("utf-8")  # half of a surrogate pair is malformed
    except (ValueError, RecursionError, InvalidOperation) as error:
        raise NotJsonError from error
    return found


def _form(text: str) -> str:
    if not text.strip():
        return "empty"
    for name, pattern in (("decimal", _DECIMAL), ("integer", _INTEGER), ("uuid", _UUID)):
        if pattern.fullmatch(text):
            return name
    with suppress(ValueError, OverflowError):
        if _DATE.fullmatch(text):
            date.fromisoformat(text)
            return "date"
        if _TIMESTAMP.fullmatch(text):
            found = datetime.fromisoformat(text)
            if found.tzinfo is None:
                return "timestamp"
            zone = found.utcoffset() or timedelta(0)
            found.astimezone(UTC)
            return "timestamptz" if abs(zone) <= _MAX_ZONE else "other"
    return "other"


def _looks_personal(text: str) -> str | None:
    for name, pattern in _PERSONAL.items():
        if pattern.fullmatch(text):
            return name
    if _CARD.fullmatch(text):
        digits = [int(each) for each in text if each.isdigit()]
        return "a card number" if 13 <= len(digits) <= 19 and _passes_luhn(digits) else None
    return None


def _passes_luhn(digits: list[int]) -> bool:
    doubled = [2 * each - 9 * (each > 4) for each in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0
