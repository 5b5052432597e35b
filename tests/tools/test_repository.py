"""Rules about imports, files and names that a reviewer would otherwise check in every change."""

from __future__ import annotations

import ast
import difflib
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path

import pytest
from support import ROOT
from support.library_copies import LIBRARY_FOLDERS
from xdsl.ir import Dialect
from xdsl.passes import ModulePass

from deplodock.benchmarks.compiler_path import docstring_lines
from deplodock.dialects import OWN_DIALECTS, get_all_dialects
from deplodock.passes import OWN_PASSES, UPSTREAM_PASSES
from deplodock.passes.pipelines import PIPELINES, get_all_passes, parse_passes, pipeline_text

ANSWERS = ("templates", "solutions")
"""Folders of `extras/learn/chapters/*`: their files are copied to the reader's folder, and are no modules."""

LIBRARY = sorted(
    [
        ROOT / "__init__.py",
        ROOT / "errors.py",
        ROOT / "plugins.py",
        ROOT / "progress.py",
        *(f for p in LIBRARY_FOLDERS for f in (ROOT / p).rglob("*.py") if f.parent.name not in ANSWERS),
    ]
)
LIT_TESTS = sorted((ROOT / "tests" / "filecheck").rglob("*.mlir"))

PASS_BASES = {"ModulePass", "NestPass", "TilePass", "FuncPass"}
LONGEST_FILE = 500
"""Lines without docstrings: an `Args` section makes no file too long."""

LONGEST_FUNCTION = 80

MAY_IMPORT = {
    "": {"", "frontend"},
    "target": {"target", "errors"},
    "dialects": {"dialects", "target", "errors", "plugins"},
    "passes": {"passes", "dialects", "target", "errors", "plugins", "progress"},
    "backend": {"backend", "dialects", "target", "errors", "plugins", "progress"},
    "frontend": {"frontend", "passes", "dialects", "target", "backend", "errors", "plugins", "progress"},
}
MAY_IMPORT["tools"] = {"__version__", "tools", *MAY_IMPORT["frontend"]}
MAY_IMPORT["extras"] = {"extras", *MAY_IMPORT["tools"]}
"""Package -> what it may import from the library: packages, or single modules. Nothing imports `extras`."""


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _checked_sizes() -> list[Path]:
    return [*LIBRARY, *sorted((ROOT / "tests").rglob("*.py"))]


