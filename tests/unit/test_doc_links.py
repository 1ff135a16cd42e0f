"""The docs build as a site without a warning; links of the pages beside docs/, and the tests that are named, exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.embedded.home import REPOSITORY

pytestmark = pytest.mark.unit

NAMES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "NOTICE.md", "plugins/README.md")
PAGES = [*(REPOSITORY / name for name in NAMES), *sorted((REPOSITORY / "examples").rglob("README.md"))]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    found: set[str] = set()
    for title in re.findall(r"^#+ (.+)$", text, flags=re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = sum(each == slug or each.startswith(f"{slug}-") for each in found)
        found.add(f"{slug}-{number}" if slug in found else slug)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text("utf-8")):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{target} does not exist"
        if anchor and file.suffix == ".md":
            assert anchor in headings(file), f"{file.name} has no heading #{anchor}"


def test_the_tests_that_are_named_exist() -> None:
    """The page of what is tested, and others, name the tests that show it."""
    named = {
        (str(page.relative_to(REPOSITORY)), path)
        for page in (REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md"))
        for path in re.findall(r"`(tests/[\w./-]+?)(?:::\w+)?`", page.read_text("utf-8"))
    }
    assert named, "the pattern finds no test"
    assert {(page, path) for page, path in named if not (REPOSITORY / path).exists()} == set()


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "getting-started" / "first-table.html").exists()
