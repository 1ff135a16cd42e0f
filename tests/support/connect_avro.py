"""Connect records as Kafka Connect's AvroConverter would write them: a translation of what JsonConverter really wrote.

By the mapping that Confluent documents for Connect's types: a struct is a record of its name, what is optional is a
union with null, an int8 or int16 an int, and a semantic type's name goes along as a property that Avro ignores.
"""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

_PLAIN = {
    "int8": "int", "int16": "int", "int32": "int", "int64": "long", "float": "float", "double": "double",
    "boolean": "boolean", "string": "string", "bytes": "bytes",
}  # fmt: skip


def avro_schema(connect: dict[str, Any], known: set[str] | None = None) -> Any:
    """The Avro schema of a Connect schema; a record that comes again is named alone."""
    known = set() if known is None else known
    kind = connect["type"]
    made: Any
    if kind == "struct":
        made = connect["name"]
        if made not in known:
            known.add(made)
            space, _, name = made.rpartition(".")
            fields = []
            for each in connect["fields"]:
                optional = {"default": None} if each.get("optional") else {}
                fields.append({"name": each["field"], "type": avro_schema(each, known), **optional})
            made = {"type": "record", "name": name, "namespace": space, "fields": fields, "connect.name": made}
    elif kind == "array":
        made = {"type": "array", "items": avro_schema(connect["items"], known)}
    elif kind == "map":
        made = {"type": "map", "values": avro_schema(connect["values"], known)}
    else:
        made = _PLAIN[kind]
        if "name" in connect:
            made = {"type": made, "connect.name": connect["name"], "connect.version": connect.get("version", 1)}
    return ["null", made] if connect.get("optional") else made


def translated(text: str | None) -> tuple[str, bytes] | None:
    """The schema, as JSON, and the bytes of a record with its schema; None of a record without a value."""
    if text is None:
        return None
    record = json.loads(text)
    schema = avro_schema(record["schema"])
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), record["payload"])
    return json.dumps(schema), stream.getvalue()
