"""Which topics a contract reads, by name or by a pattern; and what a template calls the table of each of them."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field
from pydantic_core import SchemaError, SchemaValidator, core_schema

from sluice.contract.values import (
    IDENTIFIER,
    TABLE_LENGTH,
    TEMPLATE,
    ListField,
    Strict,
    Topic,
    one_or_more,
    shown,
)

if TYPE_CHECKING:
    pass

INTERNAL = "__"
"""What the names of Kafka's internal topics begin with."""


@cache
def _matcher(pattern: str) -> SchemaValidator:
    # Pydantic's regular expressions are Rust's: linear in the name's length, so that no name can make a plan hang.
    SchemaValidator(core_schema.str_schema(pattern=pattern))  # by itself, or `a)|(b` would pass between the brackets
    return SchemaValidator(core_schema.str_schema(pattern=f"^(?:{pattern})$"))


def _pattern(value: str) -> str:
    try:
        _matcher(value)
    except SchemaError as error:
        why = str(error).strip().splitlines()[-1].removeprefix("error: ")
        raise ValueError(f"{shown(value)} is no regular expression that Sluice takes: {why}") from error
    return value


class TopicPattern(Strict):
    """Topics by their names.

    Attributes:
        pattern: Regular expression that matches the whole of a name. Kafka's internal topics never match.
        omit: Topics that are left out all the same. They need not exist.
    """

    pattern: Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_pattern)]
    omit: Annotated[tuple[Topic, ...], ListField] = ()

    def matches(self, topic: str) -> bool:
        """Whether a topic is meant."""
        if topic.startswith(INTERNAL) or topic in self.omit:
            return False
        return _matcher(self.pattern).isinstance_python(topic)


def names_only(value: object) -> object:
    """What `topic:` says of names: one, a list, or none where it is a pattern."""
    return () if isinstance(value, (dict, TopicPattern)) else one_or_more(value)


def pattern_only(value: object) -> object:
    """What `topic:` says of a pattern; None where it is names."""
    return value if isinstance(value, (dict, TopicPattern)) else None


def table_of(template: str, topic: str) -> str:
    """The table that a template calls for a topic: each `.` and `-` of the topic's name becomes `_`.

    Two topics may come to the same name: it is for the caller to see that, never to choose between them.

    Raises:
        ValueError: what comes out is no name of a table.
    """
    table = template.replace(TEMPLATE, re.sub(r"[^A-Za-z0-9_]", "_", topic))
    if not IDENTIFIER.fullmatch(table.rsplit(".", 1)[-1]):
        raise ValueError(f"topic {shown(topic)} makes no name of a table: up to 128 characters, no digit first")
    if len(table) > TABLE_LENGTH:
        raise ValueError(f"topic {shown(topic)} makes a table's name of more than {TABLE_LENGTH} characters")
    return table
