"""Finds the passes and other files whose code creates or matches an operation, in the syntax trees of the sources.

An operation is created where its class is called (`DotOp(...)`). It is matched where its class is in `isinstance`, in a
pattern or in an annotation. A file that is part of one pass is named by the pass.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from xdsl.ir import Operation

from ...passes import OWN_PASSES

_ROOT = Path(__file__).parents[2]

_FOLDERS = ("passes", "frontend/capture", "dialects/tensor", "backend/interpreter", "backend/simulator")
"""Folders of the sources that are searched. Printers are left out: they print every operation."""


@dataclass(frozen=True)
class Uses:
    """Passes, and files that are part of no single pass, whose code uses an operation.

    created: the code creates the operation.
    matched: the code tests for the operation, and does not create it.
    """

    created: tuple[str, ...]
    matched: tuple[str, ...]


@dataclass
class _File:
    """Names in a file: `modules` has imported name -> its full name; the others are dotted names of its code."""

    user: str
    text: str
    modules: dict[str, str] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    mentioned: set[str] = field(default_factory=set)
    read: bool = False


def uses_of(cls: type[Operation]) -> Uses:
    """Returns the uses of a class of operations of this library in its sources."""
    created, matched = set[str](), set[str]()
    for path, file in _files().items():
        if cls.__name__ in file.text:
            names = _names_of(cls, _read(path, file))
            created |= {file.user} if names & file.called else set()
            matched |= {file.user} if names & file.mentioned else set()
    return Uses(tuple(sorted(created)), tuple(sorted(matched - created)))


@cache
def _files() -> dict[Path, _File]:
    paths = sorted(path for folder in _FOLDERS for path in (_ROOT / folder).rglob("*.py"))
    return {path: _File(_user(path), path.read_text(encoding="utf-8")) for path in paths}


def _read(path: Path, file: _File) -> _File:
    """Fills in the names of a file."""
    if file.read:
        return file
    file.read = True
    tree = ast.parse(file.text)
    parts = ["deplodock", *path.relative_to(_ROOT).with_suffix("").parts]
    package = parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            source = [*base, *(node.module or "").split(".")] if node.module else base
            file.modules |= {alias.asname or alias.name: ".".join((*source, alias.name)) for alias in node.names}
        elif isinstance(node, ast.Call):
            file.called.add(_dotted(node.func))
        elif isinstance(node, ast.Name | ast.Attribute):
            file.mentioned.add(_dotted(node))
        elif isinstance(node, ast.ClassDef):
            file.modules[node.name] = ".".join((*(package if path.name == "__init__.py" else parts), node.name))
    return file


def _dotted(node: ast.expr) -> str:
    """Returns `a.b` for an attribute of a name, the name itself for a name, and an empty text for others."""
    if isinstance(node, ast.Name):
        return node.id
    return (
        f"{node.value.id}.{node.attr}" if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
    )


def _names_of(cls: type[Operation], file: _File) -> set[str]:
    """Returns the names that mean the class in a file: `DotOp`, or `tile.DotOp`."""
    module = f"{cls.__module__}."

    def is_part(source: str) -> bool:
        return module.startswith(f"{source}.")

    names = {
        name
        for name, source in file.modules.items()
        if source.rpartition(".")[2] == cls.__name__ and is_part(source.rpartition(".")[0])
    }
    return names | {f"{name}.{cls.__name__}" for name, source in file.modules.items() if is_part(source)}


def _user(path: Path) -> str:
    """Returns the name of the pass that a file is part of, or the path of the file."""
    file = path.relative_to(_ROOT).as_posix()
    return next((name for name, place in _places() if file == f"{place}.py" or file.startswith(f"{place}/")), file)


@cache
def _places() -> tuple[tuple[str, str], ...]:
    """Returns each pass with its file or folder, without extension."""

    def places() -> Iterator[tuple[str, str]]:
        for name, place in OWN_PASSES.items():
            module = place.partition(":")[0].lstrip(".").split(".")
            folder = module[:2] if module[0] == "convert" else module
            yield name, "/".join(("passes", *folder))

    return tuple(places())
