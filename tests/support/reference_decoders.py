"""Decodes records with other libraries (json, fastavro, google.protobuf), as a reference for Sluice's decoder.

A reader takes a value and returns the expected value of the column, or raises `RefusedError`. Dates and timestamps are
numbers since 1970, as in Arrow, because Python's dates have a smaller range.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import partial
from typing import Any

import fastavro

Read = Callable[[Any], Any]
DAYS, MICROS = (-719_162, 2_932_896), (-62_135_596_800_000_000, 253_402_300_799_999_999)
WIDE = Context(prec=2000, Emin=-999_999_999, Emax=999_999_999, rounding=ROUND_HALF_UP)


class RefusedError(Exception):
    """The value does not fit the column."""


class UndefinedError(Exception):
    """The result is undefined: the record only has to be decoded or quarantined."""


class JsonToken(str):
    """A JSON number, true or false, as written."""


class JsonObject(list[tuple[str, Any]]):
    """The names and values of a JSON object, in order."""


class JsonText:
    """JSON that is read into a text column: equal to any text with the same JSON value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and _comparable(parse_json(other.encode())) == _comparable(self.value)

    def __repr__(self) -> str:
        return f"AsJson({self.value!r})"

    __hash__ = None  # type: ignore[assignment]


def _comparable(value: Any) -> Any:
    """Normalise numbers, so that different spellings of a value compare as equal."""
    if isinstance(value, JsonObject):
        return [(name, _comparable(each)) for name, each in value]
    if isinstance(value, list):
        return [_comparable(each) for each in value]
    if isinstance(value, JsonToken) and not value.isalpha():
        return float(value)  # which is how Spark writes it, with a fraction
    return float(value) if value == "Infinity" else value


def same_value(one: Any, other: Any) -> bool:
    """Whether two values are one; NaN is itself, and a map has each key once."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_value(value, other[name]) for name, value in one.items())
    if isinstance(other, dict) and isinstance(one, list):  # Arrow's way to write a map
        return len(one) == len(other) and same_value(dict(one), other)
    return bool(other == one)


def refuse_unless(holds: bool) -> None:
    if not holds:
        raise RefusedError


# --- JSON -----------------------------------------------------------------------------------------------------------


def parse_json(raw: bytes) -> Any:
    """JSON with every number as it is written and every object's names in order."""
    try:
        word = {"true": JsonToken("true"), "false": JsonToken("false")}
        found = json.loads(
            raw.decode(),
            parse_int=JsonToken,
            parse_float=JsonToken,
            parse_constant=JsonToken,
            object_pairs_hook=JsonObject,
        )
        return _replace_tokens(found, word)
    except (ValueError, RecursionError) as error:
        raise RefusedError from error


def _replace_tokens(value: Any, word: Mapping[str, JsonToken]) -> Any:
    if isinstance(value, bool):
        return word[str(value).lower()]
    if isinstance(value, JsonObject):
        return JsonObject((check_text(name), _replace_tokens(each, word)) for name, each in value)
    if isinstance(value, list):
        return [_replace_tokens(each, word) for each in value]
    return check_text(value) if isinstance(value, str) and not isinstance(value, JsonToken) else value


