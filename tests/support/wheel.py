"""Builds the wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from sluice.embedded.home import REPOSITORY


def build_wheel(source: Path) -> Path:
    """Build the wheel of a copy of the checkout in an empty folder: a build writes into the folder that it builds."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE.md"):
        shutil.copy(REPOSITORY / name, source)
    for name in ("include", "plugins", "jobs"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
    build = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (made,) = (source / "dist").glob("*.whl")
    return made
