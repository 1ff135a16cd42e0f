"""Fingerprints of writer schemas: the same for the same schema, however its text is formatted.

A registry that was rebuilt may give an id that records carry to another schema; the fingerprints show it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sluice.errors import SchemaIdReusedError


class SchemaFingerprint(NamedTuple):
    """The fingerprint of a schema.

    Attributes:
        text: of the kind and the text as registered.
        references: of all that it references; None if the registry no longer has them.
    """

    text: str
    references: str | None

    def differs_from(self, other: SchemaFingerprint) -> bool:
        """Whether it is another schema's. References are compared only where both are known."""
        if None in (self.references, other.references):
            return self.text != other.text
        return self != other


def make_fingerprint(kind: str, text: str, references: Iterable[tuple[str, str]] | None) -> SchemaFingerprint:
    """Return the fingerprint of a schema.

    Args:
        kind: `AVRO`, `JSON` or `PROTOBUF`.
        text: as registered.
        references: name and text of each; None if the registry no longer has them.
    """
    named = None if references is None else sorted((name, _normalize(kind, each)) for name, each in references)
    return SchemaFingerprint(_hash([kind, _normalize(kind, text)]), None if named is None else _hash(named))


def _normalize(kind: str, text: str) -> str:
    """The text without its formatting."""
    if kind != "PROTOBUF":
        try:
            return json.dumps(json.loads(text), sort_keys=True)
        except (ValueError, RecursionError):
            pass
    return " ".join(re.findall(r"\w+|[^\w\s]", text))


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def reused_id_error(
    registry: str, number: int, *, topic: str | None = None, file: Path | None = None
) -> SchemaIdReusedError:
    """Return the error for an id that has another schema than before, with how an operator accepts the new one.

    Args:
        registry: its address.
        number: the id.
        topic: whose records have the id, if known.
        file: the old schema in this machine's cache, if it is there.
    """
    rows = f"DELETE FROM sluice.writer_schemas WHERE topic = '{topic or '<topic>'}' AND schema_id = {number}"  # noqa: S608 - only text
    from_cache = f", and delete {file} on this machine" if file else ""
    return SchemaIdReusedError(
        f"The schema registry at {registry} returns another schema for id {number} than it did before.",
        next_step=f"{SchemaIdReusedError.advice} To read all of the topic's records with this id by the new schema, "
        f"older ones too, run {rows} (sluice sql){from_cache}.",
        schema_id=number,
        topic=topic,
    )


def with_topic(error: SchemaIdReusedError, topic: str) -> SchemaIdReusedError:
    """Return the error for the records of one topic: its next step then names the topic's row."""
    step = error.next_step.replace("<topic>", topic)
    return SchemaIdReusedError(error.message, next_step=step, **{**error.fields, "topic": topic})
