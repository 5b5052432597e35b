"""The published package: contents and metadata of the source distribution and the wheel."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from support import ROOT

import deplodock

PARTS = ("backend", "dialects", "extras", "frontend", "passes", "target", "tools")


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def build(kind: str, folder: Path, out: Path) -> Path:
    """Builds the source distribution or the wheel of a project with setuptools, as pip does. Returns the file."""
    code = f"import setuptools.build_meta as b; print(b.build_{kind}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], set[str], str]:
    """Returns the files of the source distribution, the files of the wheel built from it, and its metadata."""
    if not tracked():
        pytest.skip("no checkout")
    work = tmp_path_factory.mktemp("package")
    for name in tracked():
        (work / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, work / "tree" / name)
    with tarfile.open(build("sdist", work / "tree", work)) as archive:
        sources = {n.partition("/")[2] for n in archive.getnames() if "/" in n}
        archive.extractall(work / "unpacked", filter="data")
    (unpacked,) = (work / "unpacked").iterdir()
    with zipfile.ZipFile(build("wheel", unpacked, work)) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(next(n for n in names if n.endswith("/METADATA"))).decode()
    return sources, names, metadata


def test_the_wheel_holds_the_library_and_nothing_else(published: tuple[set[str], set[str], str]) -> None:
    library = [n for n in tracked() if n.startswith(PARTS) or "/" not in n and n.endswith((".py", ".typed"))]
    wanted = {f"deplodock/{n}" for n in library if n != "setup.py"}
    assert any(n.endswith("runtime.cpp") for n in wanted)
    assert {n for n in published[1] if ".dist-info/" not in n} == wanted


def test_the_source_distribution_can_be_built_and_carries_no_tests(published: tuple[set[str], set[str], str]) -> None:
    sources = published[0]
    assert {"README.md", "LICENSE", "pyproject.toml", "setup.py", "docs/architecture.md"} <= sources
    assert not [n for n in sources if n.startswith(("tests", "benchmarks", ".typings"))]


def test_the_metadata(published: tuple[set[str], set[str], str]) -> None:
    metadata = published[2]
    assert re.search(r"^Author", metadata, re.M)
    assert len(re.findall(r"^Classifier: ", metadata, re.M)) >= 5
    assert re.search(r'^Requires-Dist: nvidia-cuda-nvrtc; extra == "cuda"$', metadata, re.M)


COMES_WITH = {"sympy": "torch", "huggingface_hub": "transformers", "cuda": "cuda-bindings", "cupy": "cupy-cuda13x"}
COMES_WITH |= {"jaxlib": "jax", "IPython": "ipykernel", "textual": "xdsl"}
"""Module -> the distribution that brings it along, where their names differ."""

OPTIONAL = {
    "cuda-bindings",
    "cupy-cuda13x",
    "filecheck",
    "ipykernel",
    "jax",
    "onnx",
    "onnxruntime",
    "ray",
    "transformers",
}
"""Distributions of extras that the library imports where a user asks for what needs them."""


def test_every_imported_package_is_a_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[=><\[]", line)[0] for line in project["dependencies"]}
    extras = {re.split(r"[=><\[]", line)[0] for lines in project["optional-dependencies"].values() for line in lines}
    imported = set[str]()
    for name in tracked():
        if name.startswith(PARTS) and name.endswith(".py") and not re.search("/(templates|solutions)/", name):
            for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    imported.add(str(node.module).split(".")[0])
    distributions = {COMES_WITH.get(name, name) for name in imported - sys.stdlib_module_names}
    assert distributions - required == OPTIONAL
    assert OPTIONAL <= extras


def test_completion_offers_the_public_names() -> None:
    plugins = ["Artifact", "from_jax", "from_onnx", "load", "report", "save"]
    assert dir(deplodock) == sorted([*deplodock.__all__, "print", *plugins, "__version__"])  # no star import of print


def test_every_pattern_of_data_matches() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for package, patterns in config["tool"]["setuptools"]["package-data"].items():
        folder = ROOT.joinpath(*package.split(".")[1:])
        assert all(list(folder.glob(pattern)) for pattern in patterns), package


def test_links_of_the_readme_lead_somewhere_from_everywhere() -> None:
    """Links of the README are absolute, because a package index shows it without other files."""
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not link.startswith("https://")] == []


def test_naming_compile_imports_no_exporter() -> None:
    """PyTorch's exporter and Dynamo import slowly, so they are imported at the first capture."""
    code = "import sys, deplodock; deplodock.compile; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
