"""Compiles CUDA to cubins with NVRTC, which needs no GPU, and reads the log of the compiler.

Kernels are compiled separately and in parallel. The cache key of a kernel is its text, the options and the compiler.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from ....errors import CompileError, ExecutionError, TargetError
from ....target.attribute import get_target
from ....target.host import cores
from ....target.model import Target
from ...host.build_cache import cached_bytes, digest
from ...host.compiler import first_error
from ..kernel_texts import KERNEL_FILE, KernelText, MachineCode, kernel_texts, pack
from .driver import Version

FLAGS = ("--std=c++17", "--ptxas-options=-v", "--restrict", "--device-as-default-execution-space")
"""Flags of every compilation. Fast math is off, so that results are rounded as PyTorch rounds them."""

LINES = ("-lineinfo",)
"""Additional flags for machine code with the lines of the kernel's text. They do not change the instructions."""

UNCACHED = ("-no-cache",)
"""Additional flags from NVRTC 13.0 on. They disable its cache, because logs of cached results lack register counts."""


@dataclass(frozen=True)
class KernelUse:
    """Resources of one kernel: registers per thread; spilled, stack and static shared memory in bytes."""

    registers: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    stack: int = 0
    shared: int = 0

    @property
    def spills(self) -> int:
        return self.spill_stores + self.spill_loads


@dataclass(frozen=True)
class Compiled:
    """Machine code of a module.

    Attributes:
        arch: architecture.
        cubin: machine code of all kernels (`kernel_texts.unpack`).
        log: log of the compiler.
        kernels: resources of each kernel, by name.
        warnings: lines of the log with performance warnings of ptxas (C75xx).
    """

    arch: str
    cubin: bytes
    log: str
    kernels: dict[str, KernelUse]
    warnings: tuple[str, ...]


def compile_cubin(
    source: str,
    arch: str,
    name: str = "kernels.cu",
    *,
    cached: bool = True,
    lines: bool = False,
    only: Collection[str] | None = None,
) -> Compiled:
    """Compiles CUDA C++. Each kernel is compiled separately, in parallel, and equal kernels once.

    Args:
        source: the text.
        arch: architecture, such as `sm_90a`.
        name: name of the text in messages.
        cached: whether to cache results. NVRTC is not loaded if all kernels are cached.
        lines: whether the machine code has the lines of the text (`disassembly.disassemble`).
        only: names of the kernels to compile; default: all.

    Raises:
        TargetError: for an unknown arch.
        ExecutionError: if NVRTC is not installed.
        CompileError: if the compiler refuses the text, with its first message.
    """
    if not check_arch(arch).has("cluster") and "__cluster_dims__" in source:
        raise TargetError(f"{arch} has no clusters of blocks", argument="arch")
    texts = [t for t in kernel_texts(source) if only is None or not t.entries.keys().isdisjoint(only)]
    flags = (f"--gpu-architecture={arch}", *(LINES if lines else ()))
    files = _compile_all(texts, flags, name, "cubin", cached, lines)
    results = {text: file.partition(b"\0")[::2] for text, file in files.items()}
    whole = "\n".join(log.decode(errors="replace") for log, _ in results.values())
    uses = kernel_uses(whole)
    entries = [(kernel, entry, results[text.text][1]) for text in texts for kernel, entry in text.entries.items()]
    code = {kernel: MachineCode(cubin, entry) for kernel, entry, cubin in entries}
    warnings = tuple(line.strip() for line in whole.splitlines() if re.search(r"\bC75\d\d\b", line))
    return Compiled(arch, pack(code), whole, {kernel: uses[entry] for kernel, entry, _ in entries}, warnings)


def compile_ptx(source: str, arch: str) -> dict[str, str]:
    """Returns the PTX of each kernel of a CUDA text by name. Raises as `compile_cubin`."""
    check_arch(arch)
    texts = kernel_texts(source)
    files = _compile_all(texts, (f"--gpu-architecture={arch.replace('sm_', 'compute_')}",), "", "ptx")
    return {
        kernel: files[text.text].rstrip(b"\0").decode().replace(entry, kernel)
        for text in texts
        for kernel, entry in text.entries.items()
    }


