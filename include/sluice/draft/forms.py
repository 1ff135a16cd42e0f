"""Finds the format of sampled keys or values: in, their bytes; out, the format and what was read of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.draft.observe import NotJsonError, parse_json
from sluice.errors import ConfigError
from sluice.formats.wire_format import PREFIX_BYTES
from sluice.kafka.registry import WriterSchema

SchemaLookup = Callable[[list[int]], dict[int, WriterSchema | None]]
"""Returns schemas by id; None for one that the registry does not know."""

FORMATS = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json_schema"}
"""By the registry's name for a kind of schema, the contract's for the format."""
_MAX_IDS = 20


@dataclass(frozen=True)
class Form:
    """The format of the keys or values, as far as a sample shows it.

    Attributes:
        format: The contract's name for it; None if the sample has none.
        documents: JSON documents; of `json_connect`, the payloads.
        schema: The schema of most records, if they name one.
        embedded: The newest schema that is in the records themselves.
        evidence: What the format rests on.
        ids: The ids of the records' schemas.
    """

    format: str | None
    documents: tuple[Any, ...] = ()
    schema: WriterSchema | None = None
    embedded: Any = None
    evidence: str = ""
    ids: tuple[int, ...] = ()


def find_form(sampled: Sequence[bytes | None], lookup: SchemaLookup, *, key: bool = False) -> Form:
    """Return the format of sampled keys or values.

    Args:
        sampled: The bytes; None for those that are null.
        lookup: Looks up schemas.
        key: Whether they are keys, which may be integers.

    Raises:
        ConfigError: They name schemas, and no registry is configured.
    """
    given = [each for each in sampled if each is not None]
    if not given:
        return Form(None)
    if found := _framed(given, lookup, key=key):
        return found
    if found := _json(given):
        return found
    if key and {len(each) for each in given} <= {8} and _any_binary(given):
        return Form("long", evidence=f"all {len(given)} are integers of 8 bytes")
    if key and {len(each) for each in given} <= {4} and _any_binary(given):
        return Form("int", evidence=f"all {len(given)} are integers of 4 bytes")
    texts = sum(map(_is_text, given))
    if texts * 2 > len(given):
        return Form("string", evidence=f"{texts} of {len(given)} are plain text (no JSON objects)")
    return Form("bytes", evidence=f"{len(given) - texts} of {len(given)} are no text")


def _framed(given: list[bytes], lookup: SchemaLookup, *, key: bool) -> Form | None:
    """The form of records in Confluent's wire format."""
    ids = Counter(int.from_bytes(each[1:5], "big") for each in given if len(each) >= PREFIX_BYTES and each[0] == 0)
    if ids.total() * 2 <= len(given):
        return None
    try:
        schemas = {number: each for number, each in lookup([n for n, _ in ids.most_common(_MAX_IDS)]).items() if each}
    except ConfigError:
        if key:
            return None
        raise
    known = sum(ids[number] for number in schemas)
    if known * 2 <= len(given):
        return None
    number = max(schemas, key=lambda each: (ids[each], each))
    schema = schemas[number]
    evidence = f"{known} of {len(given)} name a schema of kind {schema.kind} in the registry, most of them id {number}"
    return Form(FORMATS[schema.kind], schema=schema, evidence=evidence, ids=tuple(sorted(schemas)))


def _json(given: list[bytes]) -> Form | None:
    found: list[Any] = []
    for each in given:
        try:
            found.append(parse_json(each))
        except NotJsonError:
            continue
    objects = [each for each in found if isinstance(each, dict)]
    if len(objects) * 2 > len(given):
        return _objects(objects, len(given))
    for kind, name in ((list, "lists"), (str, "texts in quotes")):
        alike = [each for each in found if isinstance(each, kind)]
        if len(alike) * 2 > len(given):
            return Form("json", tuple(alike), evidence=f"{len(alike)} of {len(given)} are JSON {name}")
    return None


def _objects(objects: list[dict[str, Any]], total: int) -> Form:
    connect = [each for each in objects if each.keys() == {"schema", "payload"}]
    if len(connect) * 2 > len(objects):
        schemas = [each["schema"] for each in connect if each["schema"] is not None]
        payloads = tuple(each["payload"] for each in connect)
        evidence = f"{len(connect)} of {total} are JSON with its schema, as Kafka Connect writes it"
        return Form("json_connect", payloads, embedded=schemas[-1] if schemas else None, evidence=evidence)
    return Form("json", tuple(objects), evidence=f"{len(objects)} of {total} are JSON objects")


def _is_text(raw: bytes) -> bool:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return all(each.isprintable() or each in "\t\r\n" for each in text)


def _any_binary(given: list[bytes]) -> bool:
    return not all(map(_is_text, given))
