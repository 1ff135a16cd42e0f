"""The topics of a contract, by name or by pattern, and the table names that a template makes of them."""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import SchemaError, SchemaValidator, core_schema

from sluice.contract.values import IDENTIFIER, TABLE_LENGTH, TEMPLATE, ListField, StrictModel, Topic, as_tuple, quote

INTERNAL_PREFIX = "__"
"""Prefix of Kafka's internal topics."""


@cache
def _matcher(pattern: str) -> SchemaValidator:
    # pydantic's regular expressions are Rust's: linear in the name's length, so that none can make planning hang.
    SchemaValidator(core_schema.str_schema(pattern=pattern))  # alone first: `a)|(b` is valid only in brackets
    return SchemaValidator(core_schema.str_schema(pattern=f"^(?:{pattern})$"))


def _pattern(value: str) -> str:
    try:
        _matcher(value)
    except SchemaError as error:
        why = str(error).strip().splitlines()[-1].removeprefix("error: ")
        raise ValueError(f"{quote(value)} is not a regular expression that Sluice supports: {why}") from error
    return value


class TopicPattern(StrictModel):
    """Topics whose names match a pattern.

    Attributes:
        pattern: Regular expression (Rust's) for the whole name. Kafka's internal topics never match.
        omit: Topics to leave out. They need not exist.
    """

    pattern: Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_pattern)]
    omit: Annotated[tuple[Topic, ...], ListField] = ()

    def matches(self, topic: str) -> bool:
        """Return whether a topic belongs to the pattern."""
        if topic.startswith(INTERNAL_PREFIX) or topic in self.omit:
            return False
        return _matcher(self.pattern).isinstance_python(topic)


def read_names(value: object) -> object:
    """Return the names in `topic:`, a name or a list; none if it is a pattern."""
    return () if isinstance(value, (dict, TopicPattern)) else as_tuple(value)


def read_pattern(value: object) -> object:
    """Return the pattern in `topic:`; None if it has names."""
    return value if isinstance(value, (dict, TopicPattern)) else None


def table_for_topic(template: str, topic: str) -> str:
    """Return the table's name that a template makes of a topic: each `.` and `-` of the topic becomes `_`.

    Two topics may make the same name: the caller must raise an error for that.

    Raises:
        ValueError: the result is not a valid table name.
    """
    table = template.replace(TEMPLATE, re.sub(r"[^A-Za-z0-9_]", "_", topic))
    if not IDENTIFIER.fullmatch(table.rsplit(".", 1)[-1]):
        raise ValueError(f"topic {quote(topic)} does not make a valid table name: up to 128 characters, no digit first")
    if len(table) > TABLE_LENGTH:
        raise ValueError(f"topic {quote(topic)} makes a table name of more than {TABLE_LENGTH} characters")
    return table
