"""Hypothesis strategies for damaged and hostile records of every format."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import strategies as st

PREFIX = 5
HTML = "'; DROP TABLE t; -- <script>ü</script>"
# Bytes that break decoders: huge lengths, negative counts, NaN, nested groups, invalid UTF-8.
BYTES = [
    b"\xff" * 9 + b"\x01", b"\xfe\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x80" * 20, b"\x01", b"\xff" * 8,
    b"\x00" * 6 + b"\xf8\x7f", b"\x0b" * 2000, b"\x0b" * 150_000, b"\xc0\x80", b"\xed\xa0\x80", HTML.encode(),
]  # fmt: skip
# Texts that break JSON parsers: depth, huge numbers, lone surrogates, duplicate names.
TEXT = [
    b"[" * 2000, b'{"a":' * 2000, b"9" * 400, b"1e400", b"1e-400", b"1e400000000", b"1e-400000000", b"NaN",
    b"-Infinity", b'"\\ud800"', b'"\\u0000"', b"\x00", b"\xff", b"null", b"true", b'"', b"}", b'"n":1,', b'"n":"x",',
    b"[[1]]", b'"+123456-01-01"', b'"9999999999"', HTML.encode(), b"{}", b'{"n":7}', b"'", b"\xef\xbb\xbf", b"\n\t ",
]  # fmt: skip

whole = st.one_of(
    st.integers(-130, 130),
    st.sampled_from([0, 31, 32, 53, 63, 64, 127]).flatmap(
        lambda bits: st.integers(-2, 2).map(lambda n: (1 << bits) + n)
    ),
    st.integers(-(1 << 66), 1 << 66),
)
number = st.one_of(
    whole.map(str),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**40), max_value=10**40, places=7).map(str),
    st.floats().map(json.dumps),
    st.tuples(whole, st.integers(0, 10**22), st.integers(-40, 40)).map(lambda n: f"{n[0]}.{n[1]}e{n[2]}"),
)
iso = st.builds(
    lambda y, m, d, clock, zone: f"{y:04}-{m:02}-{d:02}{clock}{zone}",
    st.sampled_from([2013, 1, 9999, 1969, 0, 1582, 10000]),
    st.integers(0, 13),
    st.sampled_from([1, 28, 29, 31, 32, 0]),
    st.sampled_from(
        ["", "", "T08:00:00", " 23:59", "T23:59:60", "T24:00:00", "T00:00:00.1234567899", "T8:00", "T08:00:00."]
    ),
    st.sampled_from(["", "", "Z", "+02:00", "-1800", " UTC", "+18:01", "-00:30", "[UTC]", "+5", " ", "\n"]),
)
texts = st.one_of(
    iso, st.sampled_from([HTML, "AP8=", "A P8=", "AP8", "1.5", " 1", "1.5\n", "", "null", "🙂"]), st.text(max_size=6)
)
quoted = st.tuples(texts, st.booleans()).map(lambda t: json.dumps(t[0], ensure_ascii=t[1] or not _utf8(t[0])))
leaf = st.one_of(
    number,
    quoted,
    number.map(json.dumps),
    st.sampled_from([each.decode("latin-1") for each in TEXT] + ["null", "false"]),
)


def _utf8(text: str) -> bool:
    return not any("\ud800" <= each <= "\udfff" for each in text)


def odd_json(names: Sequence[str], depth: int = 2) -> st.SearchStrategy[str]:
    """Generate objects with these names, each possibly twice, and arbitrary values."""
    value = leaf
    for _ in range(depth):
        inner = value
        value = st.one_of(
            leaf,
            st.lists(inner, max_size=3).map(lambda many: f"[{','.join(many)}]"),
            st.lists(st.tuples(st.sampled_from(["a", "b", "x", "d", "n"]), inner), max_size=3).map(_object),
        )
    return st.lists(st.tuples(st.sampled_from([*names, *names, "left out"]), value), max_size=4).map(_object)


def _object(members: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in members) + "}"


def damage_records(
    good: Sequence[bytes], hostile: Sequence[bytes], ids: Sequence[bytes] = ()
) -> st.SearchStrategy[bytes]:
    """Generate good records with one to three damages; the schema id stays or becomes one of `ids`."""
    first = PREFIX if ids else 0
    piece = st.one_of(st.sampled_from(hostile), st.binary(min_size=1, max_size=6))
    kinds = st.sampled_from(["cut", "flip", "put", "over", "twice", "splice", "anything", *(["id"] if ids else [])])

    @st.composite
    def accidents(draw: st.DrawFn) -> bytes:
        value = bytearray(draw(st.sampled_from(good)))
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.integers(min(first, len(value)), len(value)))
            match draw(kinds):
                case "cut":
                    del value[at:]
                case "flip" if at < len(value):
                    value[at] ^= 1 << draw(st.integers(0, 7))
                case "put":
                    value[at:at] = draw(piece)
                case "over":
                    over = draw(piece)
                    value[at : at + len(over)] = over
                case "twice":
                    value[at:at] = value[at : at + draw(st.integers(1, 40))]
                case "splice":
                    other = draw(st.sampled_from(good))
                    value[at:] = other[draw(st.integers(first, len(other))) :]
                case "anything":
                    value[first:] = draw(st.binary(max_size=20))
                case "id":
                    other = draw(st.sampled_from(ids))
                    value[: len(other)] = other
        return bytes(value)

    return accidents()
