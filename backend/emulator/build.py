"""Compile emulated programs with the host's g++, once: shared objects are kept in a folder of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from ..host.build_cache import cached_file, digest
from ..host.compiler import compiler, run_compiler, told
from .host_text import host_text, translation_unit

_HERE = Path(__file__).parent
PLAIN = ("-U_FORTIFY_SOURCE",)
"""Undoes a default of some distributions, with which g++ checks longjmp, which then aborts the process where one
thread's stack is left for another's, and replaces memcpy by a function whose accesses are not seen."""

_RUNTIME_FLAGS = ("-std=c++17", "-O2", "-g1", "-fPIC", "-fvisibility=default", *PLAIN)
_DEVICE_FLAGS = (
    *("-std=c++17", "-O1", "-gdwarf-4", "-g1", "-fPIC", "-w", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden"),
    *PLAIN,
    # Every memory access becomes a call of the runtime, which defines what -fsanitize=thread only declares.
    *("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0"),
    # An index outside of a thread's own array, which is no memory of the runtime, calls it too, and so does any access,
    # to whatever memory, at an address that is not aligned to its type, and what C++ leaves undefined for integers.
    "-fsanitize=bounds,alignment,integer-divide-by-zero,shift-exponent",
    # The arithmetic of CUDA: integers wrap, nothing is contracted that isn't written so, pointers may be cast.
    *("-fwrapv", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-delete-null-pointer-checks"),
    # A variable that is read before it is written reads as something that shows; return addresses name the line.
    *("-ftrivial-auto-var-init=pattern", "-fno-optimize-sibling-calls"),
)


_LINK = ("-shared", "-Wl,-Bsymbolic", "-Wl,-z,noexecstack")
_compile = partial(run_compiler, emulator=True)


def build(sources: Sequence[str]) -> Path:
    """The shared object for these programs, to be used with that of `runtime_library`.

    Raises ExecutionError if the text does not compile.
    """
    return _build(translation_unit(sources), ".so", *_LINK)


def build_standalone(source: str) -> Path:
    """The executable of a standalone program. Raises ExecutionError if the text does not compile."""
    return _build(host_text(source, standalone=True), "", str(_runtime_object()), "-ldl")


def _build(text: str, suffix: str, *how: str) -> Path:
    """What is linked of a text and what the flags `how` say besides."""
    name = digest(text, _runtime_object().stem, suffix, *_DEVICE_FLAGS) + suffix

    def make(target: Path) -> None:
        unit, compiled = target.parent / "unit.cpp", target.parent / "unit.o"
        unit.write_text(text)
        _compile(*_DEVICE_FLAGS, f"-I{_HERE}", "-c", str(unit), "-o", str(compiled))
        _compile(str(compiled), *how, "-lm", "-o", str(target))

    return cached_file("emulator", name, make)


def runtime_library() -> Path:
    """The shared object that launches kernels, and that the code of all programs calls."""
    runtime = _runtime_object()
    how = (*_LINK, str(runtime), "-ldl", "-o")
    return cached_file("emulator", f"{runtime.stem}.so", lambda target: _compile(*how, str(target)))


@cache
def _runtime_object() -> Path:
    """The compiled runtime; its name is the digest of its sources and of the compiler."""
    files = sorted(p for p in _HERE.iterdir() if p.suffix in (".h", ".cpp"))
    key = digest(told(compiler(emulator=True), "--version"), *_RUNTIME_FLAGS, *(p.read_text() for p in files))
    how = (*_RUNTIME_FLAGS, "-c", str(_HERE / "runtime.cpp"), "-o")
    return cached_file("emulator", f"{key}.o", lambda target: _compile(*how, str(target)))