@pytest.mark.parametrize("path", _checked_sizes(), ids=_name)
def test_sizes(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    lines = source.count("\n") - len(docstring_lines(source))
    assert lines <= LONGEST_FILE, f"{lines} lines; split it by idea"
    long = [
        f"{node.name}: {length} lines"
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > LONGEST_FUNCTION
    ]
    assert not long


def _library_imports(path: Path) -> set[str]:
    """Returns the modules of the library that `path` imports, also by `module:object` strings of registries."""
    package = path.relative_to(ROOT).parent.parts
    found: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            module = (*base, *(node.module or "").split(".")) if node.module else base
            # `from ..backend import targets` imports a module, `from ..backend.targets import X` a name.
            found |= {".".join((*module, alias.name)) if len(module) < 2 else ".".join(module) for alias in node.names}
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(PLACE, node.value):
            found.add(
                resolve_name(node.value.partition(":")[0], ".".join(("deplodock", *package)))[len("deplodock.") :]
            )
    return found


PLACE = r"\.+[a-z]\w*(\.\w+)*:\w+"
"""A place in a register: a relative module, and a name in it."""


@pytest.mark.parametrize("path", LIBRARY, ids=_name)
def test_layers(path: Path) -> None:
    own = path.relative_to(ROOT).parent.parts
    allowed = MAY_IMPORT[own[0] if own else ""]
    if path.parent == ROOT and path.name != "__init__.py":
        allowed = {"errors"} if path.name == "plugins.py" else set[str]()
    bad = {
        module
        for module in _library_imports(path)
        if not any(module == ok or module.startswith(f"{ok}.") for ok in allowed if ok)
    }
    if path == ROOT / "__init__.py":
        public = ("errors", "frontend", "passes", "plugins")
        bad = {module for module in bad if module.split(".")[0] not in public}
    assert not bad


@pytest.mark.parametrize("path", LIBRARY, ids=_name)
def test_absolute_imports(path: Path) -> None:
    """Absolute imports are of other packages only, and never of xDSL's `tensor` dialect."""
    found = {alias.name for node in ast.walk(_tree(path)) if isinstance(node, ast.Import) for alias in node.names}
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    assert not [name for name in found if f"{name}.".startswith(("deplodock.", "xdsl.dialects.tensor."))]


def _room(module: Sequence[str]) -> str:
    """Returns the folder of `passes/` that has a module, such as `tile` or `convert/tile_to_kernel`, or "" for none."""
    if len(module) < 2 or not (ROOT / "passes" / module[1]).is_dir():
        return ""
    return "/".join(module[1:3]) if module[1] == "convert" else module[1]


def _defines_a_pass(module: Sequence[str]) -> bool:
    path = ROOT.joinpath(*module)
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path.exists() and any(
        isinstance(node, ast.ClassDef) and PASS_BASES & {b.id for b in node.bases if isinstance(b, ast.Name)}
        for node in _tree(path).body
    )


def _direction_problems(own: Sequence[str], imported: Sequence[str]) -> list[str]:
    """Returns the faults of an import between two modules of `passes/`.

    A folder may import itself, `analysis`, and files that are in no folder. A conversion may import its source level.
    """
    room, other = _room(own), _room(imported)
    problems: list[str] = []
    if other and _defines_a_pass(imported):
        problems.append("a pass imports a pass")
    if other in ("", "analysis", room):
        return problems
    source = room.removeprefix("convert/").split("_to_")[0] if room.startswith("convert/") else None
    cost = room == "tensor" and own[2:3] == ("fusion",) and other == "planning"
    if other != source and not cost:
        problems.append(f"{room or 'a file of all passes'} imports {other}")
    return problems


@pytest.mark.parametrize("path", sorted((ROOT / "passes").rglob("*.py")), ids=_name)
def test_directions_between_passes(path: Path) -> None:
    own = path.relative_to(ROOT).with_suffix("").parts
    own = own[:-1] if own[-1] == "__init__" else own
    package = path.relative_to(ROOT).parent.parts
    problems: list[str] = []
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = (*package[: len(package) - node.level + 1], *(node.module.split(".") if node.module else ()))
            modules = {
                (*base, a.name) if (ROOT.joinpath(*base, a.name)).with_suffix(".py").exists() else base
                for a in node.names
            }
            problems += [
                f"{'.'.join(m)}: {p}" for m in modules if m[0] == "passes" for p in _direction_problems(own, m)
            ]
    assert not problems


@pytest.mark.parametrize(
    ("own", "imported"),
    [
        ("passes.analysis.masks", "passes.convert.tile_to_kernel.emitter"),
        ("passes.tile.select_mma", "passes.convert.tile_to_kernel.dots"),
        ("passes.planning.choose", "passes.loop.fuse_reductions"),
        ("passes.kernel.allocate_shared", "passes.kernel.insert_barriers"),
        ("passes.tensor.plan_fusion", "passes.planning.rows"),
        ("passes.convert.tensor_to_loop", "passes.loop.fuse_reductions"),
        ("passes.rewriting", "passes.tile.select_mma"),
    ],
)
def test_wrong_directions_are_found(own: str, imported: str) -> None:
    assert _direction_problems(tuple(own.split(".")), tuple(imported.split(".")))


@pytest.mark.parametrize("path", LIBRARY, ids=_name)
def test_torch_stays_above(path: Path) -> None:
    """Dialects, passes and dl-opt never import torch. The backend and the root import it inside of functions only."""
    package = path.relative_to(ROOT).parent.parts[:1]
    if package[:1] in (("frontend",), ("extras",)) or package == ("tools",) and path.name != "dl_opt.py":
        return
    lazily = package in ((), ("backend",))
    nodes = ast.walk(_tree(path)) if not lazily else iter(_tree(path).body)
    for node in nodes:
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        assert not [name for name in names if name.split(".")[0] in ("torch", "cupy", "transformers")]


def test_dl_opt_without_torch() -> None:
    """Loading all dialects and passes does not import torch."""
    code = (
        "import sys, deplodock.tools.dl_opt as d; from deplodock.dialects import get_all_dialects as g;"
        "from deplodock.passes.pipelines import get_all_passes as p; [f() for f in [*g().values(), *p().values()]];"
        "print(*[m for m in ('torch', 'cupy', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_package_list() -> None:
    """Every folder of the library is a package. `setup.py` finds the packages; no file lists them."""
    folders = {path.parent for path in LIBRARY if path.parent != ROOT}
    assert all((folder / "__init__.py").exists() for folder in folders)
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "packages" not in config["tool"]["setuptools"]
    assert (ROOT / ".typings" / "deplodock").resolve() == ROOT


def test_scripts_exist() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for target in config["project"]["scripts"].values():
        module, _, function = target.partition(":")
        assert callable(getattr(import_module(module), function))


def test_files_that_documents_name_exist() -> None:
    """Each `folder/file.py` in a document is the end of the path of a file."""
    files = {f"/{path.relative_to(ROOT).as_posix()}" for path in ROOT.glob("**/*.py")}
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    named = {(d.name, n) for d in documents for n in re.findall(r"`([\w./]+/\w+\.py)`", d.read_text(encoding="utf-8"))}
    assert len(named) > 10
    assert not [(document, name) for document, name in named if not any(f.endswith(f"/{name}") for f in files)]


def _pass_names(path: Path) -> set[str]:
    """Returns the names of the passes that a file defines."""
    found: set[str] = set()
    for node in _tree(path).body:
        if isinstance(node, ast.ClassDef) and PASS_BASES & {b.id for b in node.bases if isinstance(b, ast.Name)}:
            for line in node.body:
                if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                    if line.targets[0].id == "name" and isinstance(line.value, ast.Constant):
                        found.add(str(line.value.value))
    return found


def test_every_pass_is_registered() -> None:
    """The registry has all passes, each in the module that its name requires."""
    in_tree = {name: path for path in sorted((ROOT / "passes").rglob("*.py")) for name in _pass_names(path)}
    assert set(OWN_PASSES) == set(in_tree)
    for name, path in in_tree.items():
        assert OWN_PASSES[name].partition(":")[0] == f".{_module(path).removeprefix('passes.')}"
        assert path.stem == "rewriting" or name == _pass_of(_module(path).split(".")[1:])


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _pass_of(module: list[str]) -> str:
    """Returns the name of a module's pass: `tile-select-mma` for `tile/select_mma.py`.

    Passes of `convert/` are named `convert-...`. Planning passes and passes of no level have no prefix.
    """
    words = "-".join(w.replace("_", "-") for w in module if w != "conversion")
    return words.removeprefix("planning-").removeprefix("cpu-")


@pytest.mark.parametrize("name", [*OWN_PASSES, *UPSTREAM_PASSES])
def test_pass_loads(name: str) -> None:
    loaded = get_all_passes()[name]()
    assert issubclass(loaded, ModulePass)
    assert loaded.name == name
    assert (loaded.__doc__ or "").strip() or name in UPSTREAM_PASSES


@pytest.mark.parametrize("name", OWN_PASSES)
def test_pass_has_a_filecheck_test(name: str) -> None:
    folder = OWN_PASSES[name].split(".")[1].partition(":")[0]
    folder = folder if (ROOT / "passes" / folder).is_dir() else ""
    assert (ROOT / "tests" / "filecheck" / "passes" / folder / f"{name}.mlir").exists()


@pytest.mark.parametrize("name", get_all_dialects())
def test_dialect_loads(name: str) -> None:
    dialect = get_all_dialects()[name]()
    assert isinstance(dialect, Dialect)
    assert dialect.name == name
    if name in OWN_DIALECTS:
        for op in dialect.operations:
            assert (op.__doc__ or "").strip(), f"{op.name} has no docstring"


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_expand_to_text_that_reads_back(name: str) -> None:
    text = pipeline_text(parse_passes(name))
    assert pipeline_text(parse_passes(text)) == text


def check_directive_problems(text: str) -> list[str]:
    """Returns comments of a lit test that look like directives of filecheck but would be ignored."""
    prefixes = {"CHECK"}
    for option in re.findall(r"--check-prefix(?:es)?[= ]([\w,-]+)", text):
        prefixes |= set(option.split(","))
    suffixes = ("", "-NEXT", "-SAME", "-NOT", "-DAG", "-LABEL", "-EMPTY")
    legal = {"RUN", "COM", "XFAIL", "REQUIRES", "UNSUPPORTED", "DEFINE", "REDEFINE", "ALLOW_RETRIES", "END."}
    legal |= {prefix + suffix for prefix in prefixes for suffix in suffixes}
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"\s*(?://|#)\s*([\w-]+(?:[ _](?:NEXT|SAME|NOT|DAG|LABEL))?)(\s*):", line)
        if match is None:
            continue
        word, space = match.groups()
        if word in legal and not space:
            continue
        if re.fullmatch("|".join(rf"{re.escape(prefix)}-COUNT-\d+" for prefix in prefixes), word):
            continue
        if word.isupper() or word in legal or difflib.get_close_matches(word.upper(), legal, 1, 0.75):
            problems.append(f"line {number}: {line.strip()}")
    return problems


@pytest.mark.parametrize("path", LIT_TESTS, ids=_name)
def test_check_lines(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not check_directive_problems(text)
    runs = re.findall(r"RUN:(.*)", text)
    assert runs
    if any("filecheck" in run or "%roundtrip" in run or "%diagnostics" in run for run in runs):
        assert re.search(r"//\s*[\w-]+(-LABEL|-NEXT|-SAME|-DAG|-COUNT-\d+)?:\s*\S", re.sub(r"//\s*RUN:.*", "", text))


@pytest.mark.parametrize(
    "line",
    [
        "// CHEK: x",
        "// CHECK-NXT: x",
        "// CHECK : x",
        "// check: x",
        "// CHECK NEXT: x",
        "// CHECK-LABLE: f",
        "// FOO: x",
    ],
)
def test_misspelt_check_lines_are_found(line: str) -> None:
    assert check_directive_problems(line)


def test_good_check_lines_are_not_reported() -> None:
    good = "// RUN: x --check-prefix PIPE\n// CHECK-COUNT-2: x\n// PIPE-NEXT: y\n// A note: z\n// CHECK{LITERAL}: [x]\n"
    assert not check_directive_problems(good)


def test_no_machine_paths() -> None:
    """No committed text names a folder of the machine on which it was written."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    bad = [
        name
        for name in listed
        if (ROOT / name).is_file()
        and not (ROOT / name).is_symlink()
        and re.search(rb"/(?:work|root|home)/\w", (ROOT / name).read_bytes())
    ]
    assert not [name for name in bad if name != "tests/tools/test_repository.py"]


def test_architecture_lists_the_passes_in_order() -> None:
    from deplodock.passes.pipelines import parse_passes

    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.M)
    general = {"verify-level", "cse", "dce", "canonicalize"}
    run = list(dict.fromkeys(p.name for p in parse_passes("default") if p.name not in general))
    assert [name for name in listed if name in run] == run
    assert set(listed) <= set(OWN_PASSES)


@pytest.mark.parametrize("name", ["fresh-clone", "__init__"])
def test_the_package_imports_in_a_checkout_of_any_name(name: str) -> None:
    """A test runner may import the root under its folder's name, which may be no Python name."""
    code = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("{name}", {str(ROOT / "__init__.py")!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert not hasattr(module, "pytest_plugins")
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
