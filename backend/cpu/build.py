"""Compile printed C++ for this machine, once: shared objects are kept in a folder of the user's own."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from ...errors import ExecutionError
from ..build_cache import cached_file, digest
from ..emulator.build import host_compiler

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
        command = [host_compiler(), *flags, "-o", str(target), str(source), "-lm"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise ExecutionError(f"g++ does not compile the C++: {result.stderr[:2000]}", operator="cpu")

    return cached_file("cpu", name, make)


@cache
def _known(march: str) -> str:
    """The compiler and what it makes of `march` here: what is built for one processor is not loaded on another."""
    asked = ([host_compiler(), "--version"], [host_compiler(), f"-march={march}", "-Q", "--help=target"])
    return "".join(subprocess.run(a, capture_output=True, text=True, check=False).stdout for a in asked)
