"""Writes the map of the package: its folders into docs/design.md, and their modules into docs/dev/modules.md.

`make rooms` runs it. A unit test fails when the map is out of date.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import grimp

REPOSITORY = Path(__file__).resolve().parents[1]
DESIGN = REPOSITORY / "docs" / "design.md"
MODULES = REPOSITORY / "docs" / "dev" / "modules.md"
BEGIN, END = "<!-- rooms: written by .ci/rooms.py -->", "<!-- end of rooms -->"
PLUGINS = ("sluice_airflow", "sluice_airflow/dags", "sluice_web")


def floors() -> list[str]:
    """The folders of the package from the top down, as import-linter's layers in pyproject.toml list them."""
    tool = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(each["layers"] for each in tool["contracts"] if each["type"] == "layers")
    return [layer.removeprefix("sluice.") for layer in layers if ":" not in layer]


def arrows(rooms: list[str]) -> list[tuple[str, str]]:
    """Which folder imports which, without the arrows that a longer way over other folders implies."""
    graph = grimp.build_graph("sluice", cache_dir=None)
    for room in rooms:
        graph.squash_module(f"sluice.{room}")
    direct = {
        r: {m.split(".")[1] for m in graph.find_modules_directly_imported_by(f"sluice.{r}") if "." in m} for r in rooms
    }
    direct = {room: found & set(rooms) for room, found in direct.items()}
    below: dict[str, set[str]] = {}
    for room in reversed(rooms):
        below[room] = direct[room].union(*(below[each] for each in direct[room]))
    return [
        (room, to)
        for room in rooms
        for to in sorted(direct[room], key=rooms.index)
        if not any(to in below[other] for other in direct[room] - {to})
    ]


def summary(path: Path) -> str:
    """The first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def folders() -> dict[str, tuple[Path, str]]:
    """The path of each folder of the map, and what it is for."""
    package = REPOSITORY / "include" / "sluice"
    found = {f"{room}/": package / room for room in (*floors(), "embedded", "demo")}
    found |= {f"plugins/{name}/": REPOSITORY / "plugins" / name for name in PLUGINS}
    about = {title: (path, summary(path / "__init__.py")) for title, path in found.items()}
    return about | {"the root of the package": (package, "Values and errors that every folder uses.")}


def folder_map() -> str:
    """The graph of the imports, and what each folder is for, as Markdown."""
    lines = ["```mermaid", "graph TD"]
    lines += [f"    {room} --> {to}" for room, to in arrows(floors())]
    lines += ["```", "", "| folder | what it is for |", "| --- | --- |"]
    lines += [f"| `{title}` | {about} |" for title, (_, about) in folders().items() if title.endswith("/")]
    return "\n".join([*lines, ""])


def module_tables() -> str:
    """A table of modules for each folder, as Markdown."""
    lines = []
    for title, (folder, _) in folders().items():
        lines += [f"## {title.rstrip('/')}", "", "| module | what it holds |", "| --- | --- |"]
        within = "**/*.py" if folder.parent == REPOSITORY / "include" / "sluice" else "*.py"
        modules = [path for path in sorted(folder.glob(within)) if not path.name.startswith("__")]
        lines += [f"| `{path.relative_to(folder).with_suffix('')}` | {summary(path)} |" for path in modules]
        lines.append("")
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """Each page with the part between its markers written anew."""
    written = {}
    for path, part in ((DESIGN, folder_map()), (MODULES, module_tables())):
        before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
        written[path] = f"{before}{BEGIN}\n{part}{END}{rest.partition(END)[2]}"
    return written


if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY / "include"))
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
