"""Types for observed JSON values: in, what the values of a field were; out, a type that reads them all, and why."""

from __future__ import annotations

from sluice.contract.types import Decimal, IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.contract.values import IDENTIFIER
from sluice.draft.observe import Field
from sluice.draft.personal import words

STRING = Primitive("string")
MAX_STRUCT_FIELDS = 200
_MIN_MAP_NAMES = 20
_LONG = 2**63
_AMOUNT_WORDS = words("amount balance cost discount fee price rate subtotal sum tax total vat weight")
_NAMES = {
    "boolean": "booleans",
    "integer": "whole numbers",
    "number": "numbers with a fraction",
    "string": "texts",
    "list": "lists",
    "object": "objects",
}
_FORMS = {
    "timestamptz": "an ISO timestamp with a time zone",
    "timestamp": "an ISO timestamp without a time zone",
    "date": "an ISO date",
    "decimal": "a decimal number as text",
    "integer": "a whole number as text",
    "uuid": "a UUID",
    "empty": "empty",
}
_TIMES = {"date", "timestamp", "timestamptz"}


def is_map(seen: Field, objects: int) -> bool:
    """Whether objects are maps: they have many names, of which each has few."""
    if len(seen.fields) < _MIN_MAP_NAMES or seen.too_deep:
        return False
    present = sum(each.kinds.total() for each in seen.fields.values())
    return present < 0.2 * len(seen.fields) * max(objects, 1)


def merge(fields: list[Field]) -> Field:
    """Return what the values of several fields were, together."""
    merged = Field()
    for each in fields:
        first = not merged.kinds["integer"]
        if each.kinds["integer"]:
            merged.low = each.low if first else min(merged.low, each.low)
            merged.high = each.high if first else max(merged.high, each.high)
        merged.kinds += each.kinds
        merged.texts += each.texts
        merged.personal += each.personal
        merged.digits = max(merged.digits, each.digits)
        merged.scales |= each.scales
        merged.too_deep |= each.too_deep
        if each.items:
            merged.items = merge([merged.items, each.items]) if merged.items else each.items
        for name, inner in each.fields.items():
            merged.fields[name] = merge([merged.fields[name], inner]) if name in merged.fields else inner
    return merged


def infer_type(seen: Field, name: str = "") -> tuple[IcebergType, str]:
    """Return a type that reads all observed values, and the evidence for it.

    Args:
        seen: What the values were.
        name: The field's name: it decides whether texts of digits may be an amount.
    """
    kinds = {kind for kind, count in seen.kinds.items() if count and kind != "null"}
    match sorted(kinds):
        case []:
            return STRING, "never a value in the sample: correct the type"
        case ["boolean"]:
            return Primitive("boolean"), ""
        case ["integer"]:
            return _integer_type(seen)
        case ["number"] | ["integer", "number"]:
            return Primitive("double"), _exact_hint(seen)
        case ["string"]:
            return _text_type(seen, name)
        case ["list"]:
            return _list_type(seen)
        case ["object"]:
            return _object_type(seen)
    counts = ", ".join(f"{seen.kinds[kind]} {_NAMES[kind]}" for kind in sorted(kinds))
    return STRING, f"mixed: {counts}; those that are no text are stored as their JSON"


def _integer_type(seen: Field) -> tuple[IcebergType, str]:
    if seen.low >= -_LONG and seen.high < _LONG:
        return Primitive("long"), "whole numbers"
    if max(abs(seen.low), abs(seen.high)) < 10**38:
        return Decimal(38, 0), "whole numbers beyond what a long holds"
    return STRING, "whole numbers of more than 38 digits"


def _exact_hint(seen: Field) -> str:
    scales = [scale for scale in seen.scales if scale <= 18]
    if len(scales) < len(seen.scales) or not scales:
        return "numbers"
    scale = max(scales)
    if seen.digits + scale > 18:
        return "numbers"
    return f"numbers, up to {_digits(scale)} after the point: decimal(18, {scale}) would be exact"


def _text_type(seen: Field, name: str) -> tuple[IcebergType, str]:
    forms = {form for form, count in seen.texts.items() if count}
    total = seen.texts.total()
    if forms <= _TIMES:
        kind = next(each for each in ("timestamptz", "timestamp", "date") if each in forms)
        mixed = ", ".join(f"{seen.texts[form]} are {_FORMS[form]}" for form in sorted(forms))
        zone = ""
        if "timestamp" in forms:
            zone = {
                "timestamptz": "; those without a time zone are read as UTC",
                "timestamp": "; type: timestamptz reads them as UTC",
            }[kind]
        return Primitive(kind), (
            f"every value is {_FORMS[kind]}" if len(forms) == 1 else f"of the values {mixed}"
        ) + zone
    if "decimal" in forms and forms <= {"decimal", "integer"}:
        return _decimal_type(seen, name)
    if len(forms) == 1 and (form := next(iter(forms))) in _FORMS:
        return STRING, f"every value is {_FORMS[form]}"
    form, count = max(seen.texts.items(), key=lambda each: each[1])
    if form in _FORMS and form != "empty" and count * 2 > total:
        return STRING, f"{count} of {total} values are {_FORMS[form]}, the others are not"
    return STRING, ""


def _decimal_type(seen: Field, name: str) -> tuple[IcebergType, str]:
    scale = max(seen.scales, default=0)
    room = 18 if seen.digits + scale <= 12 and scale <= 6 else 38
    kind = Decimal(room, scale)
    known = words(name)
    steady = len(seen.scales) == 1 and seen.texts["decimal"] == seen.texts.total()
    if seen.digits + scale > 36 or "version" in name.lower() or not (steady or known & _AMOUNT_WORDS):
        return STRING, "every value is a decimal number as text"
    return kind, f"every value is a decimal number as text, up to {_digits(scale)} after the point; more are rounded"


def _digits(count: int) -> str:
    return "1 digit" if count == 1 else f"{count} digits"


def _list_type(seen: Field) -> tuple[IcebergType, str]:
    if seen.too_deep or seen.items is None:
        return STRING, "lists that are nested too deeply to look into: stored as their JSON"
    if not seen.items.kinds:
        return ListOf(STRING), "every list is empty in the sample: correct the elements' type"
    kind, why = infer_type(seen.items)
    return ListOf(kind), f"elements: {why}" if why else ""


def _object_type(seen: Field) -> tuple[IcebergType, str]:
    objects = seen.kinds["object"]
    if not seen.fields and not seen.too_deep:
        return MapOf(STRING, STRING), "every object is empty in the sample: correct the type"
    if is_map(seen, objects):
        kind, _ = infer_type(merge(list(seen.fields.values())))
        return MapOf(STRING, kind), f"{len(seen.fields)} names in {objects} objects: read as a map"
    names = list(seen.fields)
    plain = all(IDENTIFIER.fullmatch(name) for name in names)
    if seen.too_deep or not plain or len({n.lower() for n in names}) < len(names) or len(names) > MAX_STRUCT_FIELDS:
        return STRING, "objects whose names no struct may have: stored as their JSON"
    return Struct(tuple((name, infer_type(each, name)[0]) for name, each in seen.fields.items())), ""
