"""Copies of the library for tests that change it, packages that are installed next to it, and diffs of changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

from . import ROOT

LIBRARY_FOLDERS = ("backend", "dialects", "extras", "frontend", "passes", "target", "tools")
"""Folders of the library: every folder with modules, except tests, benchmarks, docs and examples."""


def copy_library(folder: Path, *more: str) -> Path:
    """Copies the library to `folder/deplodock` with its project file. Returns the copy.

    `more` are further files and folders to copy, relative to the repository.
    """
    copy = folder / "deplodock"
    for part in (*LIBRARY_FOLDERS, *more):
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (copy / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / part, copy / part)
    for path in (*ROOT.glob("*.py"), ROOT / "pyproject.toml"):
        shutil.copy(path, copy)
    return copy


def environment_of(copy: Path, *more: Path) -> dict[str, str]:
    """Returns the environment in which Python imports `deplodock` from a copy, and modules from the folders `more`."""
    paths = (copy.parent, *more)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "DEPLODOCK_RECORDS": "none"}


def declared_entry_points(example: Path) -> str:
    """Returns the entry points in `example/pyproject.toml`, in the format of entry_points.txt."""
    groups = tomllib.loads((example / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    return "".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in groups.items()
    )


def install_package(site: Path, name: str, entry_points: str, *modules: Path) -> None:
    """Puts a package into a folder of `PYTHONPATH` in the form in which pip installs it.

    Args:
        site: folder for the modules and the metadata.
        name: name of the package.
        entry_points: content of entry_points.txt.
        *modules: Python files to copy.
    """
    site.mkdir(parents=True, exist_ok=True)
    for module in modules:
        shutil.copy(module, site)
    info = site / f"{name}-0.1.0.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.1.0\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")


@dataclass(frozen=True)
class Checkout:
    """A folder under git, whose changes since the last commit are counted."""

    folder: Path

    def __post_init__(self) -> None:
        self._git("init", "-q")
        self.commit()

    def _git(self, *words: str) -> str:
        author = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "core.autocrlf=false")
        command = ["git", "-C", str(self.folder), *author, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def commit(self) -> None:
        """Commits the present state; later changes are counted from it."""
        self._git("add", "-A")
        self._git("commit", "-q", "-m", "state")

    def changes(self) -> dict[str, str]:
        """Returns the change of each changed file: its line counts as `+added -deleted`, or `new`, or `deleted`."""
        self._git("add", "-A")
        words = {"A": "new", "D": "deleted"}
        lines = self._git("diff", "--cached", "--numstat", "--no-renames").splitlines()
        kinds = dict(
            reversed(line.split("\t", 1))
            for line in self._git("diff", "--cached", "--name-status", "--no-renames").splitlines()
        )
        counts = {path: f"+{added} -{deleted}" for added, deleted, path in (line.split("\t") for line in lines)}
        return {path: words.get(kinds[path], count.removesuffix(" -0")) for path, count in counts.items()}
