"""The YAML in the docs is valid, and the guides stay short enough to be read."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from sluice.contract.document import read_document
from sluice.contract.folder import load_contracts
from sluice.embedded.home import REPOSITORY

pytestmark = pytest.mark.unit

DOCS = REPOSITORY / "docs"
SCHEMAS = REPOSITORY / "include/sluice/contract/schemas"
BLOCK = re.compile(r"^( *)```yaml\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
FIRST_KEY = re.compile(r"^([A-Za-z_]\w*):", re.MULTILINE)


def blocks() -> Iterator[tuple[str, str, str]]:
    """Place, first key and text of each YAML block."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            block = textwrap.dedent(found[2])
            if first := FIRST_KEY.search(block):
                yield f"{page.relative_to(DOCS)}:{line}", first[1], block


BLOCKS = list(blocks())
WHOLE = [pytest.param(text, id=place) for place, first, text in BLOCKS if first == "table"]
FIELDS = set(json.loads((SCHEMAS / "contract.json").read_text(encoding="utf-8"))["properties"])


def schema_of(place: str, first: str) -> str | None:
    """Of which file a block is a part; None if of none of Sluice's."""
    if first in ("defaults", "alerts") or place.startswith("reference/groups"):
        return "groups"
    return "contract" if first in FIELDS and first != "table" else None


PARTS = [pytest.param(name, text, id=place) for place, first, text in BLOCKS if (name := schema_of(place, first))]


@pytest.mark.parametrize("text", WHOLE)
def test_a_contract_passes_contract_check(text: str, tmp_path: Path) -> None:
    (tmp_path / "contract.yaml").write_text(text, encoding="utf-8")
    assert [str(each) for each in load_contracts(tmp_path, strict=False).problems] == []


@pytest.mark.parametrize(("name", "text"), PARTS)
def test_a_part_of_a_file_has_fields_that_exist(name: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "part.yaml"
    file.write_text(text, encoding="utf-8")
    document = read_document(file, file.name)
    schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    schema.pop("required", None)
    assert document.problems == []
    assert [each.message for each in Draft202012Validator(schema).iter_errors(document.data)] == []


def test_there_are_contracts_and_parts() -> None:
    assert len(WHOLE) > 25
    assert len(PARTS) >= 10
