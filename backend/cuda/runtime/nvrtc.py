"""Compiling CUDA text to cubins with NVRTC, which needs no GPU, and reading what the compiler says about it.

Kernels are compiled one by one, at the same time, and kept one by one: by text, options and compiler.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from ....errors import CompileError, ExecutionError, TargetError
from ....target.architectures import get_target
from ....target.host import cores
from ....target.model import Target
from ...host.build_cache import cached_bytes, digest
from ..kernel_texts import KernelText, kernel_texts
from ..machine_code import MachineCode, pack
from .driver import Version

FLAGS = ("--std=c++17", "--ptxas-options=-v", "--restrict", "--device-as-default-execution-space")
"""Flags of every compilation. No fast math: what PyTorch rounds, we round."""

UNCACHED = ("-no-cache",)
"""Flags from NVRTC 13.0 on. Where there is a GPU, NVRTC keeps what it compiles; for a text that it has compiled before
its log is empty, and registers and spills of the kernels are unknown."""


@dataclass(frozen=True)
class KernelUse:
    """What one kernel takes: registers of a thread, bytes it spilled and has on the stack, static shared memory."""

    registers: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    stack: int = 0
    shared: int = 0

    @property
    def spills(self) -> int:
        """Bytes of registers that did not fit, stored or loaded."""
        return self.spill_stores + self.spill_loads


@dataclass(frozen=True)
class Compiled:
    """The machine code of a module for `arch` (`machine_code.unpack` gives the kernels), the compiler's log, and each
    kernel's use of resources by its name.

    `warnings` are lines of the log that say that code was compiled worse than it was written (C75xx).
    """

    arch: str
    cubin: bytes
    log: str
    kernels: dict[str, KernelUse]
    warnings: tuple[str, ...]


def compile_cubin(source: str, arch: str, name: str = "kernels.cu", *, cached: bool = True) -> Compiled:
    """Compile CUDA C++ for `arch` (`"sm_90a"`), equal kernels once.

    `name` is what messages call the text. Results are kept in a folder of the user's unless `cached` is false; where
    all are there, NVRTC is not even loaded. Raises TargetError for an unknown arch; ExecutionError where NVRTC is not
    installed; CompileError with the compiler's first message if it refuses the text.
    """
    if "__cluster_dims__" in source and not check_arch(arch).has("cluster"):
        raise TargetError(f"{arch} has no clusters of blocks", argument="arch")
    check_arch(arch)
    flags = (f"--gpu-architecture={arch}", *FLAGS, *(UNCACHED if compiler_build()[0] >= (13, 0) else ()))
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", name) or "kernels.cu"
    texts = kernel_texts(source)
    different = list({t.text: t for t in texts}.values())

    def compiled(text: KernelText) -> tuple[str, bytes]:
        def make() -> bytes:
            return _compile(text.with_lines(name), flags, name)

        key = f"{digest(text.text, *flags, compiler_build()[1])}.bin" if cached else ""
        log, _, cubin = (cached_bytes("cubin", key, make) if cached else make()).partition(b"\0")
        return log.decode(errors="replace"), cubin

    made = dict(zip((t.text for t in different), _at_once(compiled, different), strict=True))
    uses: dict[str, KernelUse] = {}
    code: dict[str, MachineCode] = {}
    for text in texts:
        log, cubin = made[text.text]
        found = kernel_uses(log)
        for kernel, entry in text.entries.items():
            uses[kernel], code[kernel] = found[entry], MachineCode(cubin, entry)
    whole = "\n".join(log for log, _ in made.values())
    return Compiled(arch, pack(code), whole, uses, _warnings(whole))


def _at_once(
    compiled: Callable[[KernelText], tuple[str, bytes]], texts: Sequence[KernelText]
) -> list[tuple[str, bytes]]:
    """Each of them compiled, as many at the same time as there are cores; the first error in their order is raised."""
    if len(texts) < 2:
        return list(map(compiled, texts))
    with ThreadPoolExecutor(min(cores(), len(texts)), "nvrtc") as threads:
        return list(threads.map(compiled, texts))


def check_arch(arch: str) -> Target:
    """The target that `arch` names; raises TargetError for anything else."""
    if not re.fullmatch(r"sm_[0-9]{2,3}[a-f]?", arch):
        raise TargetError(f"{arch!r} is no architecture", argument="arch")
    return get_target(arch)


@cache
def _nvrtc() -> ModuleType:
    """The binding with its library loaded. Raises ExecutionError."""
    try:
        from cuda.bindings import nvrtc  # pyright: ignore[reportAttributeAccessIssue]

        nvrtc.nvrtcVersion()
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExecutionError(
            f"NVRTC is not available ({reason}): pip install cuda-bindings nvidia-cuda-nvrtc"
        ) from error
    return nvrtc


@cache
def compiler_build() -> tuple[Version, str]:
    """The version of NVRTC, major and minor, and which build of it compiles here: nothing that another one has made is
    taken for its work. The installed packages tell, or else the library, which is loaded for it. Raises ExecutionError
    where there is none."""
    try:
        bindings = metadata.version("cuda-bindings")
        major = bindings.partition(".")[0]
        build = metadata.version("nvidia-cuda-nvrtc" + ("-cu12" if major == "12" else ""))
        _, minor, *_ = build.split(".")
        return (int(major), int(minor)), f"{build} {bindings}"
    except (metadata.PackageNotFoundError, ValueError):
        pass
    _, major, minor = _nvrtc().nvrtcVersion()
    with suppress(OSError):  # where the system does not tell what is loaded
        maps = Path("/proc/self/maps").read_text()
        library = Path("/" + next(line for line in maps.splitlines() if "libnvrtc.so" in line).partition("/")[2])
        found = library.resolve().stat()
        return (major, minor), f"{library.resolve()} {found.st_size} {found.st_mtime_ns}"
    return (major, minor), f"{major}.{minor}"


def nvrtc_version() -> str:
    """The version of NVRTC as text (`"13.0"`). Raises ExecutionError where it is not installed."""
    return "{}.{}".format(*compiler_build()[0])


def _compile(source: str, flags: tuple[str, ...], name: str) -> bytes:
    """The log, a zero and the machine code."""
    nvrtc = _nvrtc()
    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))[0]
    try:
        result = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])[0]
        log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0")
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            text = log.decode(errors="replace").splitlines()
            lines = [line for line in text if "error" in line] or text or [str(result)]
            raise CompileError(f"the CUDA compiler refuses the text: {lines[0].strip()}", operator="nvrtc")
        return log + b"\0" + _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _read(size_of: Any, read: Any, program: Any) -> bytes:
    data = b" " * _checked(size_of(program))[0]
    _checked(read(program, data))
    return data


def _checked(result: tuple[Any, ...]) -> tuple[Any, ...]:
    if int(result[0]) != 0:
        raise ExecutionError(f"NVRTC failed: {result[0]}")
    return result[1:]


_ENTRY = re.compile(r"Compiling entry function '(?P<name>\w+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def kernel_uses(log: str) -> dict[str, KernelUse]:
    """What each kernel takes, from the log of `--ptxas-options=-v`."""
    found: dict[str, dict[str, int]] = {}
    current: dict[str, int] = {}
    for line in log.splitlines():
        if (match := _ENTRY.search(line)) is not None:
            current = found.setdefault(match["name"], {})
        elif (match := _FRAME.search(line)) is not None:
            current |= zip(("stack", "spill_stores", "spill_loads"), map(int, match.groups()), strict=True)
        elif (match := _USED.search(line)) is not None:
            current |= {"registers": int(match[1]), "shared": int(match[2] or 0)}
    return {name: KernelUse(**use) for name, use in found.items()}


def _warnings(log: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in log.splitlines() if re.search(r"\bC75\d\d\b", line))
