"""The C++ compilers of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

GNU, CLANG = "Free Software Foundation", "clang"
"""What versions of g++ and clang say."""


def find_compiler(names: Sequence[str], makers: Mapping[str, str]) -> str | None:
    """The path of the first compiler, of what CXX says and then of `names`, whose version says a key of `makers` and
    which links with the option that stands there (if that is not empty); None if there is no such compiler."""
    for name in (os.environ.get("CXX", ""), *names):
        path = shutil.which(name) if name else None
        version = told(path, "--version") if path else ""
        for maker, option in makers.items():
            if path and maker in version and (not option or _links(path, option)):
                return path
    return None


def _links(path: str, option: str) -> bool:
    """Whether a compiler makes a shared object with an option: it knows of libraries that may not be installed."""
    command = [path, option, "-shared", "-x", "c++", os.devnull, "-o", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def told(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
