"""What a whole call takes on a GPU by the host's clock, side by side, and what numbers depend on.

Device time is measured by `deplodock.backend.cuda.runtime.timing`.
"""

from __future__ import annotations

import subprocess
import time
from importlib.metadata import version

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


def environment() -> dict[str, str]:
    """What numbers depend on: the GPU if there is one, versions, the commit."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    import deplodock

    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "deplodock": deplodock.__version__,
        "xdsl": version("xdsl"),
        "commit": commit,
    }
