"""Checks the sizes that keep the package legible: modules at its root, modules in a folder, lines in a module."""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE = Path("include/sluice")
CODE = (PACKAGE, Path("dags"), Path("jobs"), Path("plugins"))
AT_ROOT, IN_FOLDER, LINES = 12, 20, 400


def flaws() -> list[str]:
    """One sentence per limit that is exceeded."""
    found = []
    for folder in sorted({path.parent for root in CODE for path in root.rglob("*.py")}):
        modules = [path for path in folder.glob("*.py") if not path.name.startswith("__")]
        most = AT_ROOT if folder == PACKAGE else IN_FOLDER
        if len(modules) > most:
            found.append(f"{folder}: {len(modules)} modules, at most {most} are allowed")
    for path in sorted(path for root in CODE for path in root.rglob("*.py")):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > LINES:
            found.append(f"{path}: {lines} lines, at most {LINES} are allowed")
    return found


if __name__ == "__main__":
    print(*(found := flaws()), sep="\n")
    sys.exit(bool(found))
