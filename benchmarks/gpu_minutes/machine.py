"""Reads the GPU and the versions of a machine, and installs Python packages from the bundle that the machine lacks."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NEEDED = {
    "torch": "torch",
    "cupy": "cupy-cuda13x",
    "cuda.bindings": "cuda-bindings",
    "xdsl": "xdsl==0.74.0",
    "immutabledict": "immutabledict",
    "ordered_set": "ordered-set",
    "safetensors": "safetensors",
    "numpy": "numpy",
    "ml_dtypes": "ml_dtypes",
    "click": "click",
    "rich": "rich",
    "pytest": "pytest",
}
"""Required module -> its package for pip."""

BUNDLED = ("xdsl", "immutabledict", "ordered_set", "safetensors")
"""Modules whose wheels are in the bundle. They work with every Python from 3.11 on."""

GPU_FIELDS = (
    "name,driver_version,memory.total,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu,compute_mode"
)


def provide(wheels: Path, site: Path) -> list[str]:
    """Unpacks the wheels of modules that the machine lacks, and makes `deplodock` importable from the checkout.

    Args:
        wheels: folder of wheels, which may be absent.
        site: folder for the unpacked packages; it is added to `sys.path`.

    Returns:
        Packages, by their names for pip, that are still missing.
    """
    site.mkdir(parents=True, exist_ok=True)
    if not (site / "deplodock").exists():
        (site / "deplodock").symlink_to(Path(__file__).resolve().parent.parent.parent)
    sys.path.append(str(site))
    for module in BUNDLED:
        name = NEEDED[module].partition("=")[0].replace("-", "_")
        for wheel in wheels.glob(f"{name}-*.whl") if not _importable(module) else ():
            zipfile.ZipFile(wheel).extractall(site)
    importlib.invalidate_caches()
    return _missing()


def _missing() -> list[str]:
    missing = [name for module, name in NEEDED.items() if not _importable(module)]
    if "cuda-bindings" not in missing:
        code = "from cuda.bindings import nvrtc; raise SystemExit(int(nvrtc.nvrtcVersion()[0]) != 0)"
        if subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode:
            missing.append("nvidia-cuda-nvrtc")
    return missing


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def card() -> dict[str, str]:
    """Returns the properties of the first GPU from nvidia-smi; the name is `unknown` without that tool or a GPU."""
    if shutil.which("nvidia-smi") is None:
        return {"name": "unknown"}
    command = ["nvidia-smi", f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except subprocess.TimeoutExpired:
        return {"name": "unknown"}
    lines = process.stdout.splitlines()
    if process.returncode or not lines:
        return {"name": "unknown"}
    values = [v.strip() for v in lines[0].split(",")]
    return dict(zip(GPU_FIELDS.split(","), values, strict=False))


def versions() -> dict[str, Any]:
    """Returns the versions and properties that results depend on. An entry that cannot be read has the reason."""
    readers = {
        "card": card,
        "commit": lambda: _output("git", "rev-parse", "HEAD"),
        "torch": lambda: importlib.import_module("torch").__version__,
        "driver": lambda: "{}.{}".format(*_attribute("deplodock.backend.cuda.runtime.driver", "driver_version")()),
        "nvrtc": lambda: _attribute("deplodock.backend.cuda.runtime.nvrtc", "nvrtc_version")(),
        "runtime of torch": lambda: str(importlib.import_module("torch").version.cuda),
        "cupy": lambda: importlib.import_module("cupy").__version__,
        "triton": lambda: importlib.import_module("triton").__version__,
        "python": lambda: sys.version.split()[0],
        "device of torch": _device_of_torch,
        "processors": lambda: len(__import__("os").sched_getaffinity(0)),
    }
    return {name: _value_or_error(read) for name, read in readers.items()}


def _attribute(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _device_of_torch() -> dict[str, Any]:
    properties = importlib.import_module("torch").cuda.get_device_properties(0)
    names = ("name", "major", "minor", "multi_processor_count", "total_memory", "L2_cache_size")
    return {n: getattr(properties, n, None) for n in names}


def _output(*command: str) -> str:
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return (process.stdout or process.stderr).strip()


def _value_or_error(read: Any) -> Any:
    try:
        return read()
    except Exception as error:  # The reason is recorded instead of the version.
        return f"not known: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