def check_text(value: str) -> str:
    """A text without halves of characters."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RefusedError from error
    return value


def integer(bits: int) -> Read:
    def read(value: Any) -> int:
        refuse_unless(
            isinstance(value, JsonToken) and bool(re.fullmatch(r"-?[0-9.]{1,400}(?:[eE][+-]?[0-9]+)?", value))
        )
        digits, exponent = re.sub(r"[eE].*|[^0-9]", "", value).strip("0"), re.search("[eE]", value)
        refuse_unless(len((exponent and value[exponent.end() :]) or "") < 10)
        found = Decimal(value)
        refuse_unless(found.adjusted() < 20 and found == found.to_integral_value())
        refuse_unless(-(1 << bits - 1) <= found < 1 << bits - 1)
        if (len(digits) > 15 and exponent) or len(value) > 38:
            raise UndefinedError  # it may be set apart
        return int(found)

    return read


def double(value: Any) -> float:
    of_no_digits = value in ("NaN", "Infinity", "+Infinity", "-Infinity", "+INF", "-INF")
    refuse_unless(of_no_digits or (isinstance(value, JsonToken) and value not in ("true", "false")))
    return float(value)  # infinite beyond the greatest


def boolean(value: Any) -> bool:
    refuse_unless(isinstance(value, JsonToken) and value in ("true", "false"))
    return bool(value == "true")


def text(value: Any) -> Any:
    return value if isinstance(value, str) and not isinstance(value, JsonToken) else JsonText(value)


def binary(value: Any) -> bytes:
    refuse_unless(isinstance(value, str) and not isinstance(value, JsonToken))
    try:
        text = re.sub(r"[ \t\r\n]", "", value)
        refuse_unless(len(text) % 4 == 0)
        if re.search("=[^=]", text):
            raise UndefinedError  # Spark's parser reads parts that are padded each, one after another
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedError from error


def exact_decimal(raw: bytes, given: int, precision: int, scale: int) -> Decimal:
    """The decimal of an unscaled number and its scale; refused where it would be rounded."""
    unscaled = int.from_bytes(raw, "big", signed=True)
    refuse_unless(raw != b"" and abs(unscaled) < 10**38 and -38 <= given <= scale + 38)
    exact = Decimal(unscaled).scaleb(-given, WIDE)
    found = round_decimal(exact, precision, scale)
    refuse_unless(found == exact)
    return found


def decimal(precision: int, scale: int) -> Read:
    def read(value: Any) -> Decimal:
        refuse_unless(isinstance(value, str))
        if isinstance(value, JsonToken) and re.fullmatch(r"-?[0-9.]+[eE][+-]?[0-9]{4,}", value):
            raise UndefinedError  # nothing, or too much
        refuse_unless(bool(re.fullmatch(r"\s*[+-]?[0-9.]{1,200}([eE][+-]?[0-9]{1,3})?\s*", value, re.ASCII)))
        try:
            if isinstance(value, JsonToken):
                digits = re.sub(r"[eE].*|[^0-9]", "", value).strip("0")
                if len(digits) > 15 and (len(digits) > 38 or re.search("[eE]|[.][0-9]{39}", value)):
                    raise UndefinedError  # it may be set apart
            return round_decimal(Decimal(value), precision, scale)
        except InvalidOperation as error:
            raise RefusedError from error

    return read


def round_decimal(value: Decimal, precision: int, scale: int) -> Decimal:
    found = value.quantize(Decimal(1).scaleb(-scale), context=WIDE)
    refuse_unless(found.copy_abs() < Decimal(10) ** (precision - scale))  # abs() rounds to 28 digits
    return found


_DAY = r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
_FACE = rf"{_DAY}(?:[Tt ]([0-9]{{2}}):([0-9]{{2}})(?::([0-9]{{2}})(?:[.]([0-9]+))?)?)?"
_ZONE = r"(?:[Zz]| ?UTC|([+-])([0-9]{2})(?::?([0-9]{2}))?)?"


def epoch_day(value: Any) -> int:
    found = re.fullmatch(_DAY, value) if isinstance(value, str) else None
    refuse_unless(found is not None)
    assert found
    return _days(*map(int, found.groups()))


def _days(*parts: int) -> int:
    try:
        return (date(*parts) - date(1970, 1, 1)).days
    except ValueError as error:
        raise RefusedError from error


def local_micros(value: Any) -> int:
    found = re.fullmatch(_FACE, value) if isinstance(value, str) else None
    refuse_unless(found is not None)
    assert found
    return _micros(*found.groups())


def _micros(*parts: str | None) -> int:
    year, month, on, hour, minute, second = (int(each or 0) for each in parts[:6])
    refuse_unless(hour < 24 and minute < 60 and second < 60)
    clock = 3600 * hour + 60 * minute + second
    return (_days(year, month, on) * 86_400 + clock) * 1_000_000 + int(((parts[6] or "") + "000000")[:6])


def utc_micros(value: Any) -> int:
    """A text alone."""
    found = re.fullmatch(_FACE + _ZONE, value) if isinstance(value, str) and not isinstance(value, JsonToken) else None
    refuse_unless(found is not None)
    assert found
    *parts, sign, hours, minutes = found.groups()
    refuse_unless(parts[3] is not None or len(value) == len("2013-01-31"))  # a day has no zone
    minutes = int(hours or 0) * 60 + int(minutes or 0)
    refuse_unless(int(found[10] or 0) < 60 and minutes <= 18 * 60)
    at = _micros(*parts) - (-1 if sign == "-" else 1) * minutes * 60_000_000
    refuse_unless(MICROS[0] <= at <= MICROS[1])
    return at


def seconds_or_utc_micros(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,12}(?:[.]0{1,9})?|-?[0-9][.][0-9]{1,15}E1?[0-9]", value):
        at = Decimal(value) * 1_000_000
    elif isinstance(value, JsonToken):
        at = Decimal(integer(64)(value)) * 1_000_000
    else:
        return utc_micros(value)
    refuse_unless(MICROS[0] <= at <= MICROS[1] and at % 1_000_000 == 0)
    return int(at)


def read_members(value: JsonObject, reader_of: Callable[[str], Read | None]) -> dict[str, Any]:
    """The last value of each name that has a reader."""
    made, last = {}, dict(value)
    for name, each in value:
        if (read := reader_of(name)) is not None:
            try:
                made[name] = optional(read)(each)
            except RefusedError:
                if each is not last[name]:
                    raise UndefinedError from None  # whether those that don't count are looked at is left open
                raise
    return made


def struct(**fields: Read) -> Read:
    def read(value: Any) -> dict[str, Any]:
        refuse_unless(isinstance(value, JsonObject))
        return dict.fromkeys(fields) | read_members(value, fields.get)

    return read


def items(inner: Read) -> Read:
    def read(value: Any) -> list[Any]:
        refuse_unless(isinstance(value, list) and not isinstance(value, JsonObject))
        return [optional(inner)(each) for each in value]

    return read


def mapping(inner: Read) -> Read:
    def read(value: Any) -> dict[str, Any]:
        refuse_unless(isinstance(value, JsonObject))
        return read_members(value, lambda _: inner)

    return read


def optional(inner: Read) -> Read:
    return lambda value: None if value is None else inner(value)


def json_record(fields: Mapping[str, Read]) -> Read:
    """Bytes to columns."""
    read = struct(**fields)
    return lambda raw: read(parse_json(raw))


# --- JSON with Connect's schema -------------------------------------------------------------------------------------

_CONNECT, _DEBEZIUM = "org.apache.kafka.connect.data.", "io.debezium.time."
_NANOS = {f"{_CONNECT}Timestamp": 10**6, f"{_DEBEZIUM}Timestamp": 10**6, f"{_DEBEZIUM}MicroTimestamp": 1000}
_NANOS |= {f"{_DEBEZIUM}NanoTimestamp": 1}
_NODE = {"type": text, "field": text, "name": text}
ConnectRead = Callable[[Any, Any], Any]


def connect_record(fields: Mapping[str, ConnectRead]) -> Read:
    """`{"schema": …, "payload": …}` to columns; None of a payload that is null."""

    def read(raw: bytes) -> dict[str, Any] | None:
        envelope = parse_json(raw)
        refuse_unless(isinstance(envelope, JsonObject))
        found = dict(envelope)
        refuse_unless("schema" in found and "payload" in found)
        schema, payload = found["schema"], found["payload"]
        if len(found) != len(envelope) or _has_names_twice(schema):
            raise UndefinedError  # which schema or payload counts is left open
        refuse_unless(schema is None or isinstance(schema, JsonObject))
        if payload is None:
            return None
        refuse_unless(isinstance(payload, JsonObject))
        return connect_members(payload, schema, fields)

    return read


def connect_members(value: JsonObject, schema: Any, fields: Mapping[str, ConnectRead]) -> dict[str, Any]:
    readers = {name: partial(_with_schema, read, record_field(schema, name)) for name, read in fields.items()}
    return dict.fromkeys(fields) | read_members(value, readers.get)


def _with_schema(read: ConnectRead, node: Any, value: Any) -> Any:
    return read(value, node)


def _has_names_twice(value: Any) -> bool:
    if isinstance(value, JsonObject):
        return len(dict(value)) != len(value) or any(_has_names_twice(each) for _, each in value)
    return isinstance(value, list) and any(map(_has_names_twice, value))


def record_field(schema: Any, name: str) -> Any:
    """What a schema says of a field; of one that is no schema nothing is asked."""
    there = dict(schema).get("fields") if isinstance(schema, JsonObject) else None
    for each in there if isinstance(there, list) else ():
        if isinstance(each, JsonObject) and dict(each).get("field") == name:
            return each
    return None


def _named(node: Any) -> str | None:
    found = dict(node).get("name") if isinstance(node, JsonObject) else None
    return found if isinstance(found, str) else None


def ignore_schema(read: Read) -> ConnectRead:
    return lambda value, _: read(value)


def connect_decimal(precision: int, scale: int) -> ConnectRead:
    def read(value: Any, node: Any) -> Decimal:
        if _named(node) == "io.debezium.data.VariableScaleDecimal":
            refuse_unless(isinstance(value, JsonObject))
            parts = dict(value)
            refuse_unless(all(isinstance(parts.get(each), str) for each in ("scale", "value")))
            return exact_decimal(binary(parts["value"]), integer(32)(parts["scale"]), precision, scale)
        refuse_unless(isinstance(value, str) and value not in (JsonToken("true"), JsonToken("false")))
        named = _named(node) == f"{_CONNECT}Decimal"
        parameters = dict(node).get("parameters") if named else None
        given = dict(parameters).get("scale") if isinstance(parameters, JsonObject) else None
        sound = isinstance(given, str) and bool(re.fullmatch(r"\s*[+-]?[0-9]{1,9}\s*", given))
        if isinstance(value, JsonToken) or not named:
            found = decimal(precision, scale)(value)
            refuse_unless(not named or found == Decimal(value))
            return found
        refuse_unless(sound)
        return exact_decimal(binary(value), int(given), precision, scale)

    return read


def connect_epoch_day(value: Any, node: Any) -> int:
    if isinstance(value, JsonToken):
        found = integer(32)(value)
        refuse_unless(_named(node) in (f"{_CONNECT}Date", f"{_DEBEZIUM}Date") and DAYS[0] <= found <= DAYS[1])
        return found
    return epoch_day(_without_z(value, node, "IsoDate"))


def _without_z(value: Any, node: Any, name: str) -> Any:
    """A text without the Z of Debezium's types that have no zone."""
    is_iso = isinstance(value, str) and _named(node) == f"{_DEBEZIUM}{name}"
    return value.removesuffix("Z") if is_iso else value


