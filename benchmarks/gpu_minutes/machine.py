"""The machine: its GPU, versions, and packages that come from the bundle because the machine lacks them."""

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
"""Modules, and their names for pip."""

CARRIED = ("xdsl", "immutabledict", "ordered_set", "safetensors")
"""Modules whose wheels are in the bundle: they fit every Python from 3.11 on."""

QUERY = "name,driver_version,memory.total,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu,compute_mode"


def provide(wheels: Path, site: Path) -> list[str]:
    """Unpacks the wheels of modules that the machine lacks, and puts the checkout beside them.

    Args:
        wheels: folder of wheels, which may be absent.
        site: folder to unpack to; it becomes part of `sys.path`.

    Returns:
        Names, for pip, of the modules that are missing all the same.
    """
    site.mkdir(parents=True, exist_ok=True)
    if not (site / "deplodock").exists():
        (site / "deplodock").symlink_to(Path(__file__).resolve().parent.parent.parent)
    sys.path.append(str(site))
    for module in CARRIED:
        name = NEEDED[module].partition("=")[0].replace("-", "_")
        for wheel in wheels.glob(f"{name}-*.whl") if not _there(module) else ():
            zipfile.ZipFile(wheel).extractall(site)
    importlib.invalidate_caches()
    return _missing()


def _missing() -> list[str]:
    missing = [name for module, name in NEEDED.items() if not _there(module)]
    if "cuda-bindings" not in missing:
        code = "from cuda.bindings import nvrtc; raise SystemExit(int(nvrtc.nvrtcVersion()[0]) != 0)"
        if subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode:
            missing.append("nvidia-cuda-nvrtc")
    return missing


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def card() -> dict[str, str]:
    """Returns the first GPU, by nvidia-smi. Without that tool, or a GPU, its name is `unknown`."""
    if shutil.which("nvidia-smi") is None:
        return {"name": "unknown"}
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except subprocess.TimeoutExpired:
        return {"name": "unknown"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"name": "unknown"}
    values = [v.strip() for v in lines[0].split(",")]
    return dict(zip(QUERY.split(","), values, strict=False))


def versions() -> dict[str, Any]:
    """Returns everything that results depend on. An entry that cannot be read holds the reason."""
    tests = {
        "card": card,
        "commit": lambda: _output("git", "rev-parse", "HEAD"),
        "torch": lambda: importlib.import_module("torch").__version__,
        "driver": lambda: "{}.{}".format(*_of("deplodock.backend.cuda.runtime.driver", "driver_version")()),
        "nvrtc": lambda: _of("deplodock.backend.cuda.runtime.nvrtc", "nvrtc_version")(),
        "runtime of torch": lambda: str(importlib.import_module("torch").version.cuda),
        "cupy": lambda: importlib.import_module("cupy").__version__,
        "triton": lambda: importlib.import_module("triton").__version__,
        "python": lambda: sys.version.split()[0],
        "device of torch": _device_of_torch,
        "processors": lambda: len(__import__("os").sched_getaffinity(0)),
    }
    return {name: _guarded(test) for name, test in tests.items()}


def _of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _device_of_torch() -> dict[str, Any]:
    properties = importlib.import_module("torch").cuda.get_device_properties(0)
    names = ("name", "major", "minor", "multi_processor_count", "total_memory", "L2_cache_size")
    return {n: getattr(properties, n, None) for n in names}


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return (done.stdout or done.stderr).strip()


def _guarded(test: Any) -> Any:
    try:
        return test()
    except Exception as error:  # a version that cannot be read is an answer
        return f"not known: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
