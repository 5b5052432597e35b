"""The C++ compilers of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence


def find_compiler(names: Sequence[str], makers: Sequence[str]) -> str | None:
    """The path of the first compiler, of what CXX says and then of `names`, that names one of `makers` in its version;
    None if there is none."""
    for name in (os.environ.get("CXX", ""), *names):
        path = shutil.which(name) if name else None
        if path and any(maker in told(path, "--version") for maker in makers):
            return path
    return None


def told(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