def connect_utc_micros(of_text: Read) -> ConnectRead:
    def read(value: Any, node: Any) -> int:
        if isinstance(value, JsonToken):
            at = integer(64)(value) * _NANOS.get(_named(node) or "", 0) // 1000
            refuse_unless(_named(node) in _NANOS and MICROS[0] <= at <= MICROS[1])
            return at
        return int(of_text(_without_z(value, node, "IsoTimestamp") if of_text is local_micros else value))

    return read


def connect_items(**fields: ConnectRead) -> ConnectRead:
    def read(value: Any, node: Any) -> list[Any]:
        refuse_unless(isinstance(value, list) and not isinstance(value, JsonObject))
        of = dict(node).get("items") if isinstance(node, JsonObject) else None
        refuse_unless(all(each is None or isinstance(each, JsonObject) for each in value))
        return [None if each is None else connect_members(each, of, fields) for each in value]

    return read


def connect_mapping(inner: ConnectRead) -> ConnectRead:
    def read(value: Any, node: Any) -> dict[str, Any]:
        refuse_unless(isinstance(value, JsonObject))
        of = dict(node).get("values") if isinstance(node, JsonObject) else None
        return read_members(value, lambda _: partial(_with_schema, inner, of))

    return read


# --- Avro and Protobuf ----------------------------------------------------------------------------------------------


