"""The check of the documentation's texts finds what it is for, and nothing in the pages that it covers."""

from __future__ import annotations

import sys

import pytest

from sluice.embedded.home import REPOSITORY

sys.path.insert(0, str(REPOSITORY / ".ci"))
import prose

pytestmark = pytest.mark.unit

LONG = "word " * 41


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("A record is set apart.", "page.md:1: not 'set apart' but quarantined"),
        ("# Fine\n\n- One\n- The table is\n  behind.\n", "page.md:4: not 'is behind'"),
        ("| a |\n| --- |\n| in quarantine |\n", "page.md:3: not 'in quarantine'"),
        (LONG, "a sentence of 41 words"),
        (f"Short. The {LONG}`code`. Short.", "a sentence of 43 words"),
        (f"| a |\n| --- |\n| {'x' * 301} |\n", "a cell of 301 characters"),
        ("Words. " * 2_501, "2501 words"),
    ],
)
def test_what_breaks_a_rule_is_found(page: str, message: str) -> None:
    assert message in " ".join(prose.find_violations("docs/page.md", page))


@pytest.mark.parametrize(
    "page",
    [
        "Which rows are `set apart` has a foreign key. " * 2,
        f"```\nset apart {LONG}\n```\n",
        f"{'word ' * 39}end. Then {'word ' * 38}end.",
        f"| a |\n| --- |\n| {'word ' * 50} |\n",
    ],
)
def test_code_and_the_terms_of_the_field_are_left_alone(page: str) -> None:
    assert prose.find_violations("docs/page.md", page) == []


def test_generated_pages_may_be_long() -> None:
    assert prose.find_violations("docs/reference/cli.md", "Words. " * 3_000) == []


def test_each_path_to_check_exists() -> None:
    assert all((REPOSITORY / each).exists() for each in prose.PATHS)
