"""The C++ compilers of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from ...errors import ExecutionError

GNU, CLANG = "Free Software Foundation", "clang"
"""What versions of g++ and clang say."""

OPENMP = {GNU: "", CLANG: "-fopenmp"}
"""What compilers need an installed library for: g++ comes with its OpenMP."""


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


def run_compiler(*arguments: str, emulator: bool = False) -> None:
    """Raises ExecutionError with the first error that the compiler tells."""
    path = compiler(emulator)
    result = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        lines = result.stderr.splitlines() or ["no message"]
        error = next((line for line in lines if "error" in line), lines[0])
        raise ExecutionError(f"does not compile the text: {error}", operator=Path(path).name)


@cache
def compiler(emulator: bool = False) -> str:
    """The path of a compiler for C++ with OpenMP: what CXX says, if that is one of g++ and clang, else g++, else clang.
    The `emulator` takes g++, with or without OpenMP.

    Raises ExecutionError if there is none."""
    names, makers = (("g++",), {GNU: ""}) if emulator else (("g++", "clang++"), OPENMP)
    if path := find_compiler(names, makers):
        return path
    needed = (
        "a C++ compiler with OpenMP is needed for programs for the CPU; install one (apt: g++, or clang and libomp-dev)"
    )
    raise ExecutionError(
        "g++ is needed to compile programs for this machine; install it (apt: g++)" if emulator else needed
    )


@cache
def known(march: str) -> str:
    """The compiler, and what it makes of `march` here: what is built for one processor is not loaded on another."""
    name = compiler()
    return told(name, "--version") + told(name, f"-march={march}", "-dM", "-E", "-x", "c++", os.devnull)
