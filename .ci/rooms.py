"""Writes the map of the package into docs/design.md: a Mermaid graph of its folders, and tables of their modules.

`make rooms` runs it. A unit test fails when the map is out of date.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import grimp

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "design.md"
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


def page() -> str:
    """The graph and the tables, as Markdown."""
    package, rooms = REPOSITORY / "include" / "sluice", floors()
    lines = ["```mermaid", "graph TD"]
    lines += [f"    {room} --> {to}" for room, to in arrows(rooms)]
    lines += ["```", ""]
    folders = {f"`{room}/`": package / room for room in (*rooms, "embedded", "demo")}
    folders["the root of the package"] = package
    folders |= {f"`plugins/{name}/`": REPOSITORY / "plugins" / name for name in PLUGINS}
    for title, folder in folders.items():
        about = "Values and errors that every room uses." if folder == package else summary(folder / "__init__.py")
        lines += [f"**{title}** {about}", "", "| module | what it holds |", "| --- | --- |"]
        lines += [
            f"| `{path.stem}` | {summary(path)} |"
            for path in sorted(folder.glob("*.py"))
            if not path.name.startswith("__")
        ]
        lines.append("")
    return "\n".join(lines)


def with_rooms(text: str) -> str:
    """The page with the part between the markers written anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{page()}{END}{after}"


if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY / "include"))
    PAGE.write_text(with_rooms(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
