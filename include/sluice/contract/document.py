"""YAML files as plain Python values, with the line of every field for error messages.

A strict subset of YAML: no tags, anchors, aliases or duplicate keys, one document. Scalars are those of YAML 1.2, so
that `no`, `on`, `12:30` and `2024-01-31` stay text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from sluice.errors import printable

Location = tuple[str | int, ...]
"""Where a value stands: keys and list indices from the top."""

MAX_BYTES = 1_000_000
"""Size limit of a file."""

_MAX_DEPTH = 50
_TOO_DEEP = f"is nested more than {_MAX_DEPTH} levels deep"
_FLOAT, _LONGEST_FLOAT = r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?", 40


class _Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """Resolves plain scalars as in YAML 1.2: BaseLoader resolves none by itself. Uses libyaml if PyYAML has it."""


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9][0-9_]*", list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


@dataclass(frozen=True, order=True)
class Problem:
    """One error in a contract's file or in `groups.yaml`.

    Attributes:
        file: The file's name, as given to `read_document`.
        line: Line from 1; 0 if the file itself is the problem.
        path: The field, such as `columns[2].type`; empty for the whole file.
        message: What is wrong, perhaps with a suggestion.
    """

    file: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        text = f"{where}: {self.path}: {self.message}" if self.path else f"{where}: {self.message}"
        return printable(text).replace("\n", "\\n")  # keys and tags are quoted as they are


@dataclass
class Document:
    """The content of a YAML file.

    Attributes:
        file: Its name, for messages.
        data: Its content as plain Python values; None if it has problems.
        lines: Line of each value (for a field, the line of its key).
        problems: Its syntax errors.
    """

    file: str
    data: object = None
    lines: dict[Location, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, location: Location, message: str) -> Problem:
        """Return a problem of the value at `location`, with the line of the innermost part that is in the file."""
        known = location
        while known and known not in self.lines:
            known = known[:-1]
        # A scalar in place of a list has no index in the file.
        while len(location) > len(known) and isinstance(location[-1], int):
            location = location[:-1]
        return Problem(self.file, self.lines.get(known, 1), format_location(location), message)


def format_location(location: Location) -> str:
    """Return a location as text: `columns[2].type`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text if len(text) <= 120 else text[:117] + "..."


def read_document(path: Path, name: str) -> Document:
    """Read a YAML file; its errors are in the result's `problems`.

    Args:
        path: The file.
        name: Its name in messages.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        return Document(name, problems=[Problem(name, 0, "", f"cannot be read: {error.strerror}")])
    return parse_document(raw, name)


def parse_document(raw: bytes, name: str) -> Document:
    """Parse the content of a YAML file; its errors are in the result's `problems`.

    Args:
        raw: The content.
        name: The file's name in messages.
    """
    document = Document(name)
    if len(raw) > MAX_BYTES:
        document.problems.append(Problem(name, 0, "", f"is larger than {MAX_BYTES:,} bytes"))
        return document
    try:
        text = raw.decode("utf-8")
        _check_depth(text)
        root = _Loader(text).get_single_node()
        document.data = None if root is None else _NodeReader(document).value(root, ())
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        document.problems.append(Problem(name, line, "", "is not UTF-8 text"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        text = "is not YAML: " + ", ".join(each for each in (error.context, error.problem) if each)
        if "nesting depth" in text:  # libyaml 0.2.6 has a limit of its own, which a line of brackets reaches first
            text = _TOO_DEEP
        document.problems.append(Problem(name, mark.line + 1 if mark else 1, "", text))
    except yaml.YAMLError as error:
        document.problems.append(Problem(name, 1, "", f"is not YAML: {str(error).splitlines()[0]}"))
    except RecursionError:
        document.problems.append(Problem(name, 1, "", _TOO_DEEP))
    if document.problems:
        document.data = None
    return document


def _check_depth(text: str) -> None:
    """Raise if the text is nested so deeply that libyaml's recursion could overflow the stack.

    Raises:
        RecursionError: the text has more than `_MAX_DEPTH` levels.
    """
    depth = 0
    for event in yaml.parse(text, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise RecursionError


class _NodeReader:
    """Converts YAML nodes to plain values, and records their lines in a document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.seen: set[int] = set()

    def add_problem(self, node: yaml.Node, at: Location, message: str) -> None:
        self.document.problems.append(
            Problem(self.document.file, node.start_mark.line + 1, format_location(at), message)
        )

    def value(self, node: yaml.Node, at: Location) -> object:
        self.document.lines.setdefault(at, node.start_mark.line + 1)
        if id(node) in self.seen:
            # Aliases can make a small file huge, and a field's line ambiguous.
            self.add_problem(node, at, "anchors and aliases (& and *) are not allowed: write the value out")
            return None
        self.seen.add(id(node))
        if len(at) > _MAX_DEPTH:
            raise RecursionError
        if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
            return self.mapping(node, at)
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            return [self.value(each, (*at, index)) for index, each in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, at)
        self.add_problem(node, at, f"the tag {node.tag} is not allowed: use plain values")
        return None

    def scalar(self, node: yaml.ScalarNode, at: Location) -> object:
        text: str = node.value
        match node.tag.removeprefix("tag:yaml.org,2002:"):
            case "str":
                return text
            case "null" if text in {"~", "null", "Null", "NULL", ""}:
                return None
            case "bool" if text.lower() in {"true", "false"}:
                return text.lower() == "true"
            case "int" if re.fullmatch(r"[-+]?[0-9][0-9_]{0,39}", text):
                return int(text.replace("_", ""))
            case "float" if len(text) <= _LONGEST_FLOAT and re.fullmatch(_FLOAT, text):
                return float(text)
        self.add_problem(node, at, f"the value {text[:40]!r} with the tag {node.tag} is not allowed: use plain values")
        return None

    def mapping(self, node: yaml.MappingNode, at: Location) -> dict[object, object]:
        result: dict[object, object] = {}
        first: dict[object, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.add_problem(key_node, at, "a key must be plain text")
                continue
            key = self.scalar(key_node, at)
            line = key_node.start_mark.line + 1
            step = key if isinstance(key, (str, int)) and not isinstance(key, bool) else str(key)
            if key in first:
                self.add_problem(key_node, (*at, step), f"is a duplicate of line {first[key]}")
                continue
            first[key] = line
            self.document.lines[(*at, step)] = line
            result[key] = self.value(value_node, (*at, step))
        return result
