"""Checks the words, sentences, table cells and lengths of the documentation.

No linter of prose on PyPI combines word lists with limits for sentences and cells, and runs without a download.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

PATHS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "examples")
"""The pages to check: files, and folders with everything in them."""
GENERATED = ("docs/reference/", "docs/dev/modules.md")
"""Reference pages, which may be as long as what they list."""
PAGE_WORDS, SENTENCE_WORDS, CELL_CHARACTERS = 2_500, 40, 300
INSTEAD = {
    r"set apart|laid aside|in quarantine|rejected (?:records?|rows?|ones)": "quarantined",
    r"told|tells": "reported, shows, raised as",
    r"ways? out": "next step, fix",
    r"needs? a person|somebody must act": "needs attention, action required",
    r"given up|gave up": "accepted gap, skipped permanently",
    r"by other hands|foreign": "written by another engine",
    r"memory of deletes": "deletes table",
    r"moments?": "time, timestamp",
    r"expectations? (?:that )?held|(?:not|no longer) judged": "passed, not evaluated, removed",
    r"(?:is|are|was|were|falls?|fell|far|further|runs?) behind|of promised": "freshness (target), lag",
    r"last durable snapshot": "last commit",
    r"Kafka (?:begins|ends)": "log start offset, log end offset",
    r"misfits?": "type mismatch, required field missing, cannot be parsed",
    r"in force": "active contract",
    r"whereabouts|unseen": "location, not visible",
}
"""What the project does not say, and what it says instead. Words with plain meanings besides are left out or come with
the words around them; `malformed` is the name of an error class."""
ALLOWED = ("foreign keys?", "clock is behind", r"is behind an? (?:proxy|load balancer|firewall)")
"""Terms of the field that contain such a word."""
_WORDS = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): say for words, say in INSTEAD.items()}
_ALLOWED = re.compile("|".join(ALLOWED), re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])[)\"*]*\s+(?=[A-Z`\"(\[])")
_MARKDOWN = MarkdownIt().enable("table")


def text_of(token: Token) -> str:
    """What a reader sees of a paragraph or a cell; code counts as one word."""
    parts = {"text": str, "softbreak": lambda _: " ", "hardbreak": lambda _: " ", "code_inline": lambda _: "`code`"}
    return "".join(parts[each.type](each.content) for each in token.children or () if each.type in parts)


def texts(page: str) -> Iterator[tuple[int, str, bool]]:
    """Each text outside of code blocks: its line, what a reader sees, and whether it is a table's cell."""
    cell, line = False, 0
    for token in _MARKDOWN.parse(page):
        line = token.map[0] + 1 if token.map else line
        if token.type in {"td_open", "th_open"}:
            cell = True
        elif token.type in {"td_close", "th_close"}:
            cell = False
        elif token.type == "inline":
            yield line, text_of(token), cell


def find_violations(name: str, page: str) -> list[str]:
    """Return one sentence for each rule that the page breaks."""
    found = []
    if not name.startswith(GENERATED) and (words := len(re.findall(r"\S*\w\S*", page))) > PAGE_WORDS:
        found.append(f"{name}: {words} words, at most {PAGE_WORDS} are allowed")
    for line, text, cell in texts(page):
        where = f"{name}:{line}"
        plain = _ALLOWED.sub("", text)
        for pattern, say in _WORDS.items():
            found += [f"{where}: not '{match}' but {say}" for match in pattern.findall(plain)]
        if cell and len(text) > CELL_CHARACTERS:
            found.append(f"{where}: a cell of {len(text)} characters, at most {CELL_CHARACTERS} are allowed")
        for sentence in () if cell else _SENTENCE_END.split(text):
            if (words := len(sentence.split())) > SENTENCE_WORDS:
                found.append(f"{where}: a sentence of {words} words, at most {SENTENCE_WORDS}: {sentence[:60]} …")
    return found


def pages() -> list[Path]:
    """The pages that `PATHS` names."""
    return sorted({page for each in map(Path, PATHS) for page in ([each] if each.suffix else each.rglob("*.md"))})


if __name__ == "__main__":
    problems = [each for page in pages() for each in find_violations(str(page), page.read_text(encoding="utf-8"))]
    print(*problems, sep="\n")
    sys.exit(bool(problems))
