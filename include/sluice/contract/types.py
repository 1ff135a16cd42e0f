"""Column types: parses Iceberg's type syntax into a frozen tree, and reports where a text is wrong.

Imports neither PyIceberg nor Spark, because DAG files import it; `iceberg.schema` converts the tree for PyIceberg.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sluice.contract.suggestions import closest

PRIMITIVES = frozenset(
    (
        "boolean",
        "int",
        "long",
        "float",
        "double",
        "date",
        "time",
        "timestamp",
        "timestamptz",
        "string",
        "uuid",
        "binary",
    )
)
"""Primitive types without arguments; `decimal(p, s)` and `fixed[n]` are the two that take some."""

_KNOWN = sorted(PRIMITIVES | {"decimal(p, s)", "fixed[n]", "list<type>", "map<type, type>", "struct<name: type>"})
_HEADS = {re.split(r"[(\[<]", name)[0]: name for name in _KNOWN}
_FOREIGN = {
    "binary": ("bytes", "varbinary"),
    "boolean": ("bool",),
    "decimal(p, s)": ("numeric",),
    "double": ("number",),
    "float": ("real",),
    "int": ("int32", "integer", "short", "smallint", "tinyint"),
    "list<type>": ("array",),
    "long": ("bigint", "int64"),
    "string": ("char", "json", "str", "text", "varchar"),
    "struct<name: type>": ("object", "row"),
    "timestamp": ("datetime", "timestamp_ntz"),
    "timestamptz": ("timestamp_ltz",),
}
_ALIASES = {foreign: ours for ours, names in _FOREIGN.items() for foreign in names}
_MAX_DEPTH = 32
_MAX_LENGTH = 20_000
_MAX_FIXED = 2**31 - 1
_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[<>()\[\],:])")


class TypeSyntaxError(ValueError):
    """The text is not a type; the message has the position (counted from 1) and a suggestion."""


@dataclass(frozen=True)
class Primitive:
    """A type without arguments: one of `PRIMITIVES`."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Decimal:
    """A decimal of `precision` digits (1 to 38), `scale` of them after the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision}, {self.scale})"


@dataclass(frozen=True)
class Fixed:
    """Binary of exactly `length` bytes."""

    length: int

    def __str__(self) -> str:
        return f"fixed[{self.length}]"


@dataclass(frozen=True)
class ListOf:
    """A list; its elements may be null."""

    element: IcebergType

    def __str__(self) -> str:
        return f"list<{self.element}>"


@dataclass(frozen=True)
class MapOf:
    """A map; its values may be null, its keys may not."""

    key: IcebergType
    value: IcebergType

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"


@dataclass(frozen=True)
class Struct:
    """A struct; its fields, each a name and a type, may be null."""

    fields: tuple[tuple[str, IcebergType], ...]

    def __str__(self) -> str:
        return f"struct<{', '.join(f'{name}: {kind}' for name, kind in self.fields)}>"


IcebergType = Primitive | Decimal | Fixed | ListOf | MapOf | Struct
"""What `parse_type` returns; `str()` gives the canonical text back."""


def is_primitive(kind: IcebergType) -> bool:
    """Return whether `kind` is not a list, map or struct."""
    return isinstance(kind, (Primitive, Decimal, Fixed))


def walk_types(kind: IcebergType) -> Iterator[IcebergType]:
    """Yield `kind` and every type inside it."""
    yield kind
    match kind:
        case ListOf(element):
            yield from walk_types(element)
        case MapOf(key, value):
            yield from walk_types(key)
            yield from walk_types(value)
        case Struct(fields):
            for _, inner in fields:
                yield from walk_types(inner)


def parse_type(text: str) -> IcebergType:
    """Parse a type such as `map<string, decimal(10, 2)>`.

    Args:
        text: The type as Iceberg writes it; `fixed(4)` means `fixed[4]`. White space is ignored.

    Raises:
        TypeSyntaxError: The text is not an Iceberg type, or is nested more than 32 levels deep.
    """
    if len(text) > _MAX_LENGTH:
        raise TypeSyntaxError(f"a type of {len(text)} characters is too long (at most {_MAX_LENGTH})")
    return _Parser(text).whole()


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, int]] = []
        position = 0
        end = len(text.rstrip())
        while position < end:
            found = _TOKEN.match(text, position)
            if not found:
                at = position + len(text[position:]) - len(text[position:].lstrip())
                raise self.error(f"unexpected {text[at]!r}", at)
            self.tokens.append((found[1], found.start(1)))
            position = found.end()
        self.tokens.append(("", end))
        self.next = 0

    def error(self, message: str, at: int) -> TypeSyntaxError:
        shown = self.text if len(self.text) <= 80 else self.text[:77] + "..."
        return TypeSyntaxError(f"{message} at character {at + 1} of {shown!r}")

    def take(self) -> tuple[str, int]:
        token = self.tokens[self.next]
        self.next = min(self.next + 1, len(self.tokens) - 1)
        return token

    def expect(self, *wanted: str) -> str:
        token, at = self.take()
        if token not in wanted:
            choice = " or ".join(repr(each) for each in wanted)
            raise self.error(f"expected {choice}, found {repr(token) if token else 'the end'}", at)
        return token

    def number(self, name: str, low: int, high: int) -> int:
        token, at = self.take()
        if not token.isdigit() or len(token) > 10 or not low <= int(token) <= high:
            raise self.error(f"{name} must be a whole number from {low} to {high}", at)
        return int(token)

    def whole(self) -> IcebergType:
        kind = self.type(1)
        token, at = self.take()
        if token:
            raise self.error(f"unexpected {token!r} after the type", at)
        return kind

    def type(self, depth: int) -> IcebergType:
        head, at = self.take()
        if depth > _MAX_DEPTH:
            raise self.error(f"more than {_MAX_DEPTH} levels of nesting", at)
        if head in PRIMITIVES:
            return Primitive(head)
        if head == "decimal":
            self.expect("(")
            precision = self.number("a decimal's precision", 1, 38)
            self.expect(",")
            scale = self.number("a decimal's scale", 0, precision)
            self.expect(")")
            return Decimal(precision, scale)
        if head == "fixed":
            closing = {"(": ")", "[": "]"}[self.expect("[", "(")]
            length = self.number("a fixed's length", 1, _MAX_FIXED)
            self.expect(closing)
            return Fixed(length)
        if head in {"list", "map", "struct"}:
            self.expect("<")
            return self.nested(head, depth)
        raise self.error(_unknown(head), at)

    def nested(self, head: str, depth: int) -> IcebergType:
        kind: IcebergType
        if head == "list":
            kind = ListOf(self.type(depth + 1))
        elif head == "map":
            key = self.type(depth + 1)
            self.expect(",")
            kind = MapOf(key, self.type(depth + 1))
        else:
            return Struct(tuple(self.fields(depth)))
        self.expect(">")
        return kind

    def fields(self, depth: int) -> Iterator[tuple[str, IcebergType]]:
        seen: set[str] = set()
        while True:
            name, at = self.take()
            if not name.isidentifier():
                raise self.error("expected a field name (letters, digits and _)", at)
            if name.lower() in seen:
                raise self.error(f"field {name!r} is defined twice in one struct", at)
            seen.add(name.lower())
            self.expect(":")
            yield name, self.type(depth + 1)
            if self.expect(",", ">") == ">":
                return


def _unknown(head: str) -> str:
    if not head or not head.isidentifier():
        return f"expected a type, found {repr(head) if head else 'the end'}"
    lower = head.lower()
    meant = _ALIASES.get(lower) or _HEADS.get(closest(lower, _HEADS) or "")
    if meant:
        return f"unknown type {head!r} (did you mean {meant!r}?)"
    return f"unknown type {head!r} (known: {', '.join(_KNOWN)})"
