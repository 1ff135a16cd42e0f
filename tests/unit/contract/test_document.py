"""The YAML of contracts: plain data with line numbers, and no unsafe YAML features."""

import pytest

from sluice.contract.document import MAX_BYTES, read_document

pytestmark = pytest.mark.unit


@pytest.fixture
def read(tmp_path):
    def run(text):
        path = tmp_path / "x.yaml"
        path.write_text(text, encoding="utf-8")
        return read_document(path, "x.yaml")

    return run


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("y", "y"),
        ("12:30", "12:30"),
        ("2024-01-31", "2024-01-31"),
        ("2024-01-31T00:00:00Z", "2024-01-31T00:00:00Z"),
        ("0o17", "0o17"),
        ("010", 10),
        ("1_000_000", 1_000_000),
        ("-5", -5),
        ("0.01", 0.01),
        ("1e3", 1000.0),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("'5'", "5"),
        ("<<", "<<"),
        ("=", "="),
        ("1.2.3", "1.2.3"),
        ("!!str 5", "5"),
    ],
)
def test_scalars_are_what_they_look_like(read, text, value):
    document = read(f"a: {text}")
    assert not document.problems
    assert document.data == {"a": value}
    assert type(document.data["a"]) is type(value)


def test_every_value_knows_its_line(read):
    document = read("# a comment\na: 1\nb:\n  - x\n  - y: 1\n    z:\n      3\n")
    assert document.lines[("a",)] == 2
    assert document.lines[("b", 0)] == 4
    assert document.lines[("b", 1, "y")] == 5
    assert document.lines[("b", 1, "z")] == 6
    assert str(document.problem(("b", 1, "nope"), "m")) == "x.yaml:5: b[1].nope: m"


def test_a_key_twice_is_refused_wherever_it_stands(read):
    document = read("a: 1\nb: {c: 1, d: 2, c: 3}\na: 2\n")
    assert list(map(str, document.problems)) == [
        "x.yaml:2: b.c: is a duplicate of line 2",
        "x.yaml:3: a: is a duplicate of line 1",
    ]
    assert document.data is None


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system ['touch PWNED']",
        "a: !!python/object/new:os.system [touch PWNED]",
        "a: !!python/name:os.system",
        "!!python/object/apply:os.system ['touch PWNED']",
        "a: !!timestamp 2024-01-01",
        "a: !!binary aGk=",
        "a: !!set {x, y}",
        "a: !!int 0x10",
        "a: !!int _",
        "a: !!float e-",
        "a: !!float .inf",
        "a: !!bool yes",
        "a: !custom x",
        "a: !!map [x]",
        "!!python/name:os.system : 1",
    ],
)
def test_tags_construct_nothing(read, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [problem] = read(text).problems
    assert "not allowed" in problem.message
    assert [each.name for each in tmp_path.iterdir()] == ["x.yaml"]


def test_aliases_are_refused_before_they_grow(read):
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))
    document = read(bomb)
    assert document.data is None
    assert "anchors and aliases" in document.problems[0].message
    assert len(document.problems) < 1000


def test_an_alias_to_itself_ends(read):
    assert "anchors and aliases" in read("a: &a [*a]").problems[0].message


def test_deep_nesting_ends(read):
    assert "nested more than 50 levels deep" in read("a: " + "[" * 60 + "]" * 60).problems[0].message
    assert "nested more than 50 levels deep" in read("a: " + "[" * 20_000 + "]" * 20_000).problems[0].message
    assert "nested more than 50 levels deep" in read("[" * 900_000).problems[0].message


def test_a_key_must_be_plain(read):
    assert "a key must be plain text" in read("? [a]\n: 1\n").problems[0].message


def test_a_file_that_is_too_long(read):
    assert "is larger than" in read("#" * (MAX_BYTES + 1)).problems[0].message


def test_huge_numbers_and_messages_are_bounded(read):
    assert "not allowed" in read("a: " + "9" * 5000).problems[0].message
    assert len(str(read("a: !x " + "9" * 5000).problems[0])) < 200


def test_a_key_or_a_tag_does_not_reach_the_terminal_as_it_is(read):
    document = read('"a\\e[2J\\nb": 1\n"a\\e[2J\\nb": 2\nc: !%1b 1\n')
    assert list(map(str, document.problems)) == [
        r"x.yaml:2: a\x1b[2J\nb: is a duplicate of line 1",
        r"x.yaml:3: c: the value '1' with the tag !\x1b is not allowed: use plain values",
    ]


def test_a_file_without_end_is_not_read_to_its_end(tmp_path):
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    (problem,) = read_document(tmp_path / "zero.yaml", "zero.yaml").problems
    assert "larger than" in problem.message
