"""The requirements files: every package is pinned by version and by hash, and every installation verifies the hash."""

from __future__ import annotations

import re

import pytest

from sluice.embedded.home import REPOSITORY

pytestmark = pytest.mark.unit

FILES = sorted(REPOSITORY.glob("requirements*.txt"))
MAKEFILE = (REPOSITORY / "Makefile").read_text()


def test_every_package_has_a_version_and_a_hash_and_nothing_names_a_registry() -> None:
    assert [file.name for file in FILES] == ["requirements-dev.txt", "requirements-uv.txt", "requirements.txt"]
    for file in FILES:
        for entry in file.read_text().replace("\\\n", " ").splitlines():
            assert re.fullmatch(r"[\w.-]+(\[[\w,-]+\])?==\S+( ; [^;]+?)?( +--hash=sha256:[0-9a-f]{64})+", entry), entry
        assert "://" not in file.read_text()


def test_every_installation_verifies_the_hashes() -> None:
    installs = re.findall(r"^[^#\n]*pip install.*$", MAKEFILE, re.MULTILINE)
    assert len(installs) == 2 and all("--require-hashes" in line for line in installs), installs
    version = re.search(r"^UV_VERSION := (\S+)$", MAKEFILE, re.MULTILINE)
    assert version is not None
    assert (REPOSITORY / "requirements-uv.txt").read_text().startswith(f"uv=={version[1]} ")
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    assert re.findall(r"pip install .*", dockerfile) == [
        "pip install --no-cache-dir --require-hashes -r /requirements.txt"
    ]