def avro_record(schemas: Mapping[int, Any], fields: Mapping[str, Read]) -> Read:
    """Bytes with the id of one of these schemas to columns; logical types are left to the columns' readers."""
    plain = {
        number: fastavro.parse_schema(json.loads(json.dumps(schema).replace('"logicalType"', '"meant"')))
        for number, schema in schemas.items()
    }

    def read(raw: bytes) -> dict[str, Any]:
        number = prefix(raw)
        refuse_unless(number in plain)
        stream = io.BytesIO(raw[5:])
        try:
            found = fastavro.schemaless_reader(stream, plain[number], None)
        except (EOFError, IndexError, ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
            raise RefusedError from error
        refuse_unless(not stream.read(1) and fastavro.validate(found, plain[number], raise_errors=False))
        # Of bytes that no writer makes, decoders say what they like: they must at least not be longer or shorter.
        again = io.BytesIO()
        try:
            fastavro.schemaless_writer(again, plain[number], found)
        except (ValueError, TypeError, OverflowError) as error:
            raise RefusedError from error
        if again.getvalue() != raw[5:]:
            raise UndefinedError
        return {name: optional(fields[name])(found[name]) if name in found else None for name in fields}

    return read


def prefix(raw: bytes) -> int:
    """The schema's id in Confluent's wire format."""
    refuse_unless(len(raw) >= 5 and raw[0] == 0)
    return int.from_bytes(raw[1:5], "big")


def unscaled(precision: int, scale: int) -> Read:
    def read(raw: bytes) -> Decimal:
        refuse_unless(raw != b"")
        return round_decimal(Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-scale, WIDE), precision, scale)

    return read