def _compile_all(
    texts: Sequence[KernelText],
    flags: tuple[str, ...],
    name: str,
    kind: str,
    cached: bool = True,
    lines: bool = False,
) -> dict[str, bytes]:
    """Compiles the different texts in parallel.

    Args:
        texts: texts of kernels.
        flags: flags in addition to `FLAGS`.
        name: name of the module's text in messages.
        kind: `cubin` or `ptx`; also the folder of the cache.
        cached: whether to cache results.
        lines: whether machine code refers to lines of the kernel, which equal kernels of several modules share.

    Returns:
        by text, the file that `_compile` returns.

    Raises:
        ExecutionError, CompileError: as `compile_cubin`.
    """
    flags = (*flags, *FLAGS, *(UNCACHED if compiler_build()[0] >= (13, 0) else ()))
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", name) or "kernels.cu"
    different = list({t.text: t for t in texts}.values())

    def compiled(text: KernelText) -> bytes:
        def make() -> bytes:
            return _compile(text.with_lines(KERNEL_FILE, 1) if lines else text.with_lines(name), flags, name, kind)

        key = f"{digest(text.text, *flags, compiler_build()[1])}.bin" if cached else ""
        return cached_bytes(kind, key, make) if cached else make()

    with ThreadPoolExecutor(max(1, min(cores(), len(different))), "nvrtc") as threads:
        return dict(zip((t.text for t in different), threads.map(compiled, different), strict=True))


def check_arch(arch: str) -> Target:
    """Returns the target of an architecture. Raises TargetError for an unknown name."""
    if not re.fullmatch(r"sm_[0-9]{2,3}[a-f]?", arch):
        raise TargetError(f"expected an architecture such as sm_90a, but got {arch!r}", argument="arch")
    return get_target(arch)


@cache
def _nvrtc() -> ModuleType:
    """Returns the Python binding of NVRTC, with its library loaded. Raises ExecutionError if NVRTC is not installed."""
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
    """Returns the version and build of NVRTC, from the installed packages or the library.

    The build is a part of cache keys.

    Raises:
        ExecutionError: if NVRTC is not installed.
    """
    try:
        bindings = metadata.version("cuda-bindings")
        major = bindings.partition(".")[0]
        build = metadata.version("nvidia-cuda-nvrtc" + ("-cu12" if major == "12" else ""))
        _, minor, *_ = build.split(".")
        return (int(major), int(minor)), f"{build} {bindings}"
    except (metadata.PackageNotFoundError, ValueError):
        pass
    _, major, minor = _nvrtc().nvrtcVersion()
    with suppress(OSError):  # a system without /proc
        maps = Path("/proc/self/maps").read_text()
        library = Path("/" + next(line for line in maps.splitlines() if "libnvrtc.so" in line).partition("/")[2])
        status = library.resolve().stat()
        return (major, minor), f"{library.resolve()} {status.st_size} {status.st_mtime_ns}"
    return (major, minor), f"{major}.{minor}"


def nvrtc_version() -> str:
    return "{}.{}".format(*compiler_build()[0])


def _compile(source: str, flags: tuple[str, ...], name: str, kind: str = "cubin") -> bytes:
    """Compiles a text. Returns PTX, or for a cubin the log, a zero byte and the cubin as one file."""
    nvrtc = _nvrtc()
    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))[0]
    try:
        result = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])[0]
        log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0")
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            reason, location = first_error(log.decode(errors="replace") or str(result))
            raise CompileError(f"the CUDA compiler refuses the text: {reason}", operator="nvrtc", location=location)
        if kind == "ptx":
            return _read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
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


_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def kernel_uses(log: str) -> dict[str, KernelUse]:
    """Parses the resources of each kernel in the log of `--ptxas-options=-v`."""
    uses = dict[str, KernelUse]()
    for part in log.split("Compiling entry function '")[1:]:
        # The log has a stack frame for the kernel and one for each function that it calls.
        frames, used = _FRAME.findall(part), _USED.search(part)
        stack, stores, loads = (sum(map(int, column)) for column in zip(*frames)) if frames else (0, 0, 0)
        registers, shared = (int(used[1]), int(used[2] or 0)) if used else (0, 0)
        uses[part.partition("'")[0]] = KernelUse(registers, stores, loads, stack, shared)
    return uses
