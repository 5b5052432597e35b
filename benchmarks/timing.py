"""What a whole call takes on a GPU by the host's clock, side by side, and what numbers depend on.

Device time is measured by `deplodock.backend.cuda.runtime.timing`.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from deplodock.backend.cuda.runtime.timing import Arms, Timing


def whole_calls(arms: Arms, repetitions: int = 200) -> dict[str, Timing]:
    """Seconds from the start of a call until its result is there, by the host's clock; the arms take turns."""
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for i in range(repetitions + 10):
        for name, arm in arms.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            arm()
            torch.cuda.synchronize()
            if i >= 10:
                samples[name].append(time.perf_counter() - start)
    return {name: Timing.of(s) for name, s in samples.items()}


def environment() -> dict[str, Any]:
    """What numbers depend on: the GPU if there is one, the processor, what `deplodock doctor --measure` found of its
    cores, versions, the commit."""
    processor = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    import deplodock
    from deplodock.dialects.cores import read_measured

    cores = read_measured()
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "processor": f"{len(processor)} x {processor[0]}" if processor else "unknown",
        "cores": None if cores is None else asdict(cores),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "deplodock": deplodock.__version__,
        "xdsl": version("xdsl"),
        "commit": commit,
    }


def _lines(file: str) -> list[str]:
    path = Path(file)
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