def units(micros: int, bounds: tuple[int, int] = MICROS) -> Read:
    def read(value: int) -> int:
        refuse_unless(bounds[0] <= value * micros <= bounds[1])
        return value * micros

    return read


def protobuf_record(messages: Mapping[tuple[int, tuple[int, ...]], Any], fields: Mapping[str, Read]) -> Read:
    """Bytes with a schema's id and one of its messages' indexes to columns."""
    from google.protobuf.message import DecodeError

    def read(raw: bytes) -> dict[str, Any]:
        number = prefix(raw)
        path, payload = indexes(raw[5:])
        refuse_unless((number, path) in messages)
        kind = messages[number, path]
        refuse_unless(kind is not None)
        message = kind()
        try:
            message.ParseFromString(payload)
        except DecodeError as error:
            raise RefusedError from error
        there = kind.DESCRIPTOR.fields_by_name
        return {name: fields[name](message_field(message, there[name])) if name in there else None for name in fields}

    return read


def indexes(raw: bytes) -> tuple[tuple[int, ...], bytes]:
    """Up to eight zigzag numbers of one or two bytes, after one that counts them; none of them is the first message."""
    refuse_unless(bool(raw) and raw[0] % 2 == 0 and raw[0] <= 16)
    count, at, found = raw[0] // 2, 1, []
    for _ in range(count):
        refuse_unless(at < len(raw))
        number, at = raw[at] & 0x7F, at + 1
        if raw[at - 1] > 0x7F:
            refuse_unless(at < len(raw) and raw[at] < 0x80)
            number, at = number + (raw[at] << 7), at + 1
        refuse_unless(number % 2 == 0)
        found.append(number // 2)
    return tuple(found) or (0,), raw[at:]


def message_field(message: Any, field: Any) -> Any:
    """A field of a message, None where it was not set and that is told."""
    if field.has_presence and not message.HasField(field.name):
        return None
    return getattr(message, field.name)


def micros(value: Any) -> int | None:
    """A Timestamp or a Duration."""
    if value is None:
        return None
    if value.DESCRIPTOR.name == "Timestamp":
        refuse_unless(0 <= value.nanos < 1_000_000_000)
    else:
        refuse_unless(abs(value.nanos) < 1_000_000_000 and value.seconds * value.nanos >= 0)
        refuse_unless(abs(value.seconds) <= 315_576_000_000)
    return int(value.seconds * 1_000_000 + int(value.nanos / 1000))


def valid_micros(value: Any) -> int | None:
    at = micros(value)
    refuse_unless(at is None or MICROS[0] <= at <= MICROS[1])
    return at


def enum_name(symbols: Mapping[int, str]) -> Read:
    return lambda value: symbols.get(value, str(value))


def message_struct(**fields: Read) -> Read:
    def read(value: Any) -> Any:
        there = value.DESCRIPTOR.fields_by_name if value is not None else {}
        return None if value is None else {n: f(message_field(value, there[n])) for n, f in fields.items()}

    return read


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros_since_epoch(value: datetime) -> int:
    """Microseconds since 1970."""
    return (value - EPOCH) // timedelta(microseconds=1)
