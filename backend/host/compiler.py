"""Search for a C++ compiler on the local machine, and calls of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from ...errors import ExecutionError

GNU, CLANG = "Free Software Foundation", "clang"
"""Texts by which the outputs of `g++ --version` and `clang --version` are recognised."""

OPENMP = {GNU: "", CLANG: "-fopenmp"}
"""Compiler -> option that `find_compiler` tests, or "": clang may lack the OpenMP library, g++ always has it."""


def find_compiler(names: Sequence[str], makers: Mapping[str, str]) -> str | None:
    """Returns the path of the first usable compiler, or None.

    Args:
        names: names to try after the environment variable CXX.
        makers: supported compilers, by the text that recognises their version (`GNU`, `CLANG`) -> option with which the
            compiler must be able to link, or "".
    """
    for name in (os.environ.get("CXX", ""), *names):
        path = shutil.which(name) if name else None
        version = output_of(path, "--version") if path else ""
        for maker, option in makers.items():
            if path and maker in version and (not option or _links(path, option)):
                return path
    return None


def _links(path: str, option: str) -> bool:
    """Returns true if a compiler links a shared object with an option, whose libraries may be missing."""
    command = [path, option, "-shared", "-x", "c++", os.devnull, "-o", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def run_compiler(*arguments: str, emulator: bool = False) -> None:
    """Runs the compiler. Raises ExecutionError with the first error of its output."""
    path = compiler(emulator)
    result = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        reason, location = first_error(result.stderr)
        raise ExecutionError(f"does not compile the text: {reason}", operator=Path(path).name, location=location)


_ERROR = re.compile(
    r"(?P<file>.+?)(?::(?P<place>\d+(?::\d+)?)|\((?P<line>\d+)\)): (?:\w+ )?error(?: #\S+)?: (?P<text>.*)"
)
"""Error of g++ and clang (`k.cpp:3:5: error: ...`), or of NVRTC (`k.cu(3): error: ...`)."""


def first_error(log: str) -> tuple[str, str | None]:
    """Returns the first error in the output of a compiler, and its place (`k.cpp:3:5`) if the output has one."""
    lines = log.splitlines() or ["no message"]
    if match := next(filter(None, map(_ERROR.match, lines)), None):
        return match["text"], f"{match['file']}:{match['place'] or match['line']}"
    return next((line for line in lines if "error" in line), lines[0]).strip(), None


@cache
def compiler(emulator: bool = False) -> str:
    """Returns the path of a C++ compiler with OpenMP: CXX, g++ or clang.

    Args:
        emulator: whether it compiles for the emulator, which needs g++, with or without OpenMP.

    Raises:
        ExecutionError: if there is none.
    """
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
def compiler_identity(march: str) -> str:
    """Returns the version of the compiler and its macros for `march`.

    It is a part of cache keys, so that code for one processor is not loaded on another.
    """
    name = compiler()
    return output_of(name, "--version") + output_of(name, f"-march={march}", "-dM", "-E", "-x", "c++", os.devnull)
