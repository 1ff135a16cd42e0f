"""Writes a draft as the text of a contract, with its evidence as comments.

Names come from topics and records: every value is written by PyYAML, and no text can end its comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from sluice.draft.model import Draft, DraftColumn, Lines, Proposal
from sluice.errors import printable

SCHEMA_HEADER = "yaml-language-server: $schema="


class _Block(dict[str, Any]):
    """A map that is written with a line for each entry."""


class _Dumper(yaml.SafeDumper):
    """Quotes what YAML 1.1 or 1.2 would not read as text."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


_Dumper.add_representer(
    _Block, lambda dumper, data: dumper.represent_mapping("tag:yaml.org,2002:map", data.items(), flow_style=False)
)
_Dumper.add_representer(
    str,  # in double quotes the command line's escape for a control character is YAML's too
    lambda dumper, data: dumper.represent_scalar(
        "tag:yaml.org,2002:str", data, style='"' if printable(data) != data else None
    ),
)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9][0-9_]*$"), list("-+0123456789"))
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


def as_yaml(draft: Draft, schema: str = "") -> str:
    """Return the text of a contract.

    Args:
        draft: The draft.
        schema: Address of the JSON Schema of contracts, for editors.
    """
    return "".join(f"{line}\n" for line in _lines(draft, schema))


def _lines(draft: Draft, schema: str) -> Iterator[str]:
    if schema:
        yield comment(f"{SCHEMA_HEADER}{schema}")
    yield from map(comment, draft.head)
    for name, proposal in draft.settings.items():
        yield from _setting(name, proposal)
    yield "columns:"
    for column in draft.columns:
        yield from _column_lines(column)
    if draft.inputs:
        yield "inputs:"
        yield from (f"  - {_flow(each.entry())}" for each in draft.inputs)
    for name, proposal in draft.closing.items():
        yield from _setting(name, proposal)
    for fields, why in draft.options:
        above = [f"`{name}`" for name in fields if name in {*draft.settings, *draft.closing, "columns"}]
        place = f"Instead of {' and '.join(above)} above" if above else "In addition"
        yield comment(f"{place}: {why}.")
        yield from (comment(_flow(_Block({name: value}))) for name, value in fields.items())
    yield from (comment(f"Note: {each}.") for each in draft.notes)


def _setting(name: str, proposal: Proposal) -> Iterator[str]:
    if isinstance(proposal.value, Lines):
        yield f"{name}:"
        yield from (_with_comment(f"  - {_flow(each)}", why) for each, why in proposal.value)
    else:
        yield _with_comment(_flow(_Block({name: proposal.value})), proposal.evidence)


def _column_lines(column: DraftColumn) -> Iterator[str]:
    evidence = "; ".join(each for each in column.evidence if each)
    yield _with_comment(f"  - {_flow(column.entry())}", evidence)
    if not column.personal:
        return
    reason = f"personal data? {column.personal}."
    if column.type == "string" and not column.from_key:
        yield f"  {comment(f'{reason} To hide it, set SLUICE_MASK_KEY where Spark runs, and take this line instead:')}"
        yield f"  {comment('- ' + _flow({**column.entry(), 'mask': 'sha256'}))}"
    elif column.type == "string":
        yield f"  {comment(f'{reason} `mask: sha256` hides it, and equal values stay equal.')}"
    else:
        yield f"  {comment(f'{reason} Only text can be masked: remove the column if nobody needs it.')}"


def _with_comment(text: str, words: str) -> str:
    return f"{text}  {comment(words)}" if words else text


def comment(text: str) -> str:
    """Return a text as a comment of one line: line breaks and what can't be printed are escaped."""
    plain = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return f"# {plain}"


def as_block(value: dict[str, Any]) -> str:
    """Return plain values as YAML, a line for each."""
    return yaml.dump(value, Dumper=_Dumper, default_flow_style=False, sort_keys=False, width=10**9, allow_unicode=True)


def _flow(value: Any) -> str:
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=10**9, allow_unicode=True)
    return text.removesuffix("\n")
