"""Copies of the library that tests change, and what a change touches."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import ROOT

LIBRARY = ("backend", "dialects", "extras", "frontend", "passes", "target", "tools")
"""Folders of the library."""


def copy_library(folder: Path, *more: str) -> Path:
    """Returns `folder/deplodock`, a copy of the library, its project file and the files or folders `more`."""
    copy = folder / "deplodock"
    for part in (*LIBRARY, *more):
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


@dataclass(frozen=True)
class Checkout:
    """A folder under git, in which changes are counted."""

    folder: Path

    def __post_init__(self) -> None:
        self._git("init", "-q")
        self.commit()

    def _git(self, *words: str) -> str:
        who = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "core.autocrlf=false")
        command = ["git", "-C", str(self.folder), *who, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def commit(self) -> None:
        """Makes the present state the one that changes are counted from."""
        self._git("add", "-A")
        self._git("commit", "-q", "-m", "state")

    def changes(self) -> dict[str, str]:
        """Returns what the diff of each touched file says: `+added -deleted lines`, `new` or `deleted`."""
        self._git("add", "-A")
        words = {"A": "new", "D": "deleted"}
        lines = self._git("diff", "--cached", "--numstat", "--no-renames").splitlines()
        kinds = dict(
            reversed(line.split("\t", 1))
            for line in self._git("diff", "--cached", "--name-status", "--no-renames").splitlines()
        )
        counts = {path: f"+{added} -{deleted}" for added, deleted, path in (line.split("\t") for line in lines)}
        return {path: words.get(kinds[path], count.removesuffix(" -0")) for path, count in counts.items()}
