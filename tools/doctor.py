"""`deplodock doctor`: lists the tools and devices that programs need to be compiled, run and timed."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from ..errors import one_line


def measure_cores() -> None:
    """Measures the memory and arithmetic rates of this CPU and stores them for the planner. Raises ExecutionError."""
    from ..backend.cpu.measure import measure
    from ..backend.host.build_cache import cache_folder
    from ..target.host import measured_file

    cores = measure()
    cache_folder("cpu")
    measured_file().write_text(cores.written())


def examine() -> dict[str, str]:
    """Returns the version or description of each tool and device, or the reason why it cannot be used."""
    from ..backend.cpu.disassembly import objdump
    from ..backend.cuda.runtime.disassembly import nvdisasm
    from ..backend.cuda.runtime.nvrtc import nvrtc_version
    from ..backend.host.compiler import compiler

    checks: dict[str, Callable[[], str]] = {
        "python": platform.python_version,
        "deplodock": lambda: version("deplodock"),
        "xdsl": lambda: version("xdsl"),
        "torch": lambda: version("torch"),
        "GPU": _gpu,
        "CuPy": _cupy,
        "NVRTC": nvrtc_version,
        "nvdisasm": lambda: _tool(nvdisasm()),
        "nvcc": lambda: _tool("nvcc"),
        "C++ compiler": lambda: _tool(compiler()),
        "objdump": lambda: _tool(objdump()),
        "calls": _calls,
        "cores": _cores,
        "measured": _measured,
        "kernel cache": _cache,
    }
    return {name: _guarded(check) for name, check in checks.items()}


def _guarded(check: Callable[[], str]) -> str:
    try:
        return check()
    except PackageNotFoundError:
        return "not installed"
    except Exception as error:  # The reason is listed instead of the version.
        return f"not usable: {one_line(error)}"


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return "none: programs run on the CPU, compiled to C++, or else in the reference interpreter"
    properties = torch.cuda.get_device_properties(0)
    return f"{properties.name}, sm_{properties.major}{properties.minor}, {properties.multi_processor_count} SMs"


def _cupy() -> str:
    try:
        import cupy  # pyright: ignore[reportMissingImports]
    except ImportError:
        return "not installed (needed to run on a GPU: pip install 'deplodock[cuda]')"
    return str(cupy.__version__)


def _calls() -> str:
    from ..backend.host.calls import load_extension

    load_extension()
    return "of programs for the CPU need no Python from the second on"


def _cores() -> str:
    from ..target.host import caches, cores, processor

    sizes = [f"{name} {size >> 10} KB" for name, size in caches().items()]
    return ", ".join([f"{cores()} of {processor()}", *sizes])


def _measured() -> str:
    from ..target.host import read_measured

    if (m := read_measured()) is None:
        return "nothing: the planner takes what is common for such cores (`deplodock doctor --measure`)"
    rates = f"copy {m.copy / 1e9:.1f} GB/s, read {m.read / 1e9:.1f} GB/s, {m.fma / 1e9:.0f} GFLOP/s"
    return f"{rates}, a core from {m.streams} places in turn"


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        return "not installed"
    text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    lines = [line for line in text.splitlines() if "release" in line or "g++" in line] or text.splitlines()
    return lines[0].strip() if lines else path


def _cache() -> str:
    from ..backend.host.build_cache import cache_folder

    folder = cache_folder("cubin").parent
    files = [f for f in folder.rglob("*") if f.is_file()] if folder.is_dir() else []
    return f"{folder}, {len(files)} files, {sum(f.stat().st_size for f in files) / 1e6:.1f} MB"
