"""Compile printed C++ for this machine, once: shared objects are kept in a folder of the user's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from ...errors import ExecutionError
from ..build_cache import cached_file, digest

FLAGS = (
    *("-std=c++17", "-O3", "-fopenmp", "-fPIC", "-shared", "-w", "-fno-exceptions", "-fno-rtti"),
    # Integers wrap; nobody looks at errno or at floating-point exceptions; only what is written fused is.
    *("-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fno-strict-aliasing"),
)


def build(text: str, march: str = "native") -> Path:
    """The shared object of a printed program, for processors that `march` names as g++ does.

    Raises ExecutionError if there is no g++, or if the text does not compile."""
    flags = (*FLAGS, f"-march={march}")
    name = digest(text, _known(march), *flags) + ".so"

    def make(target: Path) -> None:
        source = target.parent / "program.cpp"
        source.write_text(text)
        command = [compiler(), *flags, "-o", str(target), str(source), "-lm"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            name = Path(command[0]).name
            raise ExecutionError(f"{name} does not compile the C++: {result.stderr[:2000]}", operator="cpu")

    return cached_file("cpu", name, make)


@cache
def compiler() -> str:
    """The path of a compiler for C++: what CXX says, if that is one of g++ and clang, else g++, else clang.

    Raises ExecutionError if there is none."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        path = shutil.which(name) if name else None
        if path and any(maker in _told(path, "--version") for maker in ("Free Software Foundation", "clang")):
            return path
    raise ExecutionError("a C++ compiler is needed for programs for the CPU; install one (apt: g++)")


@cache
def _known(march: str) -> str:
    """The compiler and what it makes of `march` here: what is built for one processor is not loaded on another."""
    name = compiler()
    return _told(name, "--version") + _told(name, f"-march={march}", "-dM", "-E", "-x", "c++", os.devnull)


def _told(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
