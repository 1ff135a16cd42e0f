"""The generated pages of docs/reference are current, and name every variable that the code knows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from sluice.embedded.home import REPOSITORY

sys.path.insert(0, str(REPOSITORY / ".ci"))
import reference_texts
import references

pytestmark = pytest.mark.unit

VARIABLE = re.compile(r"(?<![A-Z_])SLUICE_[A-Z]+(?:_[A-Z]+)*(?![A-Z_])")


@pytest.mark.parametrize("page", references.PAGES)
def test_a_page_is_current(page: str) -> None:
    assert (references.FOLDER / page).read_text("utf-8") == references.PAGES[page](), "run: make references"


def sources() -> list[Path]:
    folders = ("include/sluice", "plugins", "dags", "jobs")
    files = [file for folder in folders for file in (REPOSITORY / folder).rglob("*.py")]
    return [*files, *(REPOSITORY / name for name in ("Makefile", "docker-compose.yaml", "Dockerfile"))]


def test_each_variable_of_the_code_is_on_the_page_and_no_other() -> None:
    found = {name for file in sources() for name in VARIABLE.findall(file.read_text("utf-8"))}
    told = {name for section in reference_texts.VARIABLES.values() for name in section if name.startswith("SLUICE_")}
    assert len(told) > 20
    assert found - reference_texts.NO_VARIABLES == told
    assert found >= reference_texts.NO_VARIABLES
