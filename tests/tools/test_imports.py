"""The library has no import cycles among modules or folders, including imports inside of functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path

import networkx
import pytest
from support.library_copies import LIBRARY_FOLDERS

import deplodock

ROOT = Path(deplodock.__file__).parent


def modules() -> dict[str, Path]:
    """Returns the modules of the library by their names."""
    files = [path for folder in LIBRARY_FOLDERS for path in (ROOT / folder).rglob("*.py")]
    files += [path for path in ROOT.glob("*.py") if path.name != "setup.py"]
    return {
        ".".join(("deplodock", *p.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): p for p in files
    }


def imports(node: ast.AST) -> Iterator[ast.ImportFrom]:
    """Yields the `from` imports in a syntax tree, except those under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.ImportFrom):
            yield child
        yield from imports(child)


def imported(name: str, path: Path, known: Set[str]) -> set[str]:
    """Returns the modules that a module imports. `from package import name` imports a module if `name` is one.

    Args:
        name: name of the module.
        path: its file.
        known: names of all modules that are considered.
    """
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    result = set[str]()
    for node in imports(ast.parse(path.read_text(encoding="utf-8"))):
        outer = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
        source = ".".join([*outer, *([node.module] if node.module else [])])
        inner = {f"{source}.{alias.name}" for alias in node.names}
        result |= (inner & known) | ({source} & known if inner - known else set())
    return result - {name}


@cache
def imports_of_library() -> dict[str, set[str]]:
    """Returns the modules that each module of the library imports."""
    files = modules()
    return {name: imported(name, path, files.keys()) for name, path in files.items()}


SHARED_BY_DIALECTS = {"dialects.layouts", "dialects.shapes", "dialects.support"}
"""Folders whose files count as rooms: some files describe operations, others are imported by all dialects."""


def room_of(name: str) -> str:
    """Returns the room of a module: its folder, such as `passes.loop`, or the file itself if it is in no folder."""
    parts = name.split(".")[1:]
    return ".".join(parts[:3] if ".".join(parts[:2]) in SHARED_BY_DIALECTS else parts[:2])


INDEPENDENT_FOLDERS = (("backend.cpu", "backend.cuda"), ("passes.planning.cpu", "passes.planning.gpu"))
"""Pairs of folders that must not import from each other."""


def circles(uses: Mapping[str, Set[str]]) -> list[set[str]]:
    """Returns the import cycles: groups of modules that import each other, directly or indirectly."""
    graph = networkx.DiGraph([(name, other) for name, others in uses.items() for other in others])
    return [group for group in networkx.strongly_connected_components(graph) if len(group) > 1]


def test_no_circles() -> None:
    """Imports inside of functions count too."""
    uses = imports_of_library()
    assert len(uses) > 100
    assert circles(uses) == []


def test_rooms_have_one_direction() -> None:
    """Two folders do not import each other, even if their modules have no cycle."""
    rooms: dict[str, set[str]] = {}
    for name, imports in imports_of_library().items():
        if len(name.split(".")) > 2:
            used = {room_of(other) for other in imports if len(other.split(".")) > 2}
            rooms.setdefault(room_of(name), set()).update(used - {room_of(name)})
    assert len(rooms) > 60
    assert circles(rooms) == []


def test_folders_side_by_side_share_nothing() -> None:
    uses = imports_of_library()
    for pair in INDEPENDENT_FOLDERS:
        for folder, other in (pair, pair[::-1]):
            inside = [n for n in uses if n.startswith(f"deplodock.{folder}.") or n == f"deplodock.{folder}"]
            assert inside
            used = set[str]().union(*(uses[name] for name in inside))
            assert not [name for name in used if name.startswith(f"deplodock.{other}.")]


def test_every_package_of_the_library_is_looked_at() -> None:
    """`LIBRARY_FOLDERS` has every folder with modules, so a new folder is checked too."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    tops = {line.split("/")[0] for line in listed.stdout.splitlines() if "/" in line}
    assert tops - {"tests", "benchmarks", "docs", "examples"} == {*LIBRARY_FOLDERS}


def test_nothing_imports_from_extras() -> None:
    """The library reaches optional packages only by entry points."""
    uses = imports_of_library()
    optional = {name for name in uses if name.startswith("deplodock.extras")}
    assert len(optional) > 5
    assert {
        name: imports & optional for name, imports in uses.items() if name not in optional and imports & optional
    } == {}


@pytest.mark.parametrize("text", ["from .b import x", "def f():\n    from . import b", "from deplodock.b import x"])
def test_circles_are_seen(text: str, tmp_path: Path) -> None:
    a, b = tmp_path / "a.py", tmp_path / "b.py"
    a.write_text(text)
    b.write_text("from .a import y\nif TYPE_CHECKING:\n    from . import c\n")
    names = {"deplodock.a": a, "deplodock.b": b, "deplodock.c": tmp_path / "c.py"}
    uses = {name: imported(name, path, names.keys()) for name, path in list(names.items())[:2]}
    assert uses == {"deplodock.a": {"deplodock.b"}, "deplodock.b": {"deplodock.a"}}
    assert circles(uses) == [{"deplodock.a", "deplodock.b"}]


PRINT = """
import sys
from deplodock.backend.{0}.printer import print_{1}
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

module = parse_module(make_context(), sys.argv[1], "sum.mlir")
pipeline = "tensor-to-loop,plan-schedules{{block=8 chunk=64}},loop-to-tile,tile-to-kernel"
run_passes(make_context(), module, parse_passes(pipeline, {{"target": ("{2}",)}}))
assert "scf.for" in str(module)
assert "for (" in print_{1}(module)
assert "deplodock.backend.{3}.printer" not in sys.modules
"""

SUM = """
func.func @main(%x: tensor<64x4096xf32>) -> tensor<64xf32> {
  %s = tensor.reduce add %x over [1] : tensor<64x4096xf32> -> tensor<64xf32>
  func.return %s : tensor<64xf32>
}
"""


@pytest.mark.parametrize("words", [("cpu", "cpp", "cpu", "cuda"), ("cuda", "cuda", "sm_80", "cpu")])
def test_each_printer_prints_loops_alone(words: tuple[str, ...]) -> None:
    """A printer does not import the other printer: each registers the statements that it needs."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT.format(*words), SUM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
