"""Checks the limits of the layout: modules at the package's root, modules in a folder, lines in a module."""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE = Path("include/sluice")
CODE = (PACKAGE, Path("dags"), Path("jobs"), Path("plugins"))
AT_ROOT, IN_FOLDER, LINES = 12, 20, 400


def find_violations() -> list[str]:
    """Return one sentence for each exceeded limit."""
    found = []
    for folder in sorted({path.parent for root in CODE for path in root.rglob("*.py")}):
        modules = [path for path in folder.glob("*.py") if not path.name.startswith("__")]
        limit = AT_ROOT if folder == PACKAGE else IN_FOLDER
        if len(modules) > limit:
            found.append(f"{folder}: {len(modules)} modules, at most {limit} are allowed")
    for path in sorted(path for root in CODE for path in root.rglob("*.py")):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > LINES:
            found.append(f"{path}: {lines} lines, at most {LINES} are allowed")
    return found


if __name__ == "__main__":
    print(*(found := find_violations()), sep="\n")
    sys.exit(bool(found))
