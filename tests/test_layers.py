"""The rooms of the package: layers import downwards only, no circle, a purpose in each first line, none too full."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vcbench"
ROW = re.compile(r"^\| `(?P<layer>[\w.]+)` \|", re.M)
MOST_MODULES = 14


def module_name(path: Path) -> str:
    """`vcbench.engine.rope` for its file; a package is named as its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
FOLDERS = sorted({path.parent for path in SOURCES.values()})


def imported(name: str) -> set[str]:
    """The package's modules that a module imports anywhere in it: at the top, in functions, for types alone."""
    found = set()
    for node in ast.walk(ast.parse(SOURCES[name].read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in SOURCES else str(node.module))
    return {one for one in found if one in SOURCES} - {name}


IMPORTS = {name: imported(name) for name in SOURCES}


def layers() -> list[str]:
    """The layers of docs/architecture.md, the highest first."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = page[page.index("## The house") : page.index("## One round")]
    return [f"vcbench.{found['layer']}" for found in ROW.finditer(table)]


LAYERS = layers()


def layer_of(name: str) -> int | None:
    """The number of the layer that names a module or the nearest folder around it, 0 being the highest."""
    around = [layer for layer in LAYERS if name == layer or name.startswith(f"{layer}.")]
    return LAYERS.index(max(around, key=len)) if around else None


def test_every_module_has_a_layer() -> None:
    packages = {"vcbench", "vcbench.engine"}
    assert {name for name in SOURCES if layer_of(name) is None} == packages
    assert not any(IMPORTS[name] for name in packages)
    assert {layer for layer in LAYERS if layer not in SOURCES} == set()


@pytest.mark.parametrize("name", SOURCES)
def test_imports_point_down(name: str) -> None:
    above = layer_of(name)
    for other in IMPORTS[name]:
        below = layer_of(other)
        assert below is None or above is None or below >= above, f"{name} imports {other}, which is above it"


def test_no_circle() -> None:
    """Taking out those that import nothing left ends with none left, or with a circle and what leads into it."""
    left = IMPORTS
    while free := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in free}
    assert sorted(left) == []


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if PACKAGE / "engine" in (folder, *folder.parents)])
def test_no_room_of_the_engine_is_too_full(folder: Path) -> None:
    assert len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= MOST_MODULES


@pytest.mark.parametrize("name", SOURCES)
def test_the_first_line_says_what_a_module_is_for(name: str) -> None:
    text = ast.get_docstring(ast.parse(SOURCES[name].read_text("utf-8")))
    assert text, f"{name} says nothing of its purpose"
    assert len(text.splitlines()[0]) > 15


def test_words_that_named_several_things_name_one() -> None:
    stems = Counter(path.stem for path in SOURCES.values())
    assert all(stems[word] <= 1 for word in ("rows", "columns", "linear", "selection", "divergence"))
    words = re.compile(r"\b(?:nonuniform|framed|before_rope)\b", re.I)
    assert not [name for name, path in SOURCES.items() if words.search(path.read_text("utf-8"))]
