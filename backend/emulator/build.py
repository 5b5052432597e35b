"""Compile emulated programs with the host's g++, once: shared objects are kept in a folder of the user's own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from ...errors import ExecutionError
from ..build_cache import cache_folder
from .host_text import host_text, translation_unit

_HERE = Path(__file__).parent
_RUNTIME_FLAGS = ("-std=c++17", "-O2", "-g1", "-fPIC", "-fvisibility=default")
_DEVICE_FLAGS = (
    *("-std=c++17", "-O1", "-gdwarf-4", "-g1", "-fPIC", "-w", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden"),
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


@cache
def host_compiler() -> str:
    """The path of g++. Raises ExecutionError if there is none."""
    for name in (os.environ.get("CXX", ""), "g++"):
        path = shutil.which(name) if name else None
        if path and "Free Software Foundation" in _output([path, "--version"]):
            return path
    raise ExecutionError("the emulator needs g++ to compile the CUDA text for this machine; install it (apt: g++)")


def build(sources: Sequence[str]) -> Path:
    """The shared object for these programs, to be used with that of `runtime_library`.

    Raises ExecutionError if the text does not compile.
    """
    text = translation_unit(sources)
    runtime = _runtime_object()
    key = _digest(text, runtime.stem, *_DEVICE_FLAGS)
    return _kept(f"{key}.so", lambda target, folder: _compile_device(text, target, folder))


def build_standalone(source: str) -> Path:
    """The executable of a standalone program. Raises ExecutionError if the text does not compile."""
    text = host_text(source, standalone=True)
    runtime = _runtime_object()
    key = _digest(text, runtime.stem, "standalone", *_DEVICE_FLAGS)

    def compile_program(target: Path, folder: Path) -> None:
        unit = _compile_unit(text, folder)
        _run([host_compiler(), str(unit), str(runtime), "-lm", "-ldl", "-o", str(target)])

    return _kept(key, compile_program)


def _compile_unit(text: str, folder: Path) -> Path:
    unit = folder / "unit.cpp"
    unit.write_text(text)
    _run([host_compiler(), *_DEVICE_FLAGS, f"-I{_HERE}", "-c", str(unit), "-o", str(folder / "unit.o")])
    return folder / "unit.o"


def _compile_device(text: str, target: Path, folder: Path) -> None:
    _run([*_link(), str(_compile_unit(text, folder)), "-lm", "-o", str(target)])


def _link() -> list[str]:
    return [host_compiler(), "-shared", "-Wl,-Bsymbolic", "-Wl,-z,noexecstack"]


def runtime_library() -> Path:
    """The shared object that launches kernels, and that the code of all programs calls."""
    runtime = _runtime_object()
    return _kept(f"{runtime.stem}.so", lambda target, _: _run([*_link(), str(runtime), "-ldl", "-o", str(target)]))


@cache
def _runtime_object() -> Path:
    """The compiled runtime; its name is the digest of its sources and of the compiler."""
    files = sorted(p for p in _HERE.iterdir() if p.suffix in (".h", ".cpp"))
    key = _digest(_output([host_compiler(), "--version"]), *_RUNTIME_FLAGS, *(p.read_text() for p in files))
    command = [host_compiler(), *_RUNTIME_FLAGS, "-c", str(_HERE / "runtime.cpp")]
    return _kept(f"{key}.o", lambda target, folder: _run([*command, "-o", str(target)]))


def _kept(name: str, make: Callable[[Path, Path], None]) -> Path:
    """The file `name` of the cache, made by `make(target, scratch folder)` if it is missing or was changed."""
    folder = cache_folder("emulator")
    target, seal = folder / name, folder / f"{name}.sha256"
    if target.is_file() and seal.is_file() and seal.read_text() == _file_digest(target):
        return target
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / name
        make(made, Path(scratch))
        fresh_seal = Path(scratch) / "seal"
        fresh_seal.write_text(_file_digest(made))
        os.replace(made, target)
        os.replace(fresh_seal, seal)
    return target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise ExecutionError(f"the host compiler refuses the CUDA text: {errors[0] if errors else 'no message'}")


@cache
def _output_of(command: tuple[str, ...]) -> str:
    return subprocess.run(list(command), capture_output=True, text=True, check=False).stdout


def _output(command: list[str]) -> str:
    return _output_of(tuple(command))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
