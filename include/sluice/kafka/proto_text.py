"""Protobuf texts that registries take and protoc refuses: in, a .proto text; out, one that protoc takes.

The text describes the same bytes. `restore` puts back into protoc's descriptors what only the first text says.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import count
from typing import Any

_TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[.\w]+|\S""", re.DOTALL)
_LABELS = ("optional", "required", "repeated")
_MAP_ENTRY, _VALUE_MARK = "sluice_map_entry", re.compile(r"_sluice_\d+$")


def simplify(texts: Iterable[tuple[str, str]], imports: Collection[str]) -> list[tuple[str, str]]:
    """.proto texts, by name, without what protoc refuses, registries take, and no record's bytes depend on.

    Left out are options, reserved names, and imports of files that nobody has. Fields may have one JSON name, and
    enums may have the same values and begin with any: `restore` removes what is added for that.

    Args:
        texts: The texts.
        imports: The files that may be imported.
    """
    marks = count()
    return [(name, " ".join(_simplified(text, imports, marks))) for name, text in texts]


def _simplified(text: str, imports: Collection[str], marks: Iterator[int]) -> Iterator[str]:
    blocks: list[str] = []
    for first, *rest in _statements(text):
        if blocks[-1:] == ["enum"] and rest[:1] == ["="]:
            first += f"_sluice_{next(marks)}"  # noqa: PLW2901
        elif first == "option":
            if rest == ["map_entry", "=", "true", ";"]:
                yield f'reserved "{_MAP_ENTRY}";'
            continue
        elif first == "reserved" or (first == "import" and rest[-2:-1] and rest[-2].strip("\"'") not in imports):
            continue
        yield first
        yield from rest
        if first == "}":
            del blocks[-1:]
        elif rest[-1:] == ["{"]:
            is_group = first == "group" or (first in _LABELS and rest[0] == "group")
            blocks.append("message" if is_group else first)
            if blocks[-1] == "message":
                yield "option deprecated_legacy_json_field_conflicts = true;"
            elif blocks[-1] == "enum":
                yield f"option allow_alias = true; _sluice_{next(marks)} = 0; _sluice_{next(marks)} = 0;"


def _statements(text: str) -> Iterator[list[str]]:
    """The statements of a .proto text up to `;`, `{` or `}`, without comments, options of fields, and their like."""
    statement: list[str] = []
    depth = 0
    for part in _TOKEN.findall(text):
        if depth or part == "[" or (part == "{" and statement[:1] == ["option"]):
            depth += (part in "[{") - (part in "]}")
        elif not part.startswith(("//", "/*")):
            statement.append(part)
            if part in "{};":
                yield statement
                statement = []


def restore(messages: Iterable[Any], enums: Iterable[Any]) -> None:
    """Undo what `simplify` adds, in the descriptors of messages and enums."""
    for enum in enums:
        values = [(_VALUE_MARK.sub("", each.name), each.number) for each in enum.value]
        del enum.value[:]
        for name, number in values:
            if name:
                enum.value.add(name=name, number=number)
    for message in messages:
        if _MAP_ENTRY in message.reserved_name:
            message.options.map_entry = True
        restore(message.nested_type, message.enum_type)
